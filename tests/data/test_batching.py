"""Every pair once an epoch, the same batches on any number of hosts, in shapes of buckets."""

import dataclasses
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from t2t_jax.batch import EOS_ID
from t2t_jax.config import DataConfig
from t2t_jax.data.batching import Batches, describe_corpus
from t2t_jax.data.layout import bucket_length, bucket_lengths
from t2t_jax.data.rows import Examples
from t2t_jax.errors import UserError

STRATEGIES = ("bucket", "pack")
FIRST_WORD = 4
MAX_LENGTH = 40


def make_split(lengths):
    """Pair i is the word `FIRST_WORD + i` repeated on both sides, so that it can be recognised."""

    def side(sizes):
        rows = [[FIRST_WORD + i] * (size - 1) + [EOS_ID] for i, size in enumerate(sizes)]
        tokens = np.array([token for row in rows for token in row], np.int32)
        return tokens, np.cumsum([0, *sizes])

    source, target = side([s for s, _ in lengths]), side([t for _, t in lengths])
    return Examples(*source, *target, skipped={"too_long": 2}, num_pairs_read=len(lengths) + 2)


def make_config(**changes):
    defaults = {
        "max_length": MAX_LENGTH,
        "source_tokens_per_step": 200,
        "target_tokens_per_step": 240,
    }
    return DataConfig(**(defaults | changes))


def pairs_in(batch):
    """Reads a batch back cell by cell, and checks the format on the way."""
    found = []
    for row in zip(*(array.tolist() for array in jax.tree.leaves(batch)), strict=True):
        sentences: list[dict[int, list[int]]] = [{}, {}]
        for side in (0, 1):
            for token, segment, position in zip(*row[3 * side : 3 * side + 3], strict=True):
                if segment == 0:
                    assert token == position == 0
                    continue
                sentence = sentences[side].setdefault(segment, [])
                assert position == len(sentence)
                sentence.append(token)
        assert list(sentences[0]) == list(sentences[1]) == list(range(1, len(sentences[0]) + 1))
        found += [(tuple(sentences[0][k]), tuple(sentences[1][k])) for k in sentences[0]]
    return found


def as_pair(number, lengths):
    source, target = ((FIRST_WORD + number,) * (size - 1) + (EOS_ID,) for size in lengths)
    return source, target


def assert_same(one, other):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert a.dtype == b.dtype == np.int32
        np.testing.assert_array_equal(a, b)


LENGTHS = st.lists(
    st.tuples(st.integers(1, MAX_LENGTH), st.integers(1, MAX_LENGTH)), min_size=1, max_size=80
)
SPREAD = [(2 + 7 * i % 37, 2 + 11 * i % 39) for i in range(300)]


@pytest.mark.parametrize("strategy", STRATEGIES)
@given(lengths=LENGTHS, seed=st.integers(0, 2**31 - 1), epoch=st.integers(0, 1000))
def test_every_pair_occurs_exactly_once_an_epoch(strategy, lengths, seed, epoch):
    batches = Batches(make_split(lengths), make_config(batching=strategy), seed)
    steps = range(epoch * batches.steps_per_epoch, (epoch + 1) * batches.steps_per_epoch)
    found = Counter(pair for step in steps for pair in pairs_in(batches(step)))
    assert found == Counter(as_pair(i, sizes) for i, sizes in enumerate(lengths))


@pytest.mark.parametrize("strategy", STRATEGIES)
@given(
    lengths=LENGTHS,
    source_bound=st.integers(MAX_LENGTH, 300),
    target_bound=st.integers(MAX_LENGTH, 300),
)
def test_batches_keep_to_the_bounds_and_to_the_announced_shapes(
    strategy, lengths, source_bound, target_bound
):
    config = make_config(
        batching=strategy, source_tokens_per_step=source_bound, target_tokens_per_step=target_bound
    )
    batches = Batches(make_split(lengths), config, 0)
    shapes = set()
    for step in range(batches.steps_per_epoch):
        batch = batches(step)
        assert batch.inputs.tokens.size <= source_bound
        assert batch.targets.tokens.size <= target_bound
        assert len({array.shape for array in batch.inputs}) == 1
        assert len({array.shape for array in batch.targets}) == 1
        shapes.add((*batch.inputs.tokens.shape, batch.targets.tokens.shape[1]))
    assert shapes == batches.shapes


