"""The kinds of heads, of weights that were made to be of one kind."""

import math

import numpy as np
import pytest

from t2t_jax.extras.inspect.head_kinds import SHARES, Subwords, count_heads

PIECES = ["▁the", "▁ca", "t", "▁s", "at", ".", "</s>"]
WORDS = [0, 1, 1, 2, 2, 2, -1]
SIDE = Subwords(WORDS, PIECES)
UNIFORM = np.full((7, 7), 1 / 7)


def looking_at(*keys: int) -> np.ndarray:
    """Weights of seven queries, each of which looks at one key alone."""
    return np.eye(7)[list(keys)]


HEADS = {
    "previous word": looking_at(6, 0, 0, 1, 2, 1, 0),
    "same word": looking_at(0, 2, 1, 4, 3, 5, 6),
    "next word": looking_at(1, 3, 4, 6, 6, 6, 0),
    "punctuation": looking_at(5, 5, 5, 5, 0, 0, 0),
    "end of sentence": looking_at(6, 6, 6, 6, 0, 1, 0),
    "broad": UNIFORM,
}


@pytest.mark.parametrize("kind", HEADS)
def test_a_head_is_of_the_kind_that_it_was_made_of(kind):
    counts = count_heads(HEADS[kind][None, None], SIDE, SIDE, "encoder")
    assert counts.kinds() == [[kind]]
    assert counts.queries == 6  # the end of the sentence is no query
    assert counts.mean_entropy[0, 0] == pytest.approx(math.log(7) if kind == "broad" else 0)


def test_shares_are_means_over_queries_of_all_sentences():
    weights = 0.25 * HEADS["previous word"] + 0.75 * UNIFORM
    counts = count_heads(weights[None, None], SIDE, SIDE, "encoder")
    other = count_heads(UNIFORM[None, None], SIDE, SIDE, "encoder")
    both = (counts + other).shares[:, 0, 0] / (counts + other).queries
    # Of six queries, the first word has none before it, "ca" and "t" have one subword, the others
    # two; the made head looks there with five of them.
    uniform = (0 + 1 + 1 + 2 + 2 + 2) / 7
    expected = (0.25 * 5 + 0.75 * uniform + uniform) / 12
    assert both[SHARES.index("previous word")] == pytest.approx(expected)
    assert counts.kinds() == [["broad"]]


def test_in_the_decoder_a_query_can_only_look_back():
    # Inputs are the start and then the translation; row i may look at columns 0 to i.
    side = Subwords([-1, *WORDS[:-1]], ["<s>", *PIECES[:-1]])
    causal = np.tril(np.ones((7, 7)))
    causal /= causal.sum(-1, keepdims=True)
    counts = count_heads(causal[None, None], side, side, "decoder")
    assert counts.kinds() == [["broad"]]
    assert counts.relative_entropy[0, 0] == pytest.approx(counts.queries)
    to_start = np.zeros((7, 7))
    to_start[:, 0] = 1
    counts = count_heads(to_start[None, None], side, side, "decoder")
    assert counts.kinds() == [["end of sentence"]]


def test_cross_attention_tells_one_word_from_many():
    queries = Subwords([0, 1, -1], ["▁die", "▁Katze", "</s>"])
    on_a_word = np.zeros((3, 7))
    on_a_word[:, 1:3] = 0.5  # two subwords of one word
    heads = np.stack([on_a_word, UNIFORM[:3], looking_at(6, 6, 6, 0, 0, 0, 0)[:3]])
    heads = np.concatenate([heads, heads[:1] * 0.45 + heads[2:] * 0.1 + 0.45 * np.eye(7)[[0] * 3]])
    counts = count_heads(heads[None], queries, SIDE, "cross")
    assert counts.kinds() == [["one word", "broad", "end of sentence", "other"]]
    assert counts.queries == 2
    assert not counts.shares[: SHARES.index("punctuation")].any()


def test_punctuation_is_what_unicode_calls_so():
    pieces = [".", "▁(", "...@@", "«", "a.", "▁", "</s>", "+"]
    side = Subwords([0, 1, 2, 3, 4, 5, -1, 6], pieces)
    assert side.is_punctuation.tolist() == [True, True, True, True, False, False, False, False]


def test_a_side_without_words_has_no_kind():
    nothing = Subwords([-1], ["</s>"])
    counts = count_heads(np.ones((2, 3, 1, 1)), nothing, nothing, "encoder")
    assert counts.queries == 0
    assert counts.kinds() == [["other"] * 3] * 2
    alone = count_heads(np.ones((1, 1, 1, 1)), Subwords([0], ["▁a"]), nothing, "cross")
    assert alone.kinds() == [["end of sentence"]]
