"""Mixtures of corpora of any size: each is read as often as its weight says."""

from collections import Counter
from functools import cache

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t2t_jax.batch import EOS_ID
from t2t_jax.data.batching import Batches
from t2t_jax.data.mixing import mixed_parts
from t2t_jax.data.parts import OnePart
from t2t_jax.data.rows import BatchShape
from t2t_jax.errors import UserError
from t2t_jax.extras.encoders.labelled import Labelled, LabelledText
from t2t_jax.run.health import corpus_figures
from tests.data.test_batching import STRATEGIES, assert_same, make_config, make_split, pairs_in
from tests.data.test_windows_of_parts import Split

SMALL = [(3 + n % 5, 4) for n in range(20)]
LARGE = [(12 + n % 20, 15) for n in range(120)]


def words(batches, num_steps):
    """Count the pairs of the small corpus (0) and of the large one (1), by their lengths."""
    read = (pair for step in range(num_steps) for pair in pairs_in(batches(step)))
    return Counter(int(len(source) > 10) for source, _ in read)


def mixture(*weights):
    corpora = make_split(SMALL), Split(LARGE, 25, 2)
    return mixed_parts([*zip(corpora, weights, strict=True)], 2)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_epoch_reads_each_corpus_as_often_as_its_weight_says(strategy):
    parts = mixture(3, 1)
    batches = Batches(parts, make_config(batching=strategy), 0)
    assert words(batches, batches.steps_per_epoch) == {0: 60, 1: 120}
    assert parts.content.num_examples == 180
    assert parts.content.source.total == 3 * sum(s for s, _ in SMALL) + sum(s for s, _ in LARGE)
    assert parts.content.source.max_length == 31
    epoch = [pairs_in(batches(step)) for step in range(batches.steps_per_epoch)]
    small = Counter(pair for batch in epoch for pair in batch if len(pair[0]) < 10)
    assert set(small.values()) == {3}


@cache
def corpus(number, size, piece=None):
    """Return pairs of three lengths with words from 10_000 * number on; in pieces, or in memory."""
    split = Split([(7, 7), (14, 12), (23, 24)] * (size // 3 + 1), piece or size, 2)
    split.lengths, split.offset = split.lengths[:size], 10_000 * number
    split.content = OnePart(make_split(split.lengths)).content
    return split if piece else split.open(0)


def mixture_of(corpora, strategy, window=4, **config):
    mixed = [(corpus(i, size, piece), w) for i, (size, piece, w) in enumerate(corpora)]
    return Batches(mixed_parts(mixed, window), make_config(batching=strategy, **config), 3)


MIXTURES = {  # the number of pairs, the size of pieces and the weight of each corpus
    "large-and-small": [(300, None, 1), (30, None, 1)],
    "very-large-and-small": [(2000, None, 1), (100, None, 1)],
    "equal": [(600, None, 1), (600, None, 1)],
    "weights": [(300, None, 1), (60, None, 3)],
    "three": [(600, None, 1), (90, None, 2), (6, None, 1)],
    "shards-and-text": [(450, 25, 1), (60, None, 1)],
    "shards-and-shards": [(450, 25, 2), (90, 15, 1), (30, None, 1)],
}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", MIXTURES)
def test_every_step_reads_each_corpus_in_its_share(name, strategy):
    corpora = MIXTURES[name]
    bounds = dict.fromkeys(("source_tokens_per_step", "target_tokens_per_step"), 1000)
    batches = mixture_of(corpora, strategy, **bounds)
    num_steps = batches.steps_per_epoch + batches._windows(1)[-1].end
    sources = [batches(step).inputs for step in range(num_steps)]
    first_words = [s.tokens[(s.positions == 0) & (s.segments > 0)] for s in sources]
    read = np.array([np.bincount(words // 10_000, minlength=len(corpora)) for words in first_words])
    shares = np.array([n * weight for n, _, weight in corpora], float)
    shares /= shares.sum()
    # At most three rows more or less: a row has one pair, or about three if it is packed.
    most = 3 if strategy == "bucket" else 9
    assert np.abs(read - shares * read.sum(axis=1, keepdims=True)).max() <= most
    _, times = np.unique(np.concatenate(first_words), return_counts=True)  # of each pair
    assert times.tolist() == [2 * weight for n, _, weight in corpora for _ in range(n)]
    # The figures of the log and of the rules are those of the pairs that were read.
    figures = batches.parts.content.source
    lengths = np.concatenate([s.positions[s.tokens == EOS_ID] + 1 for s in sources])
    assert 2 * batches.parts.content.num_examples == len(lengths)
    assert 2 * figures.total == lengths.sum()
    assert 2 * figures.squares == (lengths**2).sum()
    first = sources[: batches.steps_per_epoch]
    padding = np.concatenate([s.segments.ravel() == 0 for s in first]).mean()
    assert batches.padding_waste["source"] == pytest.approx(padding)


@pytest.mark.parametrize("strategy", STRATEGIES)
@given(
    corpora=st.lists(
        st.tuples(st.integers(1, 9), st.none() | st.integers(1, 4), st.integers(1, 9)),
        min_size=1,
        max_size=4,
    ),
    window=st.integers(1, 3),
)
@settings(max_examples=12)
def test_corpora_smaller_than_a_batch_are_read(strategy, corpora, window):
    batches = mixture_of(corpora, strategy, window)
    for step in range(batches.steps_per_epoch + 2):
        assert batches(step).inputs.segments.any()
    assert 0 <= corpus_figures(batches).padding < 1


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", ["three", "shards-and-shards"])
def test_the_rows_of_a_mixture_are_the_same_on_any_number_of_hosts(name, strategy):
    running, resumed = (mixture_of(MIXTURES[name], strategy) for _ in range(2))
    for hosts, step in ((1, 0), (2, 5), (3, 50), (8, 3 * running.steps_per_epoch + 1)):
        whole = running(step)
        assert running.shape(step) in running.shapes
        rows = np.arange(-(-len(whole.inputs.tokens) // hosts) * hosts)
        made = [resumed(step, own) for own in np.split(rows, hosts)]
        joined = jax.tree.map(lambda *x: np.concatenate(x), *made)
        assert_same(jax.tree.map(lambda x, y: x[: len(y)], joined, whole), whole)


def test_a_corpus_without_examples_changes_no_batch():
    mixed = [(make_split(SMALL), 1), (make_split([]), 1), (Split(LARGE, 25, 2), 1)]
    found = Batches(mixed_parts(mixed, 2), make_config(), 0)
    expected = Batches(mixture(1, 1), make_config(), 0)
    for step in range(expected.steps_per_epoch):
        assert_same(found(step), expected(step))
    with pytest.raises(UserError, match="no pairs are left"):
        Batches(mixed_parts(mixed[1:2] * 2, 2), make_config(), 0)


def test_a_batch_has_room_for_the_labels_of_every_corpus():
    of_words = [Labelled([5] * n, [(place, 0) for place in range(n)]) for n in (2, 17)]
    corpora = [LabelledText.of([one] * 4, {}) for one in of_words]
    parts = mixed_parts([(one, 1) for one in corpora], 2)
    assert parts.shape(BatchShape(4, 32, 32), 1) == (4, 32, 17)
