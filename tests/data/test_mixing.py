"""Mixtures of corpora of any size: each is read as often as its weight, or a temperature, says."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from t2t_jax.config import DataConfig
from t2t_jax.data import mixing
from t2t_jax.data.batching import Batches
from t2t_jax.data.corpus import open_corpus
from t2t_jax.data.labelled import Labelled, LabelledText
from t2t_jax.data.mixing import mixed_parts
from t2t_jax.data.rows import BatchShape
from t2t_jax.errors import UserError
from tests.data.test_batching import STRATEGIES, assert_same, make_config, make_split, pairs_in
from tests.data.test_windows_of_parts import Split

SMALL = [(3 + n % 5, 4) for n in range(20)]
LARGE = [(12 + n % 20, 15) for n in range(120)]


def words(batches, num_steps):
    """Count the pairs of the small corpus (0) and of the large one (1), by their lengths."""
    read = (pair for step in range(num_steps) for pair in pairs_in(batches(step)))
    return Counter(int(len(source) > 10) for source, _ in read)


def mixture(temperature, *weights, window=2):
    corpora = make_split(SMALL), Split(LARGE, 25, window)
    return mixed_parts([*zip(corpora, weights, strict=True)], temperature, window)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_epoch_reads_each_corpus_as_often_as_its_weight_says(strategy):
    parts = mixture(None, 3, 1)
    batches = Batches(parts, make_config(batching=strategy), 0)
    assert words(batches, batches.steps_per_epoch) == {0: 60, 1: 120}
    assert parts.content.num_examples == 180
    assert parts.content.source.total == 3 * sum(s for s, _ in SMALL) + sum(s for s, _ in LARGE)
    assert parts.content.source.longest == 31
    epoch = [pairs_in(batches(step)) for step in range(batches.steps_per_epoch)]
    small = Counter(pair for batch in epoch for pair in batch if len(pair[0]) < 10)
    assert set(small.values()) == {3}


@pytest.mark.parametrize(("temperature", "share"), [(1.0, 20 / 140), (2.0, 0.29), (1000.0, 0.4996)])
def test_a_temperature_says_the_share_of_each_corpus(temperature, share):
    batches = Batches(mixture(temperature, 1, 1), make_config(), 0)
    power = np.array([20.0, 120.0]) ** (1 / temperature)
    assert power[0] / power.sum() == pytest.approx(share, abs=1e-3)
    found = words(batches, 40 * batches.steps_per_epoch)
    assert found[0] / found.total() == pytest.approx(share, abs=0.02)


@given(epochs=st.integers(1, 30), temperature=st.floats(1, 50), seed=st.integers(0, 2**31 - 1))
def test_no_part_of_a_corpus_is_read_twice_more_than_another(epochs, temperature, seed):
    parts = mixture(temperature, 1, 1)
    read = Counter(np.concatenate([parts.of_epoch(seed, e) for e in range(epochs)]).tolist())
    counts = [read[part] for part in range(1, len(parts))]  # of the large corpus
    assert max(counts) - min(counts) <= 1
    expected = [float(times) * epochs * len(one) for one, times in parts.mixed]
    assert read[0] == int(expected[0] + 1e-9)
    assert sum(counts) == int(expected[1] + 1e-9)


@pytest.mark.parametrize("window", [2, 16])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_resumed_mixture_has_the_same_batches(strategy, window):
    config = make_config(batching=strategy)
    running = Batches(mixture(3.0, 1, 1, window=window), config, 4)
    resumed = Batches(mixture(3.0, 1, 1, window=window), config, 4)
    for step in (0, 7, 3 * running.steps_per_epoch + 1):
        assert_same(resumed(step), running(step))
        assert running.shape(step) in running.shapes
    orders = [pairs_in(running(step)) for step in range(2 * running.steps_per_epoch)]
    assert len({str(order) for order in orders}) == len(orders)


def test_large_examples_in_memory_are_read_in_slices(monkeypatch):
    monkeypatch.setattr(mixing, "_SLICE", 25)
    for strategy in STRATEGIES:
        config = make_config(batching=strategy)
        parts = mixed_parts([(make_split(LARGE), 1), (make_split(SMALL), 1)], 5.0, 4)
        assert len(parts) == 6
        batches = Batches(parts, config, 0)
        read: Counter[Any] = Counter()
        for step in range(20 * batches.steps_per_epoch):
            read.update(pairs_in(batches(step)))
        large = [read[pair] for pair in read if len(pair[0]) > 10]
        assert len(large) == 120
        assert max(large) - min(large) <= 2  # the last epoch is not read to its end
        assert batches.parts.token_counts().sum() == pytest.approx(
            parts.content.target.total, rel=0.05
        )


@pytest.mark.parametrize("temperature", [None, 3.0])
def test_a_corpus_without_examples_changes_no_batch(temperature):
    mixed = [(make_split(SMALL), 1), (make_split([]), 1), (Split(LARGE, 25, 2), 1)]
    found = Batches(mixed_parts(mixed, temperature, 2), make_config(), 0)
    expected = Batches(mixture(temperature, 1, 1), make_config(), 0)
    for step in range(expected.steps_per_epoch):
        assert_same(found(step), expected(step))
    with pytest.raises(UserError, match="no pairs are left"):
        Batches(mixed_parts(mixed[1:2] * 2, temperature, 2), make_config(), 0)


def test_a_batch_has_room_for_the_labels_of_every_corpus():
    of_words = [Labelled([5] * n, [*range(n)], [0] * n) for n in (2, 17)]
    corpora = [LabelledText.of([one] * 4) for one in of_words]
    parts = mixed_parts([(one, 1) for one in corpora], 2.0, 2)
    assert parts.shape(BatchShape(4, 32, 32), 1) == (4, 32, 17)


def test_a_temperature_of_one_corpus_is_refused():
    with pytest.raises(UserError, match=r"mixture_temperature=5\.0 has no effect on one corpus"):
        open_corpus(DataConfig(mixture_temperature=5.0))
    with pytest.raises(UserError, match=r"mixture_temperature=0\.5"):
        DataConfig(mixture_temperature=0.5)
