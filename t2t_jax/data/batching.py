"""Training batches by step: `batches(step)` depends only on the corpus, the config and the seed.

An epoch reads the parts of a corpus in random order, one window of parts at a time. Within a
window, the rows of each class (`data.layout`) are shuffled and cut into batches, and the batches
are shuffled. A corpus in memory is one part and one window. A window of a mixture (`data.mixing`)
may read a portion of a part's rows; a later window continues in the same random order.
"""

import threading
from bisect import bisect_right
from collections.abc import Callable, Generator, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Int, Int32, Int64, Integer, Num

from t2t_jax.batch import Batch
from t2t_jax.config import DataConfig
from t2t_jax.data.layout import Cuts, Layout, cut, row_form, shuffled_within
from t2t_jax.data.parts import OnePart, Parts, Portions
from t2t_jax.data.rows import BatchShape, Examples, Placement, StepRows, ranges
from t2t_jax.errors import UserError, needs_extra
from t2t_jax.system.memo import Memo

_PACKING = 0  # the random stream of packing; epoch e has stream e + 1
_GOLDEN_RATIO = 0.6180339887498949  # its fractional part
_PART_ORDER = 1  # the kind of the stream that orders parts; other kinds number copies of a part


class Batches:
    """Training batches of a tokenized split, by step: `batches(step) -> Batch`.

    Every pair occurs once in an epoch. Hosts and restarted runs get the same batches. The methods
    are thread-safe.

    Attributes:
      parts: the examples.
      steps_per_epoch: the number of batches in the first epoch; later epochs of several windows
        may have a few more or fewer.
    """

    def __init__(
        self,
        examples: Examples | Parts,
        config: DataConfig,
        seed: int,
        rows_of: Callable[[BatchShape], int] = lambda shape: shape.rows,
    ) -> None:
        """Count the batch rows that the examples fill, without reading their tokens.

        Args:
          rows_of: returns the rows that the devices compute for a batch shape, with empty rows.
        """
        self.parts = examples if isinstance(examples, Parts) else OnePart(examples)
        content = self.parts.content
        if not content.num_examples:
            raise UserError(
                f"no pairs are left of {content.num_pairs_read} read "
                f"({_reasons(content.skipped)}); check the corpus and "
                f"max_length={config.max_length}"
            )
        self._seed, self._config, self._rows_of = seed, config, rows_of
        self._form = row_form(content, config)
        # Two windows, because prefetching threads work on both sides of a window's end.
        self._open_part = Memo(self._open, 2 * self.parts.window)
        self._order = Memo(self._make_order, 2 * self.parts.window)
        self._plan = Memo(self._make_plan, 2)
        self._windows = Memo(self._make_windows, 2)
        self._lock = threading.Lock()  # guards `_last_prefetched` and `_starts`
        self._last_prefetched = 0, 0  # epoch, window
        # [parts, classes]
        self._counts, max_examples = self.parts.row_counts(self._form, self._count_rows)
        self._shapes = [self.parts.shape(shape, max_examples) for shape in self._form.shapes]
        windows = self._windows(0)
        self._is_one_window = len(windows) == 1
        self.steps_per_epoch = windows[-1].end
        self._starts = [0, self.steps_per_epoch]

    @property
    def shapes(self) -> set[BatchShape]:
        """Return the shapes of all global batches, for each of which JAX compiles the step."""
        if not self._is_one_window:  # the classes that occur depend on the epoch
            return set(self._shapes)
        return {self._shapes[index] for index in np.unique(self._windows(0)[0].cuts.classes)}

    @property
    def padding_waste(self) -> dict[str, float]:
        """Return the fractions of padding of the `source` and `target` positions in an epoch."""
        counts = self._batch_counts
        rows, *array_lengths = np.array(self._shapes).T
        computed_rows = counts * [self._rows_of(shape) for shape in self._shapes]
        content, waste = self.parts.content, {}
        totals = ("source", content.source.total), ("target", content.target.total)
        for (side, total), lengths in zip(totals, array_lengths, strict=True):
            # Text of one language has no sources, and masked text is predicted only in part.
            if total and total <= int(counts @ (rows * lengths)):
                waste[side] = 1 - total / int(computed_rows @ lengths)
        return waste

    @property
    def _batch_counts(self) -> Int[np.ndarray, " classes"]:
        """Count the batches of each batch shape in the first epoch."""
        classes = np.concatenate([window.cuts.classes for window in self._windows(0)])
        return np.bincount(classes, minlength=len(self._shapes))

    def empty_rows(self, config: DataConfig | None = None) -> float:
        """Return the fraction of computed positions that are in rows without examples.

        Args:
          config: a config with other tokens per step; None uses the config of the batches.
        """
        # Empty rows fill up a batch so that all devices have the same number of rows.
        form = row_form(self.parts.content, config) if config else self._form
        rows, *lengths = np.array(self._form.shapes).T
        positions = self._batch_counts * rows * np.max(lengths, axis=0)  # [classes]
        ratios = [self._rows_of(shape) / shape.rows for shape in form.shapes]
        return float(1 - positions.sum() / (positions @ ratios))

    def bounds_with_few_empty_rows(self, max_share: float) -> tuple[int, int] | None:
        """Find source and target tokens per step that make `empty_rows` at most `max_share`.

        Return the values nearest to the config's, or None if four times these do not suffice.
        """
        rows, source_length, target_length = self._form.shapes[-1]
        min_rows = self._rows_of(BatchShape(1, source_length, target_length))  # fill all devices
        candidates = range(min_rows, 4 * max(rows, min_rows) + 1, min_rows)
        for num_rows in sorted(candidates, key=lambda num_rows: abs(num_rows - rows)):
            bounds = num_rows * (source_length or target_length), num_rows * target_length
            config = replace(
                self._config, source_tokens_per_step=bounds[0], target_tokens_per_step=bounds[1]
            )
            if self.empty_rows(config) <= max_share:
                return bounds
        return None

    def shape(self, step: int) -> BatchShape:
        """Return the shape of the global batch of a step, counted from 0 over all epochs."""
        plan, index = self._find(step)
        return self._shapes[plan.window.cuts.classes[index]]

    def __call__(self, step: int, rows: Integer[np.ndarray, " n"] | None = None) -> Batch:
        """Make rows of the global batch of a step.

        Args:
          step: the step, counted from 0 over all epochs.
          rows: indices of the rows to make, ascending; None makes all. Rows beyond the end of the
            global batch are empty.
        """
        shape = self.shape(step)
        indices = np.arange(shape.rows) if rows is None else rows
        batches, begin = [], 0
        for examples, placement, end in self._placements(step, indices):
            part_rows = StepRows(step, indices[begin:end])
            batches.append(examples.batch(placement, shape._replace(rows=end - begin), part_rows))
            begin = end
        if len(batches) == 1:
            return batches[0]
        return jax.tree.map(lambda *arrays: np.concatenate(arrays), *batches)

    def placement(self, step: int) -> Placement:
        """Return the index, row and segment id of each example in the batch of a step.

        The corpus must be one part.
        """
        [(_, placement, _)] = self._placements(step, np.arange(self.shape(step).rows))
        return placement

    def _placements(
        self, step: int, indices: Integer[np.ndarray, " n"]
    ) -> list[tuple[Examples, Placement, int]]:
        """Select the examples for the rows `indices` of a step's global batch, part by part.

        Returns:
          For each part: its examples; their placement, with rows counted from 0; and the end of the
          part's rows in `indices`.
        """
        plan, index = self._find(step)
        window = plan.window
        batch_rows = plan.rows[:, slice(*window.cuts.starts[index : index + 2])]  # [2, rows]
        num_rows = batch_rows.shape[1]
        if len(window.portions.parts) == 1:
            filled_rows = np.flatnonzero(indices < num_rows)
            parts, positions = batch_rows[:, indices[filled_rows]]
            starts = [0, len(parts)]
        else:
            batch_rows = batch_rows[:, np.argsort(batch_rows[0], kind="stable")]
            # A batch with too few rows spreads them evenly, so each process has its share.
            max_rows = self._form.shapes[window.cuts.classes[index]].rows
            slots = np.arange(num_rows) * max_rows // num_rows
            filled_rows = np.flatnonzero(np.isin(indices, slots))
            parts, positions = batch_rows[:, np.searchsorted(slots, indices[filled_rows])]
            starts = [0, *(np.flatnonzero(np.diff(parts)) + 1).tolist(), len(parts)]
        # Empty rows between two parts belong to the first of them.
        bounds = [0, *filled_rows[starts[1:-1]].tolist(), len(indices)]
        selections = []
        for (start, stop), (begin, end) in zip(pairwise(starts), pairwise(bounds), strict=True):
            index = int(parts[start]) if len(parts) else 0
            part, copy = int(window.portions.parts[index]), int(window.portions.copies[index])
            examples, layout = self._open_part(part)
            layout_rows = self._order(plan.epoch, part, copy)[positions[start:stop]]
            placement = _members(layout, layout_rows, filled_rows[start:stop] - begin)
            selections.append((examples, placement, end))
        if not self._is_one_window and len(parts):
            self._read_ahead(plan.epoch, plan.number + 1, slice(int(parts[0]), int(parts[-1]) + 1))
        return selections

    def _read_ahead(self, epoch: int, index: int, part_slice: slice) -> None:
        """Open parts of a window of an epoch in a background thread, unless an earlier call did."""

        def open_all() -> None:
            windows = self._windows(epoch)
            window = windows[index] if index < len(windows) else self._windows(epoch + 1)[0]
            with suppress(UserError):  # the thread that uses the part raises the error again
                for part in window.portions.parts[part_slice].tolist():
                    self._open_part(part)

        with self._lock:
            is_new = self._last_prefetched < (epoch, index)
            self._last_prefetched = max(self._last_prefetched, (epoch, index))
        if is_new:
            threading.Thread(target=open_all, daemon=True, name="read ahead").start()

    def prefetch(
        self,
        start: int,
        stop: int,
        rows_of: Callable[[BatchShape], Integer[np.ndarray, " n"]] | None = None,
    ) -> Generator[Batch, None, None]:
        """Yield the batches of steps `start` to `stop - 1`, which background threads make.

        Args:
          rows_of: returns the indices of the rows to make for a shape; None makes all rows.
        """
        with needs_extra("train", "training"):
            import grain
        size = self._config.prefetch
        options = grain.ReadOptions(num_threads=min(2, size), prefetch_buffer_size=size)

        def make(step: int) -> Batch:
            return self(int(step), rows_of(self.shape(int(step))) if rows_of else None)

        # The iterator raises the errors of the threads, and closing it stops them.
        dataset = grain.MapDataset.range(start, stop).map(make)
        with closing(iter(dataset.to_iter_dataset(options))) as batches:
            yield from batches

    def _find(self, step: int) -> tuple["_Plan", int]:
        """Find the batch of a step.

        Returns:
          The plan of its window, and the batch's index in it.
        """
        if step < 0:
            raise ValueError(f"no batch {step}: steps count from 0")
        if self._is_one_window:
            epoch, epoch_step = divmod(step, self.steps_per_epoch)
        else:
            with self._lock:
                while (start := self._starts[-1]) <= step:
                    self._starts.append(start + self._windows(len(self._starts) - 1)[-1].end)
            epoch = bisect_right(self._starts, step) - 1
            epoch_step = step - self._starts[epoch]
        windows = self._windows(epoch)
        window_index = bisect_right(windows, epoch_step, key=lambda window: window.end)
        plan = self._plan(epoch, window_index)
        start = windows[window_index].end - len(plan.batches)
        return plan, int(plan.batches[epoch_step - start])

    def _make_windows(self, epoch: int) -> list["_Window"]:
        windows, num_batches = [], 0
        rng = _random_stream(self._seed, epoch + 1, _PART_ORDER)
        for portions in self.parts.windows(rng):
            start_rows = self._rows_before(portions.begin, portions.parts)
            end_rows = self._rows_before(portions.end, portions.parts)
            cuts = cut((end_rows - start_rows).sum(axis=0), self._form)
            num_batches += len(cuts.classes)
            windows.append(_Window(portions, start_rows, end_rows - start_rows, cuts, num_batches))
        return windows

    def _rows_before(
        self, shares: Num[np.ndarray, " n"], parts: Int[np.ndarray, " n"]
    ) -> Int64[np.ndarray, "n classes"]:
        """Count the rows of each class (batch shape) in the first share of each of some parts."""
        counts = self._counts[parts]  # [n, classes]
        # Parts and classes round at different fractions, so that their sum neither gains nor loses
        # rows. Multiples of the golden ratio are spread evenly between 0 and 1.
        flat_indices = parts[:, None] * counts.shape[1] + np.arange(counts.shape[1])
        rounding = (flat_indices + 0.5) * _GOLDEN_RATIO % 1
        return np.floor(shares[:, None] * counts + rounding).astype(np.int64)

    def _make_plan(self, epoch: int, window_index: int) -> "_Plan":
        window = self._windows(epoch)[window_index]
        parts, copies, *_ = window.portions
        # The windows of a mixture may begin with the same part.
        stream_index = 0 if self.parts.same_epochs else window_index
        rng = _row_stream(self._seed, epoch, int(parts[0]), int(copies[0]), stream_index)
        # `_make_order` draws the first numbers of this stream for the rows of the first part.
        rng.random_raw(int(self._counts[parts[0]].sum()), output=False)
        batch_order = shuffled_within(np.zeros(len(window.cuts.classes), np.uint8), rng)
        rows = _spread_rows(window, self._counts[parts], rng)
        return _Plan(epoch, window_index, window, rows, batch_order)

    def _make_order(self, epoch: int, part: int, copy: int) -> Int32[np.ndarray, " rows"]:
        """Return the rows of a part sorted by class (batch shape), in random order within a class.

        Args:
          copy: the index of the copy, if a mixture reads several.
        """
        _, layout = self._open_part(part)
        return shuffled_within(layout.classes, _row_stream(self._seed, epoch, part, copy))

    def _open(self, part: int) -> tuple[Examples, Layout]:
        examples = self.parts.open(part)
        seed, packing_part = self.parts.packing_key(self._seed, part)
        rng = _random_stream(seed, _PACKING, part=packing_part)
        return examples, self._form.lay_out(examples, rng)

    def _count_rows(self, part: int) -> tuple[Int[np.ndarray, " classes"], int]:
        _, layout = self._open_part(part)
        max_examples = int(np.diff(layout.starts).max())
        return np.bincount(layout.classes, minlength=len(self._form.shapes)), max_examples


