"""Manage a group of rows of a search: the sentence in each row, and the arrays of all rows.

`decoding.scheduler` fills groups from a list of sentences; `decoding.open_search` fills them with
sentences that arrive at any time.
"""

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from t2t_jax.batch import padded
from t2t_jax.decoding import programs
from t2t_jax.decoding.search.hypotheses import SearchResult
from t2t_jax.modules.decoding_model import Source
from t2t_jax.parallel.mesh import on_host, put_rows

_launch_lock = threading.Lock()  # otherwise two threads could compile the same program at once


class Sentence(NamedTuple):
    """A sentence to decode."""

    source: Source
    """The source; for text, its token ids with the end-of-sentence token."""
    limit: int
    """The most tokens to generate, including the end-of-sentence token."""
    number: int
    """Line number; with the seed, it determines the samples."""
    prefix: Sequence[int] = ()
    """Token ids with which the output must begin."""

    @property
    def length(self) -> int:
        """Return the length of the source or of the prefix, whichever is longer."""
        return max(len(self.source), len(self.prefix))


class RowGroup:
    """Rows of a search; when a sentence has ended, another sentence takes its row.

    The scheduler calls `launch`; an open search calls `admit` and `advance`. `collect` waits for
    the device.

    Attributes:
      live: the live sentences and their keys, which the caller chooses, by row.
    """

    def __init__(
        self, search: programs.Search, inputs: programs.SearchInputs, sizes: programs.Sizes
    ) -> None:
        """Create a group of free rows."""
        self.sizes, self._search, self._inputs = sizes, search, inputs
        self.live: dict[int, tuple[int, Sentence]] = {}
        self._positions: Any = None  # of each row, at the last `collect`
        self._best: Any = None  # the hypotheses of each row, at the last `collect`
        self._released: set[int] = set()  # rows whose sentence the device still searches for
        self._work = programs.begin_work(search, sizes, inputs)

    @property
    def num_free(self) -> int:
        """Return the number of rows without a sentence."""
        return self.sizes.rows - len(self.live)

    @property
    def longest_source(self) -> int:
        """Return the length of the longest live sentence."""
        return max((sentence.length for _, sentence in self.live.values()), default=0)

    @property
    def longest_output(self) -> int:
        """Return the length of the longest live output."""
        return max((int(self._positions[row]) for row in self.live), default=0)

    @property
    def min_rows(self) -> int:
        """Return the fewest rows to which the group can be resized."""
        return max([*self.live, *self._released], default=-1) + 1

    def resize(self, sizes: programs.Sizes) -> None:
        """Change the sizes of the arrays, to at least `min_rows` rows."""
        if sizes == self.sizes:
            return
        self._work = programs.resize_work(self._search.model, self._search.mesh, sizes, self._work)
        self.sizes = sizes

    def launch(self, arrivals: Sequence[tuple[int, Sentence]], max_live: int) -> programs.Progress:
        """Admit sentences and advance the search until few sentences are live.

        Args:
          arrivals: keys and sentences, at most `num_free` and at most `sizes.max_arrivals`.
          max_live: the search stops once at most this many sentences are live.

        Returns:
          The state of the rows, for `collect`.
        """
        rows, sentences = self._assign(arrivals)
        arrays = self._arrival_arrays(rows, sentences, self.sizes.max_arrivals)
        sources = self._padded(sentences, self.sizes.max_arrivals, self.sizes.source_length)
        return self._proceed(arrays._replace(inputs=sources), max_live, None)

    def advance(self, max_live: int, max_steps: int) -> programs.Progress:
        """Search for `max_steps` steps, or until at most `max_live` sentences are unfinished."""
        return self._proceed(None, max_live, np.int32(max_steps))

    def admit(
        self,
        arrivals: Sequence[tuple[int, Sentence]],
        batch_sizes: Sequence[int],
        lengths: Sequence[int],
    ) -> None:
        """Admit sentences after encoding them in batches of similar length.

        Args:
          arrivals: keys and sentences, at most `num_free`.
          batch_sizes: sizes with compiled programs, ascending, as are the source `lengths`.
        """
        pairs = sorted(zip(*self._assign(arrivals), strict=True), key=lambda pair: pair[1].length)
        while pairs:
            length = next(n for n in lengths if n >= pairs[-1][1].length)
            next_shorter = max([n for n in lengths if n < length], default=-1)
            num_of_length = sum(sentence.length > next_shorter for _, sentence in pairs)
            batch_size = _batch_size(num_of_length, batch_sizes)
            batch = pairs[-min(num_of_length, batch_size) :]
            del pairs[-len(batch) :]
            rows, sentences = zip(*batch, strict=True)
            arrays = self._arrival_arrays(rows, sentences, batch_size)
            sources = self._padded(sentences, batch_size, length)
            search = self._search
            with _launch_lock:
                memory = programs.encode(search.model, self._inputs.params, sources)
                if length < self.sizes.source_length:
                    memory = programs.fit_memory(search.model, memory, self.sizes.source_length)
                self._work = programs.admit(search, self._inputs, self._work, memory, arrays)

    def collect(self, progress: programs.Progress) -> list[tuple[int, SearchResult]]:
        """Wait for the device, and remove the sentences that have ended.

        Returns:
          The key and the hypotheses `[num_best, t]` of each of these sentences.
        """
        is_searching, self._positions, self._best = on_host(progress)
        results, ended_rows = self._best, [row for row in self.live if not is_searching[row]]
        return [
            (self.live.pop(row)[0], jax.tree.map(lambda x, row=row: x[row], results))
            for row in sorted(ended_rows)
        ]

    def release(self, key: int) -> None:
        """Cancel the sentence with this key, and free its row."""
        (row,) = (row for row, (live_key, _) in self.live.items() if live_key == key)
        del self.live[row]
        self._released.add(row)

    def partial_outputs(self) -> list[list[int]]:
        """Return the tokens of each live sentence at the last `collect`, for beam size 1."""
        return [self._best.tokens[row, 0, : self._positions[row]].tolist() for row in self.live]

    def _proceed(
        self, arrivals: programs.Arrivals | None, max_live: int, max_steps: np.int32 | None
    ) -> programs.Progress:
        with _launch_lock:
            self._work, progress = programs.proceed(
                self._search, self._inputs, self._work, arrivals, np.int32(max_live), max_steps
            )
        return progress

    def _assign(self, arrivals: Sequence[tuple[int, Sentence]]) -> tuple[list[int], list[Sentence]]:
        """Assign free rows to new sentences, and an empty sentence to each released row."""
        free_rows = [row for row in range(self.sizes.rows) if row not in self.live]
        assigned_rows = free_rows[: len(arrivals)]
        self.live |= dict(zip(assigned_rows, arrivals, strict=True))
        released = sorted(self._released.difference(assigned_rows))
        self._released.clear()
        # The limit 0 ends the search of an empty sentence at once.
        empty_sentences = [Sentence(self._search.model.sources.blank(0), 0, 0)] * len(released)
        return assigned_rows + released, [sentence for _, sentence in arrivals] + empty_sentences

    def _arrival_arrays(
        self, rows: Sequence[int], sentences: Sequence[Sentence], batch_size: int
    ) -> programs.Arrivals:
        sizes = self.sizes
        arrays: Any = np.full((3, batch_size), [[sizes.rows], [0], [0]], np.int32)
        row_indices, limits, numbers = arrays
        row_indices[: len(rows)] = rows
        limits[: len(rows)] = [sentence.limit for sentence in sentences]
        numbers[: len(rows)] = [sentence.number for sentence in sentences]
        prefixes: Any = None
        if sizes.prefix_length:
            tokens = [sentence.prefix for sentence in sentences]
            prefixes = padded(tokens, batch_size, sizes.prefix_length, fill=-1)
        return programs.Arrivals(row_indices, None, limits, numbers, prefixes)

    def _padded(self, sentences: Sequence[Sentence], batch_size: int, length: int) -> Any:
        model, mesh = self._search.model, self._search.mesh
        arrays = model.sources.padded([s.source for s in sentences], batch_size, length)
        return jax.tree.map(lambda x: put_rows(x, mesh), arrays)


def _batch_size(count: int, batch_sizes: Sequence[int]) -> int:
    """Choose the cheapest batch size, of an ascending list, for the next of `count` sentences."""
    padded_size = next((n for n in batch_sizes if n >= count), batch_sizes[-1])
    full_sizes = [n for n in batch_sizes if n <= count]
    # Several full batches are cheaper than one batch that is mostly padding.
    return full_sizes[-1] if full_sizes and 2 * count < padded_size else padded_size
