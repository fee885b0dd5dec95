"""Training batches by step: `batches(step)` needs only the corpus, the config and the seed.

An epoch reads the parts of a corpus in random order, a window of some parts at a time. In a window,
the rows of each class (`data.layout`) are shuffled and cut into batches, and the batches are
shuffled. A corpus in memory is one part, and so one window.

In a window of several parts, every batch has rows of a part in proportion to the part's share of
the class, up to rounding, side by side. So a process, which makes the same range of rows of every
batch, opens its share of the parts, and few others. A window of a mixture (`data.mixing`) may read
a portion of a part's rows; a later window continues in the same random order.
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
from jaxtyping import Float, Int, Int32, Int64, Integer

from t2t_jax.batch import Batch
from t2t_jax.config import DataConfig
from t2t_jax.data.layout import Cuts, Layout, cut, row_form, shuffled_within
from t2t_jax.data.parts import OnePart, Parts, Portions
from t2t_jax.data.rows import BatchShape, Chosen, Examples, StepRows, ranges
from t2t_jax.errors import UserError, needs_extra
from t2t_jax.system.memo import Memo

_PACKING = 0  # the random stream of the packing; epoch e has stream e + 1
_GOLDEN = 0.6180339887498949
_OF_PARTS = 1  # apart from the rows of each part: the order of the parts


class Batches:
    """The training batches of a tokenised split, by step: `batches(step) -> Batch`.

    In an epoch every pair occurs once. Epoch e of a seed is the same on every host and after every
    restart. Several threads may ask for batches at once.

    Attributes:
      parts: the examples.
      steps_per_epoch: the number of batches in the first epoch. With several windows, other epochs
        may have a few more or less.
    """

    def __init__(
        self,
        examples: Examples | Parts,
        config: DataConfig,
        seed: int,
        rows_of: Callable[[BatchShape], int] = lambda shape: shape.rows,
    ) -> None:
        """Count the rows, whose order the seed decides; no token is read yet.

        Args:
          rows_of: returns the rows that the devices compute for a batch of a shape. Rows beyond
            those of the batch are empty, and count as padding.
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
        # Two windows, because prefetching threads work on both sides of an end.
        self._opened = Memo(self._open, 2 * self.parts.window)
        self._order = Memo(self._make_order, 2 * self.parts.window)
        self._plan = Memo(self._make_plan, 2)
        self._windows = Memo(self._make_windows, 2)
        self._lock = threading.Lock()  # of the two attributes below
        self._ahead = 0, 0
        counts, most = self.parts.row_counts(self._form, self._count_rows)
        self._repeats = self.parts.repeats
        self._counts = counts * self._repeats[:, None]  # in a random order of each part
        self._shapes = [self.parts.shape(shape, most) for shape in self._form.shapes]
        self.steps_per_epoch = self._windows(0)[-1].end
        self._starts = [0, self.steps_per_epoch]

    @property
    def _is_one_window(self) -> bool:
        return self.parts.same_epochs and len(self.parts) <= self.parts.window

    @property
    def shapes(self) -> set[BatchShape]:
        """Return the shapes of global batches that occur; code is compiled only for these."""
        if not self._is_one_window:  # which of them occur depends on the epoch
            return set(self._shapes)
        return {self._shapes[number] for number in np.unique(self._windows(0)[0].cuts.classes)}

    @property
    def padding_waste(self) -> dict[str, float]:
        """Return the fraction of an epoch's `source` and `target` positions that hold padding."""
        counts = self._batch_counts
        rows, *lengths = np.array(self._shapes).T
        computed = counts * [self._rows_of(shape) for shape in self._shapes]
        laid_out = np.array(self._form.shapes).T[1:]
        content, waste = self.parts.content, {}
        tokens = {"source": content.source.total, "target": content.target.total}
        for (name, total), own, whole in zip(tokens.items(), lengths, laid_out, strict=True):
            room = int(counts @ (rows * own))
            # A text of one language has no sources, and of a masked text only a part is predicted.
            if total and (total <= room or np.array_equal(own, whole)):
                # The tokens are a mean over epochs. The first epoch may have fewer rows and no
                # padding, so the waste could be negative.
                waste[name] = max(0.0, 1 - total / int(computed @ own))
        return waste

    @property
    def _batch_counts(self) -> Int[np.ndarray, " classes"]:
        """Return the number of batches of each class in the first epoch."""
        classes = np.concatenate([window.cuts.classes for window in self._windows(0)])
        return np.bincount(classes, minlength=len(self._shapes))

    def empty_rows(self, config: DataConfig | None = None) -> float:
        """Return the share of positions in rows that no batch has, as devices need equal parts.

        Args:
          config: other bounds of a step, to compare; None is those of the batches.
        """
        form = row_form(self.parts.content, config) if config else self._form
        rows, *lengths = np.array(self._form.shapes).T
        positions = self._batch_counts * rows * np.max(lengths, axis=0)
        computed = positions @ [self._rows_of(shape) / shape.rows for shape in form.shapes]
        return float(1 - positions.sum() / computed)

    def bounds_with_few_empty_rows(self, most: float) -> tuple[int, int] | None:
        """Return the source and target tokens of a step that leave at most a share of rows empty.

        They are the nearest, up to four times those of the config; None if there are none.
        """
        rows, source, target = self._form.shapes[-1]
        unit = self._rows_of(BatchShape(1, source, target))
        counts = range(unit, 4 * max(rows, unit) + 1, unit)
        for count in sorted(counts, key=lambda count: abs(count - rows)):
            bounds = count * (source or target), count * target
            config = replace(
                self._config, source_tokens_per_step=bounds[0], target_tokens_per_step=bounds[1]
            )
            if self.empty_rows(config) <= most:
                return bounds
        return None

    def shape(self, step: int) -> BatchShape:
        """Return the shape of the global batch of a step, which counts from 0 over all epochs."""
        plan, number = self._find(step)
        return self._shapes[plan.window.cuts.classes[number]]

    def __call__(self, step: int, rows: Integer[np.ndarray, " n"] | None = None) -> Batch:
        """Return rows of the global batch of a step.

        Args:
          step: counts from 0 over all epochs.
          rows: indices of the rows to make, in ascending order; rows beyond the end of the global
            batch are empty. None makes the whole global batch.
        """
        shape = self.shape(step)
        numbers = np.arange(shape.rows) if rows is None else rows
        made, begin = [], 0
        for examples, chosen, end in self._chosen(step, numbers):
            own = numbers[begin:end]
            of_rows = shape._replace(rows=len(own))
            made.append(examples.batch(chosen, of_rows, StepRows(step, own)))
            begin = end
        return made[0] if len(made) == 1 else jax.tree.map(lambda *x: np.concatenate(x), *made)

    def chosen(self, step: int) -> Chosen:
        """Return the examples in the rows of a step's global batch; the corpus is one part."""
        [(_, chosen, _)] = self._chosen(step, np.arange(self.shape(step).rows))
        return chosen

    def _chosen(
        self, step: int, numbers: Integer[np.ndarray, " n"]
    ) -> list[tuple[Examples, Chosen, int]]:
        """Return the examples in some rows of a step's global batch, part by part.

        Returns:
          For each part: its examples; the chosen ones, in rows that count from 0; and the index in
          `numbers` where its rows end.
        """
        plan, number = self._find(step)
        window = plan.window
        there = plan.rows[:, slice(*window.cuts.starts[number : number + 2])]
        if len(window.portions.parts) == 1:
            rows = np.flatnonzero(numbers < there.shape[1])
            own, places = there[:, numbers[rows]]
            first = [0, len(own)]
        else:  # a batch that is short of rows has them at even distances
            there = there[:, np.argsort(there[0], kind="stable")]
            room = self._form.shapes[window.cuts.classes[number]].rows
            at = np.arange(there.shape[1]) * room // there.shape[1]
            rows = np.flatnonzero(np.isin(numbers, at))
            own, places = there[:, np.searchsorted(at, numbers[rows])]
            first = [0, *(np.flatnonzero(np.diff(own)) + 1).tolist(), len(own)]
        begins = [0, *rows[first[1:-1]].tolist(), len(numbers)]
        found = []
        for (one, other), (begin, end) in zip(pairwise(first), pairwise(begins), strict=True):
            index = int(own[one]) if len(own) else 0
            examples, layout = self._opened(int(window.portions.parts[index]))
            occupied = self._occupied(window.portions, index, places[one:other])
            chosen = _members(layout, occupied, rows[one:other] - begin)
            found.append((examples, chosen, end))
        if not self._is_one_window and len(own):
            self._read_ahead(plan.epoch, plan.number + 1, slice(int(own[0]), int(own[-1]) + 1))
        return found

    def _occupied(
        self, portions: Portions, index: int, places: Int32[np.ndarray, " rows"]
    ) -> Int32[np.ndarray, " rows"]:
        """Return the rows of a part's layout at places in its random orders, one after another."""
        part, copy = int(portions.parts[index]), int(portions.copies[index])
        first = int(portions.begin[index])
        orders, places = np.divmod(places, self._counts[part].sum(dtype=np.int32))
        occupied = np.empty_like(places)
        for number in np.unique(orders).tolist():
            is_own = orders == number
            occupied[is_own] = self._order(first + number, part, copy)[places[is_own]]
        return occupied

    def _read_ahead(self, epoch: int, number: int, share: slice) -> None:
        """Open a share of the parts of the next window in the background, once."""

        def open_all() -> None:
            windows = self._windows(epoch)
            after = windows[number] if number < len(windows) else self._windows(epoch + 1)[0]
            with suppress(UserError):  # it is raised where the part is used
                for part in after.portions.parts[share].tolist():
                    self._opened(part)

        with self._lock:
            is_new = self._ahead < (epoch, number)
            self._ahead = max(self._ahead, (epoch, number))
        if is_new:
            threading.Thread(target=open_all, daemon=True, name="read ahead").start()

    def prefetch(
        self,
        start: int,
        stop: int,
        rows_of: Callable[[BatchShape], Integer[np.ndarray, " n"]] | None = None,
    ) -> Generator[Batch, None, None]:
        """Yield the batches of steps `start` to `stop - 1` in order, made in the background.

        This raises errors of the background. Closing the iterator stops the work.

        Args:
          rows_of: returns the indices of the rows to make for a shape; None makes all rows.
        """
        with needs_extra("train", "training"):
            import grain
        ahead = self._config.prefetch
        options = grain.ReadOptions(num_threads=min(2, ahead), prefetch_buffer_size=ahead)

        def make(step: int) -> Batch:
            return self(int(step), rows_of(self.shape(int(step))) if rows_of else None)

        made = grain.MapDataset.range(start, stop).map(make)
        with closing(iter(made.to_iter_dataset(options))) as batches:
            yield from batches

    def _find(self, step: int) -> tuple["_Plan", int]:
        """Return the plan of a step's window, and the number of the step's batch in the window."""
        if step < 0:
            raise ValueError(f"no batch {step}: steps count from 0")
        if self._is_one_window:
            epoch, index = divmod(step, self.steps_per_epoch)
        else:
            with self._lock:
                while (start := self._starts[-1]) <= step:
                    self._starts.append(start + self._windows(len(self._starts) - 1)[-1].end)
            epoch = bisect_right(self._starts, step) - 1
            index = step - self._starts[epoch]
        windows = self._windows(epoch)
        number = bisect_right(windows, index, key=lambda window: window.end)
        plan = self._plan(epoch, number)
        before = windows[number].end - len(plan.batches)
        return plan, int(plan.batches[index - before])

    def _make_windows(self, epoch: int) -> list["_Window"]:
        windows, end = [], 0
        rng = _random_stream(self._seed, epoch + 1, _OF_PARTS)
        for portions in self.parts.windows(epoch, rng):
            earlier = np.floor(portions.begin)
            start = self._rows_before(portions.begin - earlier, portions.parts)
            stop = self._rows_before(portions.end - earlier, portions.parts)
            cuts = cut((stop - start).sum(axis=0), self._form)
            end += len(cuts.classes)
            windows.append(_Window(portions, start, stop - start, cuts, end))
        return windows

    def _rows_before(
        self, times: Float[np.ndarray, " n"], parts: Int[np.ndarray, " n"]
    ) -> Int64[np.ndarray, "n classes"]:
        """Return the rows of each class that are read before a time.

        Args:
          times: how often each part was read; 1.5 is once and half of another random order.
        """
        counts = self._counts[parts]
        # Parts and classes round at different fractions (multiples of the golden ratio, which are
        # spread evenly), so that all together neither gain nor lose rows.
        numbers = parts[:, None] * counts.shape[1] + np.arange(counts.shape[1])
        rounding = (numbers + 0.5) * _GOLDEN % 1
        orders = np.floor(times)[:, None]
        in_order = np.floor((times[:, None] - orders) * counts + rounding)
        return orders.astype(np.int64) * counts + in_order.astype(np.int64)

    def _make_plan(self, epoch: int, number: int) -> "_Plan":
        window = self._windows(epoch)[number]
        parts, copies, *_ = window.portions
        # The windows of a mixture may begin with the same part.
        stream = 0 if self.parts.same_epochs else number
        rng = _row_stream(self._seed, epoch, int(parts[0]), int(copies[0]), stream)
        rng.random_raw(int(self._counts[parts[0]].sum()), output=False)  # of the rows of this part
        batches = shuffled_within(np.zeros(len(window.cuts.classes), np.uint8), rng)
        rows = _dealt(window, self._counts[parts], rng)
        return _Plan(epoch, number, window, rows, batches)

    def _make_order(self, epoch: int, part: int, copy: int) -> Int32[np.ndarray, " rows"]:
        """Return the rows of a part in order of class, shuffled within each class.

        Args:
          epoch: the index of the random order; without a mixture, the epoch.
          copy: the number of the copy, if an epoch reads several copies of the part.
        """
        _, layout = self._opened(part)
        classes = np.tile(layout.classes, self._repeats[part])
        order = shuffled_within(classes, _row_stream(self._seed, epoch, part, copy))
        return order % np.int32(len(layout.classes))

    def _open(self, part: int) -> tuple[Examples, Layout]:
        examples = self.parts.open(part)
        seed, number = self.parts.packing_key(self._seed, part)
        rng = _random_stream(seed, _PACKING, part=number)
        return examples, self._form.lay_out(examples.source_lengths, examples.target_lengths, rng)

    def _count_rows(self, part: int) -> tuple[Int[np.ndarray, " classes"], int]:
        _, layout = self._opened(part)
        most = int(np.diff(layout.starts).max())
        return np.bincount(layout.classes, minlength=len(self._form.shapes)), most