def describe_corpus(batches: Batches) -> str:
    """Describe the corpus for the log: pairs read and skipped, steps, shapes and padding."""
    num_read, skipped, num_examples, *_ = batches.parts.content
    padding = [f"{fraction:.1%} of {side}" for side, fraction in batches.padding_waste.items()]
    summary = f"{num_read:,} pairs read, {num_examples:,} kept ({_reasons(skipped)})"
    if not skipped:
        summary = f"{num_read:,} documents read, in {num_examples:,} sequences"
    return (
        f"{summary}\n"
        f"{batches.steps_per_epoch:,} steps an epoch in {len(batches.shapes)} batch shapes; "
        f"padding {', '.join(padding)} positions"
    )


def _reasons(skipped: Mapping[str, int]) -> str:
    return "skipped: " + ", ".join(f"{n:,} {key.replace('_', ' ')}" for key, n in skipped.items())


class _Window(NamedTuple):
    """Parts that an epoch reads together, and whose rows it shuffles together."""

    portions: Portions
    """The portions of the parts, in the order of their rows in a batch."""
    start: Int64[np.ndarray, "parts classes"]
    """The number of rows of each class before the portion, in the part's random order."""
    counts: Int64[np.ndarray, "parts classes"]
    """The number of rows of each class in the portion."""
    cuts: Cuts
    """The indices that cut the rows, sorted by class, into batches."""
    end: int
    """The number of batches of the epoch up to the end of the window."""