@pytest.mark.parametrize("strategy", STRATEGIES)
@given(lengths=LENGTHS, step=st.integers(0, 500), seed=st.integers(0, 2**31 - 1), data=st.data())
def test_any_rows_are_those_of_the_whole_batch_also_after_a_restart(
    strategy, lengths, step, seed, data
):
    """So hosts with rows of their own have the same batch. Beyond it, rows are empty."""
    running = Batches(make_split(lengths), make_config(batching=strategy), seed)
    for earlier in range(max(0, step - 3), step):
        running(earlier)
    whole = running(step)
    batches = Batches(make_split(lengths), make_config(batching=strategy), seed)
    assert batches.shape(step) == (*whole.inputs.tokens.shape, whole.targets.tokens.shape[1])
    num_rows = len(whole.inputs.tokens)
    chosen = data.draw(st.sets(st.integers(0, num_rows + 9)))
    rows = np.array(sorted(chosen), np.int64)
    padded = jax.tree.map(lambda x: np.pad(x, ((0, 10), (0, 0))), whole)
    assert_same(batches(step, rows), jax.tree.map(lambda x: x[rows], padded))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_epochs_and_seeds_have_orders_of_their_own(strategy):
    def order(seed, epoch):
        batches = Batches(make_split(SPREAD), make_config(batching=strategy), seed)
        start = epoch * batches.steps_per_epoch
        return [pairs_in(batches(start + i)) for i in range(batches.steps_per_epoch)]

    orders = [order(seed, epoch) for seed, epoch in ((0, 0), (0, 1), (1, 0), (1, 1))]
    assert all(a != b for i, a in enumerate(orders) for b in orders[:i])
    assert order(1, 1) == orders[3]


def test_batches_of_one_length_do_not_come_in_a_row():
    batches = Batches(make_split(SPREAD), make_config(), 0)
    lengths = [batches(step).inputs.tokens.shape[1] for step in range(batches.steps_per_epoch)]
    assert lengths not in (sorted(lengths), sorted(lengths, reverse=True))
    assert len(set(lengths)) > 2


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [("bucket", [94, 297, 147, 215, 112, 168]), ("pack", [247, 21, 198, 298, 233, 27])],
)
def test_the_order_is_the_same_in_every_version(strategy, expected):
    # A run that goes on under another NumPy must see the batches it would have seen.
    batches = Batches(make_split(SPREAD), make_config(batching=strategy), 7)
    step = 3 * batches.steps_per_epoch + 1
    first_pairs = pairs_in(batches(step))[:6]
    assert [source[0] - FIRST_WORD for source, _ in first_pairs] == expected


@given(lengths=LENGTHS)
def test_a_bucketed_row_is_one_pair_and_one_batch_at_most_lacks_rows(lengths):
    batches = Batches(make_split(lengths), make_config(), 0)
    num_short = 0
    for step in range(batches.steps_per_epoch):
        batch = batches(step)
        longest = max(max(len(source), len(target)) for source, target in pairs_in(batch))
        assert (
            batch.inputs.tokens.shape[1] == batch.targets.tokens.shape[1] >= bucket_length(longest)
        )
        assert batch.inputs.segments.max() == batch.targets.segments.max() == 1
        num_short += not batch.inputs.segments.any(axis=1).all()
    assert num_short <= 1


def test_what_remains_of_a_bucket_goes_up_to_the_next():
    batches = Batches(make_split([(5, 5)] * 30 + [(17, 3)] * 2 + [(40, 40)] * 50), make_config(), 0)
    shapes = Counter(batches(step).inputs.tokens.shape for step in range(batches.steps_per_epoch))
    # 24 of the 30 short pairs fill a batch. Six and the two of 17 fill the only batch of 8 rows.
    assert shapes == {(24, 8): 1, (8, 24): 1, (5, 40): 10}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("parts", [1, 7])
