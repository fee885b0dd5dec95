"""A corpus in parts: every pair once an epoch, alike on any hosts, each of which opens few."""

from collections import Counter
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from t2t_jax.data import batching
from t2t_jax.data.batching import Batches
from t2t_jax.data.parts import OnePart, Parts, RowCounts
from t2t_jax.data.rows import Content, Lengths
from tests.data.test_batching import (
    LENGTHS,
    SPREAD,
    STRATEGIES,
    as_pair,
    assert_same,
    make_config,
    make_split,
    pairs_in,
)
from tests.selection import thorough_after


class Split(Parts):
    """Pairs in parts of a given size, which takes note of the parts that are opened."""

    content, window = Content(0, {}, 0, Lengths(0, 0, 0), Lengths(0, 0, 0)), 1
    offset = 0  # of the words

    def __init__(self, lengths, size, window):
        self.lengths, self.size, self.window = lengths, size, window
        self.opened: list[int] = []
        self.whole = OnePart(make_split(lengths))
        self.content = self.whole.content

    def __len__(self):
        return -(-len(self.lengths) // self.size)

    def open(self, part):
        self.opened.append(part)
        first = part * self.size
        split = make_split(self.lengths[first : first + self.size])
        # A pair has the same words as in the whole.
        for tokens in (split.source_tokens, split.target_tokens):
            tokens[tokens > 1] += first + self.offset
        return split

    def shape(self, shape, most):
        return shape

    def row_counts(self, form, count):
        counts, most = zip(*map(count, range(len(self))), strict=True)
        self.opened.clear()
        return RowCounts(np.stack(counts), max(most))

    def token_counts(self):
        return self.whole.token_counts()


def epochs(batches, num):
    """Read so many epochs, whose ends are where all pairs have occurred equally often."""
    found: list[list[list[Any]]] = []
    step, num_pairs = 0, batches.parts.content.num_examples
    for _ in range(num):
        epoch: list[list[Any]] = []
        while sum(map(len, epoch)) < num_pairs:
            epoch.append(pairs_in(batches(step)))
            step += 1
        found.append(epoch)
    return found


@pytest.mark.parametrize("strategy", STRATEGIES)
@given(
    lengths=LENGTHS,
    size=st.integers(1, 40),
    window=st.integers(1, 5),
    seed=st.integers(0, 2**31 - 1),
)
def test_every_pair_occurs_exactly_once_an_epoch_of_any_windows(
    strategy, lengths, size, window, seed
):
    batches = Batches(Split(lengths, size, window), make_config(batching=strategy), seed)
    expected = Counter(as_pair(i, sizes) for i, sizes in enumerate(lengths))
    first, *others = epochs(batches, 3)
    assert len(first) == batches.steps_per_epoch
    for epoch in (first, *others):
        assert Counter(pair for batch in epoch for pair in batch) == expected


@pytest.mark.parametrize("strategy", thorough_after(1, STRATEGIES))
@given(data=st.data(), size=st.integers(20, 100), window=st.integers(1, 5), hosts=st.integers(1, 4))
def test_any_step_on_any_number_of_hosts_is_the_same_global_batch(
    strategy, data, size, window, hosts
):
    config = make_config(batching=strategy)
    running, resumed = (Batches(Split(SPREAD, size, window), config, 3) for _ in range(2))
    step = data.draw(st.integers(0, 4 * running.steps_per_epoch))
    for earlier in range(step):
        running.shape(earlier)
    whole = running(step)
    assert running.shape(step) in running.shapes
    assert running.shape(step) == (*whole.inputs.tokens.shape, whole.targets.tokens.shape[1])
    rows = np.arange(-(-len(whole.inputs.tokens) // hosts) * hosts)
    made = [resumed(step, own) for own in np.split(rows, hosts)]
    joined = jax.tree.map(lambda *x: np.concatenate(x)[: len(whole.inputs.tokens)], *made)
    assert_same(joined, whole)


def test_one_window_of_one_part_is_what_a_corpus_in_memory_gives():
    for strategy in STRATEGIES:
        config = make_config(batching=strategy)
        alone = Batches(make_split(SPREAD), config, 7)
        parts = Batches(Split(SPREAD, len(SPREAD), 4), config, 7)
        for step in range(0, 5 * alone.steps_per_epoch, 3):
            assert_same(alone(step), parts(step))


def test_rows_of_a_window_are_mixed_and_windows_are_not():
    lengths = [(7, 7)] * 1600
    split = Split(lengths, 100, 4)  # 16 parts, in 4 windows, of batches of 24
    batches = Batches(split, make_config(), 0)
    [first, second] = epochs(batches, 2)

    def parts_of(batch):
        return [(source[0] - 4) // 100 for source, _ in batch]

    for epoch in (first, second):
        windows = [epoch[i : i + 17] for i in range(0, len(epoch), 17)]
        of_window = [{part for batch in window for part in parts_of(batch)} for window in windows]
        assert [len(parts) for parts in of_window] == [4, 4, 4, 4]
        assert set.union(*of_window) == set(range(16))
        for window in windows:
            for batch in window:
                if len(batch) == 24:  # a quarter of each part, side by side
                    assert all(5 <= n <= 7 for n in Counter(parts_of(batch)).values())
                    assert len(list(dict.fromkeys(parts_of(batch)))) == 4
                    assert sum(a != b for a, b in zip(batch, sorted(batch), strict=True)) > 4
    assert [parts_of(batch) for batch in first] != [parts_of(batch) for batch in second]


def test_a_host_opens_its_share_of_the_parts_and_few_others():
    split = Split([(7, 7)] * 1600, 100, 16)
    batches = Batches(split, make_config(), 0)
    batches._open_part._cache.clear()  # of counting the rows
    half = np.arange(12)
    for step in range(batches.steps_per_epoch):
        batches(step, half)
    assert 8 <= len(set(split.opened)) <= 10
    assert len(split.opened) == len(set(split.opened))  # each once


def test_no_more_parts_are_held_than_those_of_two_windows():
    split = Split(SPREAD * 4, 50, 3)
    batches = Batches(split, make_config(), 0)
    batches._open_part._cache.clear()  # of counting the rows
    for step in range(batches.steps_per_epoch):
        batches(step)
        assert len(batches._open_part._cache) <= 6
    assert set(split.opened) == set(range(len(split)))


def test_the_next_window_is_opened_ahead(monkeypatch):
    """Each host opens the share of the next window that it uses of this one."""
    ahead = []

    class Now:
        """A thread that is at its end once it has started."""

        def __init__(self, target, **others):
            self.start = target

    monkeypatch.setattr(batching.threading, "Thread", Now)
    split = Split([(7, 7)] * 1600, 100, 8)  # two windows of 800 pairs, in batches of 24
    batches = Batches(split, make_config(), 0)
    batches._open_part._cache.clear()  # of counting the rows
    for step in (0, 1, 34, 35):
        batches(step, np.arange(12))
        ahead.append(len(set(split.opened)))
    [first, *others] = ahead
    assert 8 <= first <= 10  # four or five of each window
    assert others == sorted(others)
    windows = [set(batches._windows(0)[n].portions.parts.tolist()) for n in range(2)]
    assert 4 <= len(windows[1] & set(split.opened[: ahead[0]])) <= 5


def test_the_figures_of_lengths():
    assert Lengths.of(np.array([3, 50_000, 4], np.uint16)) == (50_000, 50_007, 2_500_000_025)
    assert Lengths.of(np.array([], np.int32)) == (0, 0, 0)
    content = Content.of(make_split([(3, 4), (5, 6)]))
    assert content == (4, {"too_long": 2}, 2, (5, 8, 34), (6, 10, 52))
