"""Marked terms: which pairs have them, and which terms are learned from a text."""

import re

import pytest

from t2t_jax.__main__ import main
from t2t_jax.config import DataConfig
from t2t_jax.data.corpus import open_corpus
from t2t_jax.data.terms import (
    TERM_MARKS,
    Glossary,
    Term,
    learned_glossary,
    marked_pairs,
    marks_terms,
    read_glossary,
)
from t2t_jax.data.vocabularies.learning import train_vocabulary
from t2t_jax.errors import UserError

GLOSSARY = Glossary((Term("file", "Datei"), Term("file name", "Dateiname"), Term("OK", "Ja", True)))
SOURCES = ["The file is open.", "A file name, OK?", "ok", "No file here", "File file"]
TARGETS = ["Die Datei ist offen.", "Ein Dateiname, Ja?", "Ja", "Keine Akte da", "Datei"]


def test_each_term_is_followed_by_its_translation():
    assert GLOSSARY.marked(SOURCES[:3]) == [
        "The <term>file<as>Datei</term> is open.",
        "A <term>file name<as>Dateiname</term>, <term>OK<as>Ja</term>?",
        "ok",
    ]


def test_words_that_differ_in_more_than_case_are_terms_of_their_own(tmp_path):
    path = tmp_path / "glossary.tsv"
    path.write_text("Maße\tdimensions\nMasse\tmass\nΟΔΟΣ\tstreet\n", encoding="utf-8")
    found = read_glossary(path).found("MASSE, maße und οδος")
    assert [one.term.target for one in found] == ["mass", "dimensions", "street"]


def test_pairs_are_marked_whose_targets_have_the_translation():
    found = [
        *marked_pairs([(SOURCES[:2], TARGETS[:2]), (SOURCES[2:], TARGETS[2:])], GLOSSARY, 1, 0)
    ]
    assert [target for _, target in found] == [TARGETS[0], TARGETS[1], TARGETS[4]]
    assert [source for source, _ in found][:2] == GLOSSARY.marked(SOURCES[:2])


def test_the_share_that_is_drawn_depends_on_the_seed_alone():
    pairs = [(SOURCES[:1] * 1000, TARGETS[:1] * 1000)]
    counts = [len([*marked_pairs(pairs, GLOSSARY, 0.3, seed)]) for seed in (0, 0, 1)]
    assert counts[0] == counts[1] != counts[2]
    assert 250 < counts[0] < 350


def test_words_are_learned_that_translate_each_other():
    sources = [
        "the house burns",
        "a house stands",
        "this house",
        "the boat burns",
        "one boat",
        "boat",
    ]
    targets = [
        "das Haus brennt",
        "ein Haus steht",
        "dieses Haus",
        "das Boot brennt",
        "ein Boot",
        "Boot",
    ]
    found = learned_glossary([(sources, targets)], least=2)
    assert {(one.source, one.target) for one in found.terms} == {
        ("house", "Haus"),
        ("boat", "Boot"),
        ("burns", "brennt"),
    }


def test_a_command_that_finds_no_pair_leaves_nothing(tmp_path):
    for language, line in (("en", "one"), ("de", "eins")):
        (tmp_path / f"train.{language}").write_text(f"{line}\n")
    with pytest.raises(UserError, match="raise --share, or give other terms"):
        main(["data", "terms", f"text:{tmp_path}", str(tmp_path / "terms")])
    assert not (tmp_path / "terms").exists()


@pytest.mark.thorough
def test_the_command_writes_pairs_that_a_training_reads_beside_the_corpus(tmp_path, capsys):
    out = tmp_path / "terms"
    command = ["data", "terms", "bundled:", str(out), "--share", "0.2"]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert f"--data.corpus 'bundled:+text:{out}' --data.protected-tokens '<term>'" in printed
    config = DataConfig(f"bundled:+text:{out}", protected_tokens=TERM_MARKS, vocab_size=2000)
    sources, targets = open_corpus(DataConfig(f"text:{out}")).lines("train")
    assert len(sources) > 200
    for source, target in zip(sources, targets, strict=True):
        wanted = re.findall("<as>(.*?)</term>", source)
        assert wanted
        assert all(term in target for term in wanted)
    vocabulary = train_vocabulary([(sources, targets)], 2000, protected_tokens=TERM_MARKS)
    assert marks_terms(vocabulary)
    [row] = vocabulary.pieces(vocabulary.encode(sources[:1]))
    assert set(TERM_MARKS) <= set(row)
    assert config.corpus == open_corpus(config).name
    with pytest.raises(UserError, match="is not empty"):
        main(command)
    with pytest.raises(UserError, match="share"):
        main([*command[:3], str(tmp_path / "other"), "--share", "0"])
