"""Glossaries: how they are read, which terms a line has, and that translations use them."""

import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t2t_jax.data.terms import Glossary, Term, read_glossary
from t2t_jax.decoding.glossary import (
    TermUse,
    is_spelt,
    missing_terms,
    translate_with_terms,
    wanted_term,
)
from t2t_jax.errors import UserError
from t2t_jax.interchange.formats import read_model

_GOLDENS = Path(__file__).parents[1] / "goldens"

TEXT = "# comment\nsign  in\tanmelden\nOK\tOkay\tcase\n\nfile\tDatei\tpart\nFile name\tDateiname\n"


@pytest.fixture
def glossary(tmp_path):
    (tmp_path / "terms.tsv").write_text(TEXT)
    return read_glossary(tmp_path / "terms.tsv")


def test_a_glossary_is_a_term_a_line(glossary):
    assert glossary.terms == (
        Term("sign in", "anmelden"),
        Term("OK", "Okay", case=True),
        Term("file", "Datei", part=True),
        Term("File name", "Dateiname"),
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("only one", "line 2 is not a source term, a tab and a target term; give both, and"),
        ("a\t ", "line 2 is not a source term"),
        ("a\tb\tcase\tx", "line 2 is not a source term"),
        ("a\tb\tCase", "line 2 has the option 'Case'; there are case, part"),
        ("GO\tgehe", "line 2 has 'gehe' for 'GO', and line 1 'geh'; leave one of them"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, message):
    (tmp_path / "terms.tsv").write_text(f"go\tgeh\n{line}\n")
    with pytest.raises(UserError, match=re.escape(message)):
        read_glossary(tmp_path / "terms.tsv")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("Sign\u00a0 in, OK?", ["sign in", "OK"]),
        ("ok to sign into", []),
        ("the FILE NAME of a profile", ["File name", "file"]),
        ("filename", ["file"]),
        ("file name file", ["File name", "file"]),
    ],
)
def test_terms_of_a_line_are_whole_words_and_the_longest(glossary, line, expected):
    found = glossary.found(line)
    assert [one.term.source for one in found] == expected
    assert all(one.end <= other.begin for one, other in pairwise(found))
    for one in found:
        assert line[one.begin : one.end].lower().split() == one.term.source.lower().split()


def missing(source, target, *terms):
    wanted = [one.term for one in Glossary(terms).found(source)]
    return [one.target for one in missing_terms(wanted, target)]


def test_a_term_is_wanted_as_often_as_it_occurs():
    go = Term("go", "geh")
    assert missing("go go", "geh nun", go) == ["geh"]
    assert missing("go go", "Geh, geh!", go) == []
    assert missing("go", "Gehe", go) == ["geh"]
    assert missing("go", "Geh", Term("go", "geh", case=True)) == ["geh"]
    assert missing("go", "weggehen", Term("go", "geh", part=True)) == []
    assert missing("file dir", "eine Datei", Term("file", "Datei"), Term("dir", "Datei")) == [
        "Datei"
    ]


def test_the_terms_that_any_translation_has_missed_are_asked_for_until_no_more_are_missed():
    glossary = Glossary((Term("cat", "Katze"), Term("dog", "Hund"), Term("cow", "Kuh")))
    use = TermUse(
        ["a cat sees a dog", "a cow", "no"], ["Ein Kater, ein Hund", "Kuh", "x"], glossary
    )
    assert use.waiting == [0]
    assert [one.target for one in use.terms(0)] == ["Katze"]
    assert use.take({0: "eine Katze"}) == []  # it misses no fewer, but another one
    assert [one.target for one in use.terms(0)] == ["Katze", "Hund"]
    assert use.take({0: "eine Katze"}) == []
    assert use.waiting == []
    assert use.ended().lines[0] == "Ein Kater, ein Hund"
    use = TermUse(["a cat sees a dog and a cow"], ["ein Hund"], glossary)
    assert [one.target for one in use.terms(0)] == ["Katze", "Kuh"]
    assert use.take({0: "die Katze und die Kuh"}) == [0]
    assert [one.target for one in use.terms(0)] == ["Katze", "Hund", "Kuh"]
    assert use.take({0: "Katze, Hund, Kuh"}) == [0]
    assert use.waiting == []
    assert use.ended() == (["Katze, Hund, Kuh"], [])


def test_a_term_is_spelt_behind_a_space_and_with_a_capital(tiny):
    vocabulary = tiny.vocabulary
    term = Term("tree", "baum")
    plain = wanted_term(vocabulary, term)
    assert "".join(vocabulary.target_pieces([list(plain[0].tokens)])[0]) == "\u2581baum"
    assert not plain[0].word_begins
    assert all(one.word_ends for one in plain)
    assert not any(one.word_ends for one in wanted_term(vocabulary, term._replace(part=True)))
    assert sum(one.at_beginning for one in plain) == is_spelt(vocabulary, "Baum")