def describe_corpus(batches: Batches) -> str:
    """Return two lines for the log: the pairs kept and skipped, and the share of padding."""
    read, skipped, kept, *_ = batches.parts.content
    waste = [f"{share:.1%} of {side}" for side, share in batches.padding_waste.items()]
    what = f"{read:,} pairs read, {kept:,} kept ({_reasons(skipped)})"
    if not skipped:
        what = f"{read:,} documents read, in {kept:,} sequences"
    return (
        f"{what}\n"
        f"{batches.steps_per_epoch:,} steps an epoch in {len(batches.shapes)} batch shapes; "
        f"padding {', '.join(waste)} positions"
    )


def _reasons(skipped: Mapping[str, int]) -> str:
    return "skipped: " + ", ".join(f"{n:,} {name.replace('_', ' ')}" for name, n in skipped.items())


class _Window(NamedTuple):
    """Some parts, in the order of an epoch, whose rows are mixed."""

    portions: Portions
    """The portions of the parts, in the order of their rows in a batch."""
    start: Int64[np.ndarray, "parts classes"]
    """The number of rows of each class before the portion, in the random order of the part."""
    counts: Int64[np.ndarray, "parts classes"]
    """The number of rows of each class in the portion."""
    cuts: Cuts
    """The places where their rows, sorted by class, are cut into batches."""
    end: int
    """The number of the epoch's batches up to the end of the window."""


