"""Manage a group of rows of a search: the sentence in each row, and the arrays of all rows."""

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

    `launch` returns before the device has computed; `collect` waits for it.

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

    def resize(self, sizes: programs.Sizes) -> None:
        """Change the sizes of the arrays, without cutting a live row."""
        if sizes == self.sizes:
            return
        self._work = programs.resize_work(self._search.model, self._search.mesh, sizes, self._work)
        self.sizes = sizes

    def launch(self, arrivals: Sequence[tuple[int, Sentence]], max_live: int) -> programs.Progress:
        """Admit sentences and advance the search until few sentences are live.

        Args:
          arrivals: keys and sentences, at most `num_free` and at most `sizes.max_arrivals`.
          max_live: the search stops once at most this many sentences are live.
        """
        free_rows = [row for row in range(self.sizes.rows) if row not in self.live]
        rows = free_rows[: len(arrivals)]
        self.live |= dict(zip(rows, arrivals, strict=True))
        arrays = self._arrival_arrays(rows, [sentence for _, sentence in arrivals])
        with _launch_lock:
            self._work, progress = programs.proceed(
                self._search, self._inputs, self._work, arrays, np.int32(max_live)
            )
        return progress

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

    def _arrival_arrays(
        self, rows: Sequence[int], sentences: Sequence[Sentence]
    ) -> programs.Arrivals:
        sizes, model, mesh = self.sizes, self._search.model, self._search.mesh
        count = sizes.max_arrivals
        arrays: Any = np.full((3, count), [[sizes.rows], [0], [0]], np.int32)
        row_indices, limits, numbers = arrays
        row_indices[: len(rows)] = rows
        limits[: len(rows)] = [sentence.limit for sentence in sentences]
        numbers[: len(rows)] = [sentence.number for sentence in sentences]
        prefixes: Any = None
        if sizes.prefix_length:
            tokens = [sentence.prefix for sentence in sentences]
            prefixes = padded(tokens, count, sizes.prefix_length, fill=-1)
        sources = [sentence.source for sentence in sentences]
        inputs = model.sources.padded(sources, count, sizes.source_length)
        inputs = jax.tree.map(lambda x: put_rows(x, mesh), inputs)
        return programs.Arrivals(row_indices, inputs, limits, numbers, prefixes)