class _Plan(NamedTuple):
    """The rows of each batch of a window of the corpus, and the order of the batches."""

    epoch: int
    number: int
    """The index of the window in the epoch."""
    window: _Window
    rows: Int32[np.ndarray, "2 rows"]
    """The rows of all batches: the index of the part in the window, and the position of the row in
    the part's random order."""
    batches: Int32[np.ndarray, " batches"]
    """The indices of the batches, in the order of the steps."""


def _spread_rows(
    window: _Window, totals: Int[np.ndarray, "parts classes"], rng: np.random.Philox
) -> Int32[np.ndarray, "2 rows"]:
    """Order the rows of a window, so that each batch has an even share of each part.

    Args:
      rng: draws an offset for each part.

    Returns:
      Two integers for each row, sorted by class and then by batch: the index of its part in the
      window, and its position in the part's random order.
    """
    # So every batch holds each part's rows side by side, in proportion to the part's share of the
    # class. Each process makes the same range of rows of every batch, and opens few parts.
    counts = window.counts
    num_parts, num_classes = counts.shape
    if num_parts == 1 and np.array_equal(counts, totals):
        positions = np.arange(counts.sum(), dtype=np.int32)
        return np.stack([np.zeros_like(positions), positions])
    sizes = counts.T.ravel()  # class by class, and part by part in a class
    offsets = np.tile(rng.random_raw(num_parts) / 2.0**64, num_classes)  # in [0, 1)
    ranks = ranges(np.zeros_like(sizes), sizes)  # of each row in its part and class
    keys = (ranks + np.repeat(offsets, sizes)) / np.repeat(sizes, sizes)  # [rows]
    permutation = np.lexsort((keys, np.repeat(np.arange(num_classes).repeat(num_parts), sizes)))
    parts = np.repeat(np.tile(np.arange(num_parts), num_classes), sizes)
    starts = np.cumsum(totals, axis=1) - totals + window.start  # [parts, classes]
    positions = ranges(starts.T.ravel(), sizes)
    return np.stack([parts[permutation], positions[permutation]]).astype(np.int32)


def _members(
    layout: Layout, layout_rows: Int32[np.ndarray, " rows"], rows: Integer[np.ndarray, " rows"]
) -> Placement:
    """Return the row and segment of each example in a batch.

    The examples of row `layout_rows[i]` of the layout go to batch row `rows[i]`, in order.
    """
    starts = layout.starts[layout_rows]
    counts = layout.starts[layout_rows + 1] - starts  # examples of each row
    return Placement(
        layout.members[ranges(starts, counts)],
        np.repeat(rows, counts),
        ranges(np.ones_like(starts), counts),
    )


def _row_stream(seed: int, epoch: int, part: int, copy: int, window: int = 0) -> np.random.Philox:
    kind = copy if copy < _PART_ORDER else copy + 1
    return _random_stream(seed, epoch + 1, kind, part=part, window=window)


def _random_stream(
    seed: int, stream: int, kind: int = 0, *, part: int = 0, window: int = 0
) -> np.random.Philox:
    """Return a random stream, identical in every version of NumPy; all arguments change it."""
    key = np.array([seed, stream], np.uint64)
    return np.random.Philox(key=key, counter=[0, window, kind, part])