@pytest.mark.parametrize("kind", ["gpt2", "bert"])
def test_every_kind_of_vocabulary_spells_a_term_where_a_word_begins(kind):
    vocabulary = read_model(kind, _GOLDENS / "pretrained" / kind).vocabulary
    spellings = wanted_term(vocabulary, Term("go", "a"))
    assert spellings
    for one in spellings:
        text = b"".join(vocabulary.spelling(token) for token in one.tokens).decode()
        assert text.strip().lower() == "a"
        assert text.startswith(" ") or one.word_begins
        assert text.endswith(" ") or one.word_ends


_WORDS = ["ein", "zwei", "rot", "blau", "haus", "baum", "tür", "fenster"]


def _check_terms(tiny, terms, lines):
    """Every term is used, and lines without one are translated as ever."""
    glossary = Glossary(tuple(Term(*one) for one in terms.items()))
    found = translate_with_terms(tiny, lines, glossary, beam_size=2)
    assert len(found.lines) == len(lines)
    assert found.missing == []
    plain = tiny.translate(lines, beam_size=2)
    for line, text, before in zip(lines, found.lines, plain, strict=True):
        wanted = [one.term.target for one in glossary.found(line)]
        if not wanted:
            assert text == before
        for target in wanted:
            there = re.findall(rf"(?<!\w){target}(?!\w)", text, re.IGNORECASE)
            assert len(there) >= wanted.count(target)


def test_every_term_is_used_and_other_lines_are_as_ever(tiny):
    lines = ["ein rot haus und ein baum", "nicht", "", "zwei haus"]
    _check_terms(tiny, {"ein": "rot haus", "baum": "fenster"}, lines)


_WORDS = ["ein", "zwei", "rot", "blau", "haus", "baum", "tür", "fenster"]


@pytest.mark.thorough
@settings(max_examples=30)
@given(
    st.dictionaries(st.sampled_from(_WORDS), st.sampled_from(["rot haus", "baum"]), max_size=3),
    st.lists(st.lists(st.sampled_from(_WORDS), max_size=4).map(" ".join), min_size=1, max_size=4),
)
def test_any_terms_of_any_lines_are_used(tiny, terms, lines):
    _check_terms(tiny, terms, lines)


def test_what_the_vocabulary_cannot_spell_is_refused(tiny, monkeypatch):
    monkeypatch.setattr("t2t_jax.decoding.glossary.is_spelt", lambda vocabulary, text: False)
    with pytest.raises(UserError, match="cannot spell 'geh', which is wanted for 'go'; leave the"):
        translate_with_terms(tiny, ["go"], Glossary((Term("go", "geh"),)))


@pytest.mark.parametrize(
    ("kind", "text", "expected"), [("gpt2", '"', True), ("gpt2", "漢", True), ("bert", "漢", False)]
)
def test_what_is_spelt_is_known_by_the_unknown_entry_of_the_vocabulary(kind, text, expected):
    vocabulary = read_model(kind, _GOLDENS / "pretrained" / kind).vocabulary  # 3 is '"' in GPT-2
    assert is_spelt(vocabulary, text) is expected


def test_a_model_that_was_trained_on_marked_terms_gets_its_sources_marked(tiny, monkeypatch):
    given = []

    def translate(lines, **settings):
        given.append(lines)
        return ["nicht"] * len(lines)

    monkeypatch.setattr(tiny, "translate", translate)
    glossary = Glossary((Term("baum", "fenster"),))
    translate_with_terms(tiny, ["rot", "ein baum"], glossary, beam_size=1)
    monkeypatch.setattr("t2t_jax.decoding.glossary.marks_terms", lambda vocabulary: True)
    translate_with_terms(tiny, ["rot", "ein baum"], glossary, beam_size=1)
    assert given == [["rot", "ein baum"], ["rot", "ein <term>baum<as>fenster</term>"]]


def test_a_line_that_is_split_keeps_its_translation_and_its_terms_are_named_as_missing(tiny):
    glossary = Glossary((Term("baum", "fenster"),))
    lines = ["ein baum " * 12, "ein baum"]
    found = translate_with_terms(tiny, lines, glossary, beam_size=1, max_source_length=8)
    assert found.lines[0] == tiny.translate(lines, beam_size=1, max_source_length=8)[0]
    assert {number for number, _ in found.missing} == {0}
    assert "fenster" in found.lines[1]
