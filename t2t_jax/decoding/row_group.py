"""A group of rows of a search: the sentence in each row and the arrays of all rows.

`decoding.scheduler` fills groups from a fixed list of sentences; `decoding.open_search` fills them
with sentences that come at any time.
"""

import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from t2t_jax.batch import padded
from t2t_jax.decoding import programs
from t2t_jax.decoding.search.hypotheses import SearchResult
from t2t_jax.modules.decoding_model import Source
from t2t_jax.parallel.mesh import on_host, put_rows

_launching = threading.Lock()  # otherwise two threads could compile the same program at once


class Sentence(NamedTuple):
    """A sentence to decode."""

    source: Source
    """The source; for a text, its subwords with the end of sentence."""
    limit: int
    """The most tokens to generate, end of sentence included."""
    number: int
    """Number of the line; it determines with the seed the sampled tokens."""
    prefix: Sequence[int] = ()
    """Subwords with which the output must begin."""

    @property
    def length(self) -> int:
        """Return the number of tokens of the source or of the prefix, whichever is longer."""
        return max(len(self.source), len(self.prefix))


class RowGroup:
    """Rows of a search; when a sentence has ended, another one takes its row.

    Callers identify sentences by keys. `launch` calls the compiled program, perhaps in another
    thread, and `collect` waits for it. An open search calls `let_in` and `search_on` instead.

    Attributes:
      held: the live sentences with their keys, by row.
    """

    def __init__(
        self, search: programs.Search, inputs: programs.SearchInputs, sizes: programs.Sizes
    ) -> None:
        """Make a group of free rows; see `begin_work`."""
        self.sizes, self._search, self._inputs = sizes, search, inputs
        self.held: dict[int, tuple[int, Sentence]] = {}
        self._positions: Any = None  # of all rows, when they were last collected
        self._best: Any = None  # the hypotheses of all rows, at that time
        self._released: set[int] = set()  # rows whose sentence the device still searches for
        self._work = programs.begin_work(search, sizes, inputs)

    @property
    def num_free(self) -> int:
        """Return the number of rows without a sentence."""
        return self.sizes.rows - len(self.held)

    @property
    def longest(self) -> int:
        """Return the length of the longest live sentence."""
        return max((sentence.length for _, sentence in self.held.values()), default=0)

    @property
    def farthest(self) -> int:
        """Return the position of the longest live output."""
        return max((int(self._positions[row]) for row in self.held), default=0)

    @property
    def last_row(self) -> int:
        """Return the number of rows up to the last one that is taken or was just released."""
        return max([*self.held, *self._released], default=-1) + 1

    def resize(self, sizes: programs.Sizes) -> None:
        """Change the sizes of the arrays; there have to be at least `last_row` rows."""
        if sizes == self.sizes:
            return
        self._work = programs.resize_work(self._search.model, self._search.mesh, sizes, self._work)
        self.sizes = sizes

    def launch(self, arrivals: Sequence[tuple[int, Sentence]], leave: int) -> programs.Progress:
        """Let sentences in and continue the search.

        Args:
          arrivals: sentences with their keys, at most `num_free` and at most `sizes.arrivals`.
          leave: the number of live sentences at which the program stops.

        Returns:
          The state of the rows, which the device may still be computing.
        """
        rows, sentences = self._taken(arrivals)
        coming = self._arrivals(rows, sentences, self.sizes.arrivals)
        sources = self._sources(sentences, self.sizes.arrivals, self.sizes.source_length)
        return self._proceed(coming._replace(inputs=sources), leave, None)

    def search_on(self, leave: int, most_steps: int) -> programs.Progress:
        """Continue the search for at most `most_steps` positions; see `launch`."""
        return self._proceed(None, leave, np.int32(most_steps))

    def let_in(
        self,
        arrivals: Sequence[tuple[int, Sentence]],
        places: Sequence[int],
        lengths: Sequence[int],
    ) -> None:
        """Let sentences in, encoded in batches of similar length.

        Args:
          arrivals: sentences with their keys, at most `num_free`.
          places: batch sizes with compiled programs, smallest first.
          lengths: lengths of sources with compiled programs, shortest first.
        """
        waiting = sorted(zip(*self._taken(arrivals), strict=True), key=lambda one: one[1].length)
        while waiting:
            length = next(n for n in lengths if n >= waiting[-1][1].length)
            shorter = max([n for n in lengths if n < length], default=-1)
            alike = sum(sentence.length > shorter for _, sentence in waiting)
            several = _several(alike, places)
            chosen = waiting[-min(alike, several) :]
            del waiting[-len(chosen) :]
            rows, sentences = zip(*chosen, strict=True)
            coming = self._arrivals(rows, sentences, several)
            sources = self._sources(sentences, several, length)
            search = self._search
            with _launching:
                memory = programs.encode(search.model, self._inputs.params, sources)
                if length < self.sizes.source_length:
                    memory = programs.fit_memory(search.model, memory, self.sizes.source_length)
                self._work = programs.let_in(search, self._inputs, self._work, memory, coming)

    def collect(self, progress: programs.Progress) -> list[tuple[int, SearchResult]]:
        """Wait for the device; remove and return the sentences that have ended.

        Returns:
          The keys of these sentences, with their hypotheses `[num_best, t]`.
        """
        searching, self._positions, self._best = on_host(progress)
        best, ended = self._best, [row for row in self.held if not searching[row]]
        return [
            (self.held.pop(row)[0], jax.tree.map(lambda x, row=row: x[row], best))
            for row in sorted(ended)
        ]

    def release(self, key: int) -> None:
        """Give up a sentence; its row is free for the next `launch`."""
        (row,) = (row for row, (other, _) in self.held.items() if other == key)
        del self.held[row]
        self._released.add(row)

    def so_far(self) -> Iterator[tuple[int, list[int]]]:
        """Yield the key and the tokens of each sentence at the last `collect`, for beam size 1."""
        for row, (key, sentence) in self.held.items():
            length = min(int(self._positions[row]), sentence.limit)
            yield key, self._best.tokens[row, 0, :length].tolist()

    def _proceed(
        self, arrivals: programs.Arrivals | None, leave: int, most_steps: np.int32 | None
    ) -> programs.Progress:
        with _launching:
            self._work, progress = programs.proceed(
                self._search, self._inputs, self._work, arrivals, np.int32(leave), most_steps
            )
        return progress

    def _taken(self, arrivals: Sequence[tuple[int, Sentence]]) -> tuple[list[int], list[Sentence]]:
        """Assign rows to new sentences, and an empty sentence to each released row."""
        free = [row for row in range(self.sizes.rows) if row not in self.held]
        rows = free[: len(arrivals)]
        self.held |= dict(zip(rows, arrivals, strict=True))
        stopped = sorted(self._released.difference(rows))
        self._released.clear()
        nothing = Sentence(self._search.model.sources.blank(0), 0, 0)  # its search ends at once
        return rows + stopped, [one for _, one in arrivals] + [nothing] * len(stopped)

    def _arrivals(
        self, rows: Sequence[int], sentences: Sequence[Sentence], places: int
    ) -> programs.Arrivals:
        """Make the arrays of new sentences, without their sources."""
        sizes = self.sizes
        arrays: Any = np.full((3, places), [[sizes.rows], [0], [0]], np.int32)
        taken, limits, numbers = arrays
        taken[: len(rows)] = rows
        limits[: len(rows)] = [sentence.limit for sentence in sentences]
        numbers[: len(rows)] = [sentence.number for sentence in sentences]
        prefixes: Any = None
        if sizes.prefix:
            given = [sentence.prefix for sentence in sentences]
            prefixes = padded(given, places, sizes.prefix, fill=-1)
        return programs.Arrivals(taken, None, limits, numbers, prefixes)

    def _sources(self, sentences: Sequence[Sentence], places: int, length: int) -> Any:
        model, mesh = self._search.model, self._search.mesh
        arrays = model.sources.padded([sentence.source for sentence in sentences], places, length)
        return jax.tree.map(lambda x: put_rows(x, mesh), arrays)


def _several(number: int, places: Sequence[int]) -> int:
    """Choose the cheapest batch size for the next `number` sentences."""
    enough = next((n for n in places if n >= number), places[-1])
    fewer = [n for n in places if n <= number]
    return fewer[-1] if fewer and 2 * number < enough else enough
