"""Rows of a search: which sentence is in each, and the arrays of all of them.

Both schedulers let sentences into such groups: `decoding.scheduler`, which knows all its sentences
beforehand, and `decoding.open_search`, whose sentences come at any time.
"""

import threading
from collections.abc import Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import numpy as np
from jaxtyping import Int32

from t2t_jax.batch import PAD_ID
from t2t_jax.decoding.constraints import Constraints
from t2t_jax.decoding.hypotheses import SearchResult
from t2t_jax.decoding.programs import (
    Arrivals,
    Progress,
    Search,
    Sizes,
    begin_work,
    proceed,
    resize_work,
)
from t2t_jax.modules.matrices import Parameters
from t2t_jax.parallel.mesh import on_host, put_rows

_Key = TypeVar("_Key")

_launching = threading.Lock()  # two threads would else compile the same program at once


class Sentence(NamedTuple):
    """A sentence to decode."""

    tokens: list[int]
    """Subwords of the source, with the end of sentence."""
    limit: int
    """The most tokens to generate, end of sentence included."""
    number: int
    """Number of its line; with the seed, it determines what is drawn."""
    prefix: Sequence[int] = ()
    """Subwords with which its output must begin."""

    @property
    def length(self) -> int:
        """Tokens of the source, or of the prefix if that is longer: arrays hold as many."""
        return max(len(self.tokens), len(self.prefix))


_NOTHING = Sentence([], 0, 0)
"""What takes the row of a sentence that was given up: its search is over before it begins."""


