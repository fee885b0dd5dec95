"""Glossaries: how they are read, which terms a line has, and that translations use them."""

import re
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t2t_jax.data.terms import Glossary, Term, read_glossary
from t2t_jax.decoding.glossary import _Line, is_spelt, translate_with_terms
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


def line_of(source, target, *terms):
    return _Line(source, Glossary(terms).found(source), target, str.isascii)


def test_a_prefix_goes_up_to_the_term_whose_place_comes_first():
    terms = Term("cat", "Katze"), Term("dog", "Köter")
    line = line_of("a cat sees a dog", "Ein Hund, ein Tier sieht.", *terms)
    assert [one.term.target for one in line.missing] == ["Katze", "Köter"]
    assert line.prefix([(3, 0), (4, 1), (0, 2), (1, 3), (2, 4)]) == "Ein Köter"
    line.take("Ein Köterhund, den ein Tier sieht.")
    assert line.target == "Ein Köter, den ein Tier sieht."  # the term is a word by itself
    assert line.prefix([(3, 0), (4, 1), (0, 3), (1, 4), (2, 5)]) == "Ein Köter, den ein Katze"
    line.take("Ein Köter, den ein Katze sieht.")
    assert not line.is_waiting


def test_a_term_keeps_marks_before_it_and_a_capital_at_the_beginning():
    term = Term("go on", "fahre fort")
    assert line_of("(go on)", "(mach weiter)", term).prefix([(0, 0)]) == "(fahre fort"
    assert line_of("go on", "Mach weiter", term).prefix([(0, 0)]) == "Fahre fort"
    assert line_of("go", "Mach", Term("go", "geh", case=True)).prefix([(0, 0)]) == "geh"
    assert line_of("go", "Mach", Term("go", "ähm")).prefix([(0, 0)]) == "ähm"  # no Ä is there
    nowhere = line_of("a b go d", "eins zwei drei vier", Term("go", "geh"))
    assert nowhere.prefix([]) == "eins zwei geh"


def test_a_term_is_wanted_as_often_as_it_occurs():
    line = line_of("go go", "geh nun", Term("go", "geh"))
    assert len(line.missing) == 1
    assert not line_of("go go", "Geh, geh!", Term("go", "geh")).missing
    assert line_of("go", "Gehe", Term("go", "geh")).missing
    assert not line_of("go", "weggehen", Term("go", "geh", part=True)).missing


def test_one_that_cannot_be_had_is_given_up():
    line = line_of("go", "nichts", Term("go", "geh"))
    assert line.prefix([]) == "geh"
    line.take("etwas anderes")
    assert line.missing
    assert not line.is_waiting


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
    monkeypatch.setattr(tiny, "encode_targets", lambda lines: [[3, 1] for _ in lines])
    with pytest.raises(UserError, match="cannot spell 'geh', which is wanted for 'go'; leave the"):
        translate_with_terms(tiny, ["go"], Glossary((Term("go", "geh"),)))


@pytest.mark.parametrize(
    ("kind", "text", "expected"), [("gpt2", '"', True), ("gpt2", "漢", True), ("bert", "漢", False)]
)
def test_what_is_spelt_is_known_by_the_unknown_entry_of_the_vocabulary(kind, text, expected):
    vocabulary = read_model(kind, _GOLDENS / "pretrained" / kind).vocabulary  # 3 is '"' in GPT-2
    model = SimpleNamespace(vocabulary=vocabulary, encode_targets=vocabulary.encode_targets)
    assert is_spelt(model, text) is expected


def test_a_model_that_was_trained_on_marked_terms_gets_its_sources_marked(tiny, monkeypatch):
    given = []

    def translate(lines, **settings):
        given.append(lines)
        return ["nicht"] * len(lines) if len(given) == 1 else ["ein fenster"] * len(lines)

    monkeypatch.setattr(tiny, "translate", translate)
    glossary = Glossary((Term("baum", "fenster"),))
    translate_with_terms(tiny, ["rot", "ein baum"], glossary)
    assert given == [["rot", "ein baum"], ["ein baum"]]
    given.clear()
    monkeypatch.setattr("t2t_jax.decoding.glossary.marks_terms", lambda vocabulary: True)
    translate_with_terms(tiny, ["rot", "ein baum"], glossary)
    marked = "ein <term>baum<as>fenster</term>"
    assert given == [["rot", marked], [marked]]
