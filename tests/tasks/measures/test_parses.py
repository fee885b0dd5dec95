"""Scores of a parser's output against trees drawn by hand."""

import pytest

from t2t_jax.tasks.parsing import TASK

SENTENCES = ["The dog barks .", "It rains", "a , b"]
GOLD = ["(S (NP DT NN )NP (VP VBZ )VP . )S", "(S (NP PRP )NP (VP VBZ )VP )S", "(NP NN , NN )NP"]
GOLD_TREES = [
    "(TOP (S (NP (DT The) (NN dog)) (VP (VBZ barks)) (. .)))",
    "(TOP (S (NP (PRP It)) (VP (VBZ rains))))",
    "(TOP (NP (NN a) (, ,) (NN b)))",
]


def test_the_right_symbols_score_100_and_need_no_repair():
    scores, _, trees, gold = TASK.score_outputs(SENTENCES, GOLD, GOLD, "")
    assert trees == gold == GOLD_TREES
    assert (scores.recall, scores.precision, scores.f1, scores.best) == (100, 100, 100, 100)
    assert (scores.num_repaired, scores.num_errors, scores.num_skipped) == (0, 0, 0)
    assert str(scores) == "F1 100.00 (EVALB, COLLINS.prm)  0 repaired"


def test_repaired_sentences_are_counted_once_and_scored_as_they_were_repaired():
    outputs = [
        "(S (NP DT NN )NP VBZ )X )Y",  # two brackets to ignore, a tag to add, a bracket to close
        "(S (VP PRP VBZ )VP )S",  # a tree, but a wrong one
        "",
    ]
    scores, _, trees, _ = TASK.score_outputs(SENTENCES, outputs, GOLD, "")
    assert trees == [
        "(TOP (S (NP (DT The) (NN dog)) (VBZ barks) (. .)))",
        "(TOP (S (VP (PRP It) (VBZ rains))))",
        "(TOP (NN a) (, ,) (NN b))",
    ]
    assert scores.num_repaired == 2
    # Gold has S NP VP, S NP VP and NP: 7 brackets. Of S NP, S VP the model has 3 right.
    assert scores.recall == pytest.approx(100 * 3 / 7)
    assert scores.precision == pytest.approx(100 * 3 / 4)
    assert scores.f1 == scores.best == pytest.approx(100 * 6 / 11)
    assert scores.complete_match == 0
    assert (scores.num_sentences, scores.num_errors, scores.num_skipped) == (3, 0, 0)


def test_a_word_that_the_treebank_tags_as_punctuation_makes_an_error():
    # EVALB leaves out by tag: "b" is not in the gold tree, but in every tree that can be built.
    gold = [*GOLD[:2], "(NP NN , : )NP"]
    scores = TASK.score_outputs(SENTENCES, gold, gold, "").scores
    assert (scores.num_errors, scores.num_repaired) == (1, 1)
    assert scores.f1 == 100  # of the other two