class RowGroup(Generic[_Key]):
    """Rows of a search, in which one sentence makes way for another.

    A call of the compiled program is `launch`, which may run in another thread, and then `collect`.

    Attributes:
      sizes: sizes of the arrays.
    """

    def __init__(
        self,
        search: Search,
        params: Parameters,
        sizes: Sizes,
        seed: int = 0,
        constraints: Constraints | None = None,
    ) -> None:
        """Make a group of rows that are all free.

        Args:
          search: the static arguments of the programs.
          params: the parameters, from `DecodingModel.prepare`.
          sizes: sizes of the arrays.
          seed: seed of sampling.
          constraints: which tokens may be chosen; None allows all.
        """
        self.sizes = sizes
        self._search, self._params, self._constraints = search, params, constraints
        self._seed = np.uint32(seed)
        self._held: list[tuple[_Key, Sentence] | None] = [None] * sizes.rows
        self._positions: Any = np.zeros(sizes.rows, int)
        self._best: Any = None  # the hypotheses of all rows, when they were last collected
        self._released: set[int] = set()  # rows whose sentence the device still searches for
        self._work = begin_work(search, sizes, params, constraints)

    @property
    def held(self) -> list[tuple[_Key, Sentence]]:
        """The sentences under way."""
        return [each for each in self._held if each is not None]

    @property
    def num_free(self) -> int:
        """Rows without a sentence."""
        return self._held.count(None)

    @property
    def longest(self) -> int:
        """The most tokens of a source under way."""
        return max((sentence.length for _, sentence in self.held), default=0)

    @property
    def farthest(self) -> int:
        """The last position that an output under way has reached."""
        places = zip(self._positions, self._held, strict=True)
        return max((int(position) for position, held in places if held is not None), default=0)

    def resize(self, sizes: Sizes) -> None:
        """Give the arrays other sizes.

        Args:
          sizes: the sizes, with at least as many rows.
        """
        if sizes == self.sizes:
            return
        self._work = resize_work(self._search.model, self._search.mesh, sizes, self._work)
        new = sizes.rows - self.sizes.rows
        self._held += [None] * new
        self._positions = np.append(self._positions, np.zeros(new, int))
        self.sizes = sizes

    def launch(
        self,
        arrivals: Sequence[tuple[_Key, Sentence]],
        leave: int,
        most_steps: int | None = None,
        places: Sequence[int] = (),
    ) -> Progress:
        """Let sentences in, and have the device search on.

        Args:
          arrivals: sentences with what they are called, no more than there are free rows, and than
            may come in at once.
          leave: the number of sentences under way at which the program stops.
          most_steps: the number of positions after which it stops in any case; None is no bound.
          places: numbers of sentences for which there are compiled programs, smallest first: all
            that come in are encoded, with padding up to such a number. None is `sizes.arrivals`
            alone.

        Returns:
          The state of the rows, which the device may still be computing.
        """
        free = [row for row, held in enumerate(self._held) if held is None]
        rows = free[: len(arrivals)]
        for row, arrival in zip(rows, arrivals, strict=True):
            self._held[row] = arrival
        stopped = sorted(self._released.difference(rows))
        self._released.clear()
        sentences = [sentence for _, sentence in arrivals] + [_NOTHING] * len(stopped)
        enough = (n for n in places or (self.sizes.arrivals,) if n >= len(sentences))
        coming = self._arrays(rows + stopped, sentences, next(enough))
        with _launching:
            self._work, progress = proceed(
                self._search,
                self._params,
                self._work,
                coming,
                self._seed,
                np.int32(leave),
                self._constraints,
                None if most_steps is None else np.int32(most_steps),
            )
        return progress

    def collect(self, progress: Progress) -> list[tuple[_Key, SearchResult]]:
        """Wait for the device, and take out the sentences that have ended.

        Args:
          progress: what `launch` returned.

        Returns:
          What these sentences are called, with their hypotheses `[num_best, t]`.
        """
        searching, self._positions, self._best = on_host(progress)
        best, ended = self._best, []
        for row, held in enumerate(self._held):
            if held is not None and not searching[row]:
                ended.append((held[0], jax.tree.map(lambda x, row=row: x[row], best)))
                self._held[row] = None
        return ended

    def release(self, key: _Key) -> None:
        """Give up the sentence that is called so; its row is free for the next `launch`.

        Args:
          key: what the sentence is called.
        """
        (row,) = (row for row, held in enumerate(self._held) if held and held[0] == key)
        self._held[row] = None
        self._released.add(row)

    def so_far(self) -> Iterator[tuple[_Key, list[int]]]:
        """The tokens that were chosen for each sentence under way, where there is one hypothesis.

        Yields:
          What a sentence is called, and the ids of its tokens, as `collect` has found them.
        """
        for row, held in enumerate(self._held):
            if held is not None:
                length = min(int(self._positions[row]), held[1].limit)
                yield held[0], self._best.tokens[row, 0, :length].tolist()

    def _arrays(self, rows: Sequence[int], sentences: Sequence[Sentence], places: int) -> Arrivals:
        sizes = self.sizes
        arrays: Any = np.full((3, places), [[sizes.rows], [0], [0]], np.int32)
        taken, limits, numbers = arrays
        taken[: len(rows)] = rows
        limits[: len(rows)] = [sentence.limit for sentence in sentences]
        numbers[: len(rows)] = [sentence.number for sentence in sentences]
        tokens = [sentence.tokens for sentence in sentences]
        inputs = padded(tokens, places, sizes.source_length)
        prefixes: Any = None
        if sizes.prefix:
            prefixes = np.full((places, sizes.prefix), -1, np.int32)
            for row, sentence in zip(prefixes, sentences, strict=False):
                row[: len(sentence.prefix)] = sentence.prefix
        on_device = put_rows(inputs, self._search.mesh)
        return Arrivals(taken, on_device, limits, numbers, prefixes)


def padded(sentences: Sequence[list[int]], rows: int, length: int) -> Int32[np.ndarray, "b t"]:
    """An array of sentences, one a row; the rest is padding.

    Args:
      sentences: ids of each sentence.
      rows: number of rows b.
      length: positions t of a row.
    """
    tokens = np.full((rows, length), PAD_ID, np.int32)
    for row, sentence in enumerate(sentences):
        tokens[row, : len(sentence)] = sentence
    return tokens
