"""Training batches by step: `batches(step)` needs only the corpus, the config and the seed.

Both strategies make rows and sort them into classes, one class per batch shape. In "bucket", a row
is one pair, and its class is the rung of the length ladder that holds both sides. In "pack", a row
is as many pairs as fit, and there is one class. The rest is the same in both: each epoch shuffles
the rows within their class, cuts batches from them, and shuffles the batches.
"""

import functools
import threading
from collections.abc import Callable, Generator
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, Int64, Integer, UInt, UInt8

from t2t_jax.batch import Batch
from t2t_jax.config import DataConfig
from t2t_jax.data.rows import BatchShape, Chosen, Examples, offsets_of, ranges
from t2t_jax.errors import UserError, needs_extra

_PACKING = 0  # the random stream of the packing; epoch e has stream e + 1


def ladder_length(length: int) -> int:
    """Return the lowest rung of the length ladder that holds `length` tokens.

    The rungs are 8, 16, 24, then 4, 5 and 6 times every power of two: 32 40 48 64 80 96 128 ...
    All are multiples of 8, and from 32 on each is at most a third above the one before it, so that
    few shapes are compiled and little is padded.
    """
    if length <= 32:
        return max(8, _round_up(length, 8))
    octave = 1 << ((length - 1).bit_length() - 3)  # 4 octaves < length <= 8 octaves
    return next(octave * step for step in (5, 6, 8) if octave * step >= length)


def length_ladder(max_length: int) -> tuple[int, ...]:
    """Return all rungs up to the last, which is `max_length` rounded up to a multiple of 8."""
    last = max(8, _round_up(max_length, 8))
    rungs = [8]
    while rungs[-1] < last:
        rungs.append(min(ladder_length(rungs[-1] + 1), last))
    return tuple(rungs)


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


class Batches:
    """The training batches of a tokenised split, by step: `batches(step) -> Batch`.

    In an epoch every pair occurs once. Epoch e of a seed is the same on every host and after every
    restart. Several threads may ask for batches at once.
    """

    def __init__(self, examples: Examples, config: DataConfig, seed: int) -> None:
        """Lay out the rows, in an order that the seed decides; no token is read yet.

        Raises:
          UserError: the split has no pairs.
        """
        if not len(examples):
            raise UserError(
                f"no pairs are left of {examples.num_pairs_read} read "
                f"({_reasons(examples.skipped)}); check the corpus and "
                f"max_length={config.max_length}"
            )
        self._seed = seed
        self._prefetch = config.prefetch
        self.examples = examples
        lengths = examples.source_lengths, examples.target_lengths
        pack = config.batching == "pack"
        self._layout = _pack(*lengths, config, seed) if pack else _bucket(*lengths, config)
        self._cuts = _cut(self._layout)
        most = int(np.diff(self._layout.starts).max())  # examples of a row
        self._shapes = [examples.shape(shape, most) for shape in self._layout.shapes]
        self._lock = threading.Lock()
        # Two, because prefetching threads work on both sides of an epoch's end.
        self._plan = functools.lru_cache(maxsize=2)(self._make_plan)

    @property
    def steps_per_epoch(self) -> int:
        """Return the number of batches in an epoch, which is the same in every epoch."""
        return len(self._cuts.classes)

    @property
    def shapes(self) -> set[BatchShape]:
        """Return the shapes of global batches that occur, for which alone code is compiled."""
        return {self._shapes[number] for number in np.unique(self._cuts.classes)}

    @property
    def padding_waste(self) -> dict[str, float]:
        """Return the fraction of an epoch's `source` and `target` positions that hold padding."""
        counts = np.bincount(self._cuts.classes, minlength=len(self._layout.shapes))
        rows, *lengths = np.array(self._shapes).T
        examples = self.examples
        sides = {"source": examples.source_lengths, "target": examples.target_lengths}
        tokens = {name: int(own.sum(dtype=np.int64)) for name, own in sides.items()}
        room = {name: int(counts @ (rows * own)) for name, own in zip(sides, lengths, strict=True)}
        # A text of one language has no sources, and of a masked text only a part is predicted.
        return {
            name: 1 - tokens[name] / room[name] for name in sides if 0 < tokens[name] <= room[name]
        }

    def shape(self, step: int) -> BatchShape:
        """Return the shape of the global batch of a step, which counts from 0 over all epochs."""
        return self._shapes[self._cuts.classes[self._find(step)[1]]]

    def __call__(self, step: int, rows: Integer[np.ndarray, " n"] | None = None) -> Batch:
        """Return rows of the global batch of a step.

        Args:
          step: counts from 0 over all epochs.
          rows: numbers of the rows to make, in ascending order; rows beyond the end of the global
            batch are empty. None makes the whole global batch.
        """
        shape = self.shape(step)
        numbers = np.arange(shape.rows) if rows is None else rows
        shape = shape._replace(rows=len(numbers))
        return self.examples.batch(self.chosen(step, rows), shape, step, numbers)

    def chosen(self, step: int, rows: Integer[np.ndarray, " n"] | None = None) -> Chosen:
        """Return the examples in rows of a step's global batch; arguments as for `__call__`."""
        plan, number = self._find(step)
        shape = self._layout.shapes[self._cuts.classes[number]]
        numbers = np.arange(shape.rows) if rows is None else rows
        there = plan.rows[self._cuts.starts[number] : self._cuts.starts[number + 1]]
        occupied = there[numbers[numbers < len(there)]]
        first, end = self._layout.starts[occupied], self._layout.starts[occupied + 1]
        return Chosen(
            self._layout.members[ranges(first, end - first)],
            np.repeat(np.arange(len(occupied)), end - first),
            ranges(np.ones_like(first), end - first),
        )

    def prefetch(
        self,
        start: int,
        stop: int,
        rows_of: Callable[[BatchShape], Integer[np.ndarray, " n"]] | None = None,
    ) -> Generator[Batch, None, None]:
        """Yield the batches of steps `start` to `stop - 1` in order, made ahead in the background.

        An error in the background is raised here. Closing the iterator stops the work.

        Args:
          rows_of: gives the numbers of the rows to make for a shape; None makes all rows.

        Raises:
          UserError: grain is not installed.
        """
        with needs_extra("train", "training"):
            import grain
        steps = grain.MapDataset.range(start, stop)
        options = grain.ReadOptions(
            num_threads=min(2, self._prefetch), prefetch_buffer_size=self._prefetch
        )

        def make(step: int) -> Batch:
            return self(int(step), rows_of(self.shape(int(step))) if rows_of else None)

        made = steps.map(make)
        iterator = iter(made.to_iter_dataset(options))
        try:
            yield from iterator
        finally:
            iterator.close()

    def _find(self, step: int) -> tuple["_Plan", int]:
        """Return the plan of a step's epoch, and the number of the step's batch among the cuts."""
        if step < 0:
            raise ValueError(f"no batch {step}: steps count from 0")
        epoch, index = divmod(step, self.steps_per_epoch)
        with self._lock:
            plan = self._plan(epoch)
        return plan, int(plan.batches[index])

    def _make_plan(self, epoch: int) -> "_Plan":
        rng = _random_stream(self._seed, epoch + 1)
        rows = _shuffled_within(self._layout.classes, rng)
        batches = _shuffled_within(np.zeros(self.steps_per_epoch, np.uint8), rng)
        return _Plan(rows, batches)