class _Plan(NamedTuple):
    """The plan of a window: the rows of each batch, and the order of the batches."""

    epoch: int
    number: int
    """The number of the window in the epoch."""
    window: _Window
    rows: Int32[np.ndarray, "2 rows"]
    """The rows of all batches: the index of the part in the window, and the row's position in the
    part's random orders. Positions count from the window's first order."""
    batches: Int32[np.ndarray, " batches"]


def _dealt(
    window: _Window, totals: Int[np.ndarray, "parts classes"], rng: np.random.Philox
) -> Int32[np.ndarray, "2 rows"]:
    """Deal out the rows of several parts, each part's evenly over all rows of a class.

    The position of a part's rows between the others is random.

    Args:
      totals: the number of rows of each class in a random order of each part.

    Returns:
      `_Plan.rows`, in order of class, and within a class in the order of the batches.
    """
    counts, before = window.counts, np.cumsum(totals, axis=1) - totals
    num_parts, num_classes = counts.shape
    if num_parts == 1 and np.array_equal(counts, totals) and not window.start.any():
        places = np.arange(counts.sum(), dtype=np.int32)
        return np.stack([np.zeros_like(places), places])
    each = counts.T.ravel()  # class by class, and part by part in a class
    offsets = np.tile(rng.random_raw(num_parts) / 2.0**64, num_classes)
    ranks = ranges(np.zeros_like(each), each)
    position = (ranks + np.repeat(offsets, each)) / np.repeat(each, each)
    order = np.lexsort((position, np.repeat(np.arange(num_classes).repeat(num_parts), each)))
    parts = np.repeat(np.tile(np.arange(num_parts), num_classes), each)
    in_class = ranks + np.repeat(window.start.T.ravel(), each)
    orders, in_class = np.divmod(in_class, np.repeat(totals.T.ravel(), each))
    places = orders * totals.sum(axis=1)[parts] + np.repeat(before.T.ravel(), each) + in_class
    return np.stack([parts[order], places[order]]).astype(np.int32)


def _members(
    layout: Layout, occupied: Int32[np.ndarray, " rows"], rows: Integer[np.ndarray, " rows"]
) -> Chosen:
    """Return the examples of some rows of a layout, which become these rows of a batch."""
    first, end = layout.starts[occupied], layout.starts[occupied + 1]
    return Chosen(
        layout.members[ranges(first, end - first)],
        np.repeat(rows, end - first),
        ranges(np.ones_like(first), end - first),
    )


def _row_stream(seed: int, epoch: int, part: int, copy: int, window: int = 0) -> np.random.Philox:
    kind = copy if copy < _OF_PARTS else copy + 1
    return _random_stream(seed, epoch + 1, kind, part=part, window=window)


def _random_stream(
    seed: int, stream: int, kind: int = 0, *, part: int = 0, window: int = 0
) -> np.random.Philox:
    """Return a stream of raw bits. Only these are the same in every version of NumPy."""
    key = np.array([seed, stream], np.uint64)
    return np.random.Philox(key=key, counter=[0, window, kind, part])
