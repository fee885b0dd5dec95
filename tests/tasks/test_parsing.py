"""Parses of an untrained model: whatever it writes, they are trees over the words given."""

import random

import pytest

from t2t_jax.data.trees import parse_trees
from t2t_jax.data.vocabularies.learning import train_vocabulary
from t2t_jax.tasks.parsing import TASK
from tests.decoding.random_models import CONFIG as TINY
from tests.decoding.random_models import random_translator

WORDS = ["the", "dog", "barks", "at", "a", "-LRB-", "-RRB-", ",", "."]
SYMBOLS = ["(S", ")S", "(NP", ")NP", "(VP", ")VP", "DT", "NN", "VBZ", ","]
CONFIG = TINY.replace(
    {"data.corpus": "trees:treebank", "decoding.beam_size": 1, "decoding.max_extra_length": 12}
)


@pytest.fixture(scope="module")
def parser():
    rng = random.Random(0)
    sources, targets = (
        [" ".join(rng.choices(symbols, k=6)) for _ in range(100)] for symbols in (WORDS, SYMBOLS)
    )
    vocabulary = train_vocabulary([(sources, targets)], 80, across_scripts=True)
    return random_translator(CONFIG, vocabulary)


def parse(parser, sentences, **settings):
    """The tree of each sentence in brackets, and whether it was repaired."""
    sources = [TASK.as_source(sentence) for sentence in sentences]
    outputs = parser.translate(sources, **settings)
    return [TASK.answer(*pair) for pair in zip(sources, outputs, strict=True)]


def _words(parsed):
    trees = parse_trees([text for text, _ in parsed], "parses")
    return [" ".join(tree.words) for tree in trees]


def test_every_sentence_has_a_tree_over_exactly_its_words(parser):
    sentences = ["the dog barks .", "  a\tdog  ", "unheard-of words", "dog"] * 2
    for settings in ({}, {"temperature": 2.0, "seed": 3}):
        parsed = parse(parser, sentences, **settings)
        assert _words(parsed) == [" ".join(sentence.split()) for sentence in sentences]
        assert all(text.startswith("(TOP ") for text, _ in parsed)


def test_brackets_in_a_sentence_are_escaped_before_the_model_sees_them(parser):
    written = ["the ( dog )", "f(x)"]
    escaped = ["the -LRB- dog -RRB-", "f-LRB-x-RRB-"]
    assert _words(parse(parser, written)) == escaped
    assert parse(parser, written) == parse(parser, escaped)


def test_a_blank_sentence_has_no_tree(parser):
    blank, parsed, other = parse(parser, ["", "dog", " \t "])
    assert blank == other == ("", False)
    assert _words([parsed]) == ["dog"]
    assert parse(parser, []) == []


def test_an_output_that_is_no_tree_is_repaired():
    right, wrong = (TASK.answer("the dog", f"(NP DT NN ){label}") for label in ("NP", "S"))
    assert right == ("(TOP (NP (DT the) (NN dog)))", False)
    assert wrong == (right[0], True)