def describe_corpus(batches: Batches) -> str:
    """Return two lines for the log: the pairs kept and skipped, and the share of padding."""
    split = batches.examples
    waste = [f"{share:.1%} of {side}" for side, share in batches.padding_waste.items()]
    what = f"{split.num_pairs_read:,} pairs read, {len(split):,} kept ({_reasons(split.skipped)})"
    if not split.skipped:
        what = f"{split.num_pairs_read:,} documents read, in {len(split):,} sequences"
    return (
        f"{what}\n"
        f"{batches.steps_per_epoch:,} steps an epoch in {len(batches.shapes)} batch shapes; "
        f"padding {', '.join(waste)} positions"
    )


def _reasons(skipped: dict[str, int]) -> str:
    return "skipped: " + ", ".join(f"{n:,} {name.replace('_', ' ')}" for name, n in skipped.items())


class _Layout(NamedTuple):
    """The part of the batching that is the same in every epoch: the rows, and the shape of each."""

    shapes: list[BatchShape]
    """The batch shape of each class. A row fits into the shapes of all later classes too."""
    classes: UInt8[np.ndarray, " rows"]
    members: Int32[np.ndarray, " pairs"]
    """The numbers of the pairs, row after row."""
    starts: Int64[np.ndarray, " starts"]
    """Row r holds `members[starts[r] : starts[r + 1]]`."""


class _Cuts(NamedTuple):
    """The places where rows, sorted by class, are cut into batches; they depend on counts alone."""

    starts: Int64[np.ndarray, " cuts"]
    classes: Int64[np.ndarray, " batches"]


class _Plan(NamedTuple):
    """The plan of an epoch: the rows, shuffled within each class, and the order of the batches."""

    rows: Int32[np.ndarray, " rows"]
    batches: Int32[np.ndarray, " batches"]


def _bucket(
    source_lengths: Int32[np.ndarray, " pairs"],
    target_lengths: Int32[np.ndarray, " pairs"],
    config: DataConfig,
) -> _Layout:
    """Lay out one pair a row, whose class is the rung that holds the pair's longer side."""
    longest = np.maximum(source_lengths, target_lengths)
    ladder = length_ladder(max(config.max_length, int(longest.max())))
    classes = np.searchsorted(ladder, longest).astype(np.uint8)
    has_sources = bool(source_lengths.any())
    rungs = ladder[: classes.max() + 1]
    shapes = [batch_shape(config, rung * has_sources, rung) for rung in rungs]
    pairs = np.arange(len(longest) + 1)
    return _Layout(shapes, classes, pairs[:-1].astype(np.int32), pairs)