@given(lengths=LENGTHS)
def test_padding_waste_is_the_fraction_of_empty_cells(strategy, parts, lengths):
    rows_of = _rows_on(parts)
    batches = Batches(make_split(lengths), make_config(batching=strategy), 0, rows_of)
    epoch = [batches(step) for step in range(batches.steps_per_epoch)]
    for side, segments in (
        ("source", [batch.inputs.segments for batch in epoch]),
        ("target", [batch.targets.segments for batch in epoch]),
    ):
        tokens = sum(int((cells > 0).sum()) for cells in segments)
        total = sum(-(-len(cells) // parts) * parts * cells.shape[1] for cells in segments)
        assert batches.padding_waste[side] == pytest.approx(1 - tokens / total)


def _rows_on(devices):
    """A function that returns the rows that as many devices compute for a batch of a shape."""
    return lambda shape: -(-shape.rows // devices) * devices


@pytest.mark.parametrize(("devices", "empty"), [(8, 0), (64, 0.25), (256, 0.625)])
def test_rows_that_only_fill_the_devices_are_counted(devices, empty):
    split = make_split([(256, 256)] * 1000)  # 25,000 tokens of the paper hold 96 such rows
    batches = Batches(split, DataConfig(max_length=256), 0, _rows_on(devices))
    assert batches.empty_rows() == pytest.approx(empty)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("devices", [48, 64, 256])
def test_the_bounds_that_are_proposed_leave_few_rows_empty(devices, strategy):
    split, config = sentence_like(20_000, 1.15, 256), DataConfig(batching=strategy)
    source, target = Batches(split, config, 0, _rows_on(devices)).bounds_with_few_empty_rows(0.05)
    fields = {"source_tokens_per_step": source, "target_tokens_per_step": target}
    batches = Batches(split, dataclasses.replace(config, **fields), 0)
    shapes = [batches.shape(step) for step in range(batches.steps_per_epoch)]
    positions = sum(rows * max(lengths) for rows, *lengths in shapes)
    computed = sum(_rows_on(devices)(shape) * max(shape[1:]) for shape in shapes)
    assert positions > 0.93 * computed  # 5% is for the mean batch of each shape


def sentence_like(num_pairs, ratio, max_length):
    rng = np.random.default_rng(0)
    source = rng.gamma(2.2, 6, num_pairs) + 2
    target = source * rng.normal(ratio, 0.15, num_pairs)
    lengths = [np.clip(side, 2, max_length).astype(np.int64) for side in (source, target)]
    flat = [(np.zeros(int(side.sum()), np.uint16), np.cumsum([0, *side])) for side in lengths]
    return Examples(*flat[0], *flat[1], {}, num_pairs)


@pytest.mark.parametrize("ratio", [0.8, 1.0, 1.15])
def test_packing_leaves_little_padding_on_either_side(ratio):
    split = sentence_like(20_000, ratio, 256)
    packed = Batches(split, DataConfig(batching="pack"), 0).padding_waste
    bucketed = Batches(split, DataConfig(batching="bucket"), 0).padding_waste
    # The last batch of an epoch may be almost empty: one of about 12.
    last_batch = 1 / Batches(split, DataConfig(batching="pack"), 0).steps_per_epoch
    assert max(packed.values()) < 0.05 + last_batch
    assert max(packed.values()) < min(bucketed.values())


@pytest.mark.parametrize(
    ("lengths", "shape"),
    [
        ([(10, 10)], (5, 40, 40)),  # 200 source tokens hold 5 rows
        ([(10, 12)], (5, 40, 48)),  # as much longer as the target is
        ([(12, 10)], (4, 48, 40)),
        ([(2, 30)], (3, 40, 80)),  # but never more than twice as long
    ],
)
def test_packed_rows_are_longer_on_the_side_with_more_tokens(lengths, shape):
    batches = Batches(make_split(lengths * 20), make_config(batching="pack"), 0)
    assert batches.shapes == {shape}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_sentences_beyond_max_length_and_the_bounds_still_have_a_batch(strategy):
    lengths = [(900, 3), (3, 3), (3, 250)]
    batches = Batches(make_split(lengths), make_config(batching=strategy), 0)
    found = [pair for step in range(batches.steps_per_epoch) for pair in pairs_in(batches(step))]
    assert sorted(found) == sorted(as_pair(i, sizes) for i, sizes in enumerate(lengths))


def test_an_empty_split_is_refused_with_what_became_of_it():
    with pytest.raises(UserError, match=r"no pairs are left of 2 read .*2 too long.*max_length=40"):
        Batches(make_split([]), make_config(), 0)


def test_a_step_before_the_first_is_refused():
    batches = Batches(make_split(SPREAD), make_config(), 0)
    for read in (batches, batches.shape):
        with pytest.raises(ValueError, match="no batch -1"):
            read(-1)


def test_there_are_13_bucket_lengths_to_256():
    assert bucket_lengths(256) == (8, 16, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256)
    assert bucket_lengths(100) == (8, 16, 24, 32, 40, 48, 64, 80, 96, 104)
    assert bucket_lengths(8) == (8,)


@given(length=st.integers(1, 100_000))
def test_a_bucket_holds_its_length_closely(length):
    bucket = bucket_length(length)
    assert bucket >= length
    assert bucket % 8 == 0
    assert bucket_length(bucket) == bucket
    assert bucket == 8 or bucket - length < max(8, bucket / 4)


@given(max_length=st.integers(1, 1500))
def test_bucket_lengths_are_those_below_the_last(max_length):
    ladder = bucket_lengths(max_length)
    assert ladder[-1] == -(-max_length // 8) * 8
    assert ladder[:-1] == tuple(n for n in range(8, ladder[-1]) if bucket_length(n) == n)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_prefetched_batches_come_in_order(strategy):
    batches = Batches(make_split(SPREAD), make_config(batching=strategy), 0)
    start, stop = batches.steps_per_epoch - 3, batches.steps_per_epoch + 4
    prefetched = list(batches.prefetch(start, stop))
    every_third = list(batches.prefetch(start, stop, lambda shape: np.arange(1, shape.rows, 3)))
    assert len(prefetched) == len(every_third) == 7
    for step, (batch, part) in enumerate(zip(prefetched, every_third, strict=True), start):
        assert_same(batch, batches(step))
        assert_same(part, jax.tree.map(lambda x: x[1::3], batch))
    assert list(batches.prefetch(5, 5)) == []


def test_abandoned_prefetching_ends_its_threads():
    before = set(threading.enumerate())
    iterator = Batches(make_split(SPREAD), make_config(), 0).prefetch(0, 1000)
    next(iterator)
    started = set(threading.enumerate()) - before
    assert started
    iterator.close()
    for thread in started:
        thread.join(timeout=10)
    assert not any(thread.is_alive() for thread in started)


def test_an_error_while_prefetching_reaches_the_consumer(monkeypatch):
    batches = Batches(make_split(SPREAD), make_config(), 0)
    first = batches(0)

    def fail_later(self, step, rows=None):
        if step == 3:
            raise RuntimeError("the disk is gone")
        return first

    monkeypatch.setattr(Batches, "__call__", fail_later)
    iterator = batches.prefetch(0, 10)
    for _ in range(3):
        assert_same(next(iterator), first)
    with pytest.raises(RuntimeError, match="the disk is gone"):
        next(iterator)


def test_threads_on_both_sides_of_an_epoch_get_the_same_batches():
    steps = [step for i in range(20) for step in (i, 1000 - i)]
    alone = Batches(make_split(SPREAD), make_config(), 0)
    shared = Batches(make_split(SPREAD), make_config(), 0)
    with ThreadPoolExecutor(8) as pool:
        for step, batch in zip(steps, pool.map(shared, steps), strict=True):
            assert_same(batch, alone(step))


def test_the_report_states_pairs_steps_and_padding():
    # Two rows of 8 + 8 cells with 4 + 8 tokens each, in a batch of 24 rows.
    split = make_split([(4, 8), (4, 8)])
    report = describe_corpus(Batches(split, make_config(), 0))
    assert report == (
        "4 pairs read, 2 kept (skipped: 2 too long)\n"
        "1 steps an epoch in 1 batch shapes; padding 95.8% of source, 91.7% of target positions"
    )


def test_a_ladder_to_two_billion_is_made_at_once():
    assert len(bucket_lengths(2**31 - 1)) < 100