def _pack(
    source_lengths: Int32[np.ndarray, " pairs"],
    target_lengths: Int32[np.ndarray, " pairs"],
    config: DataConfig,
    seed: int,
) -> _Layout:
    """Lay out rows of several pairs, which are the same in every epoch of a seed.

    A round deals the longest pairs left to the emptiest rows, one each. There are just as many
    rows as the tokens would fill without a gap, so rows fill up evenly, and by then the pairs left
    are short. Pairs that found no room in any round are dealt out again to new rows.
    """
    shape = _packed_shape(source_lengths, target_lengths, config)
    # A text of one language has no sources, and takes no room for them.
    capacity = np.maximum([[shape.source_length], [shape.target_length]], 1)
    sizes = np.stack([source_lengths, target_lengths])
    gap = 1 - (sizes / capacity).max(axis=0)  # of a row that holds this pair alone
    left = _shuffled_within((gap * 0xFFFF).astype(np.uint16), _random_stream(seed, _PACKING))
    row_of_pair, num_rows = np.empty(len(left), np.int32), 0
    while len(left):
        num_new = int(np.ceil((sizes[:, left].sum(axis=1, keepdims=True) / capacity).max()))
        room = np.tile(capacity, num_new)
        unplaced = []
        for dealt in np.split(left, range(num_new, len(left), num_new)):
            emptiest = np.argsort(-(room / capacity).min(axis=0), kind="stable")[: len(dealt)]
            fits = (sizes[:, dealt] <= room[:, emptiest]).all(axis=0)
            room[:, emptiest[fits]] -= sizes[:, dealt[fits]]
            row_of_pair[dealt[fits]] = num_rows + emptiest[fits]
            unplaced.append(dealt[~fits])
        left, num_rows = np.concatenate(unplaced), num_rows + num_new
    starts = offsets_of(np.bincount(row_of_pair))
    members = np.argsort(row_of_pair, kind="stable").astype(np.int32)
    return _Layout([shape], np.zeros(num_rows, np.uint8), members, starts)


def _packed_shape(
    source_lengths: Int32[np.ndarray, " pairs"],
    target_lengths: Int32[np.ndarray, " pairs"],
    config: DataConfig,
) -> BatchShape:
    """Return the shape of packed rows, up to twice as long on the side with more tokens in all."""
    longest = max(config.max_length, int(source_lengths.max()), int(target_lengths.max()))
    shortest_row = _round_up(longest, 8)
    totals = np.array([source_lengths.sum(), target_lengths.sum()])
    if not totals[0]:
        return batch_shape(config, 0, shortest_row)
    bounds = np.array([config.source_tokens_per_step, config.target_tokens_per_step])
    wanted = shortest_row * np.minimum(totals / totals.min(), 2)
    lengths = np.rint(np.minimum(wanted, bounds - bounds % 8) / 8).astype(int) * 8
    return batch_shape(config, *np.maximum(shortest_row, lengths).tolist())


def batch_shape(config: DataConfig, source_length: int, target_length: int) -> BatchShape:
    """Return the shape of a batch with as many rows of these lengths as the bounds allow.

    There is at least one row, as dev and test have sentences of any length. From 8 rows on their
    number is a multiple of 8, which meshes and matrix units divide evenly.

    Args:
      config: the bounds, in tokens per step.
      source_length: source positions of a row; 0 for text of one language.
      target_length: target positions of a row.
    """
    rows = config.target_tokens_per_step // target_length
    if source_length:
        rows = min(config.source_tokens_per_step // source_length, rows)
    return BatchShape(max(1, rows - rows % 8 if rows >= 8 else rows), source_length, target_length)


def _cut(layout: _Layout) -> _Cuts:
    """Cut full batches, class by class; the rows left of a class join the batches of the next.

    Rows are in order of class, so a remainder lies just before the rows it joins and every batch is
    a slice. Only the very last batch may be short of rows.
    """
    counts = np.bincount(layout.classes, minlength=len(layout.shapes))
    starts, classes, start = [np.empty(0, np.int64)], [np.empty(0, np.int64)], 0
    for number, (shape, end) in enumerate(zip(layout.shapes, np.cumsum(counts), strict=True)):
        is_last = number == len(layout.shapes) - 1
        stop = end if is_last else end - (end - start) % shape.rows
        starts.append(np.arange(start, stop, shape.rows))
        classes.append(np.full(len(starts[-1]), number))
        start = stop
    return _Cuts(np.concatenate([*starts, [start]]), np.concatenate(classes))


def _random_stream(seed: int, stream: int) -> np.random.Philox:
    """Return a stream of raw bits, which alone are the same in every version of NumPy."""
    return np.random.Philox(key=np.array([seed, stream], np.uint64))


def _shuffled_within(
    classes: UInt[np.ndarray, " n"], rng: np.random.Philox
) -> Int32[np.ndarray, " n"]:
    """Return the indices of the rows in order of class, and in random order within a class."""
    order = np.argsort(rng.random_raw(len(classes)), kind="stable").astype(np.int32)
    return order[np.argsort(classes[order], kind="stable")]
