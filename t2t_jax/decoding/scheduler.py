"""Sentences pass through a fixed number of rows; one that has ended makes way for the next.

Sentences that are decoded together do not end together: to wait for the last costs half of the
work. So the program that searches stops when some rows are free, and is called again with the
sentences that shall take them, which it first encodes (iteration-level scheduling: Yu et al. 2022,
"Orca"). They come in from the longest to the shortest. When the long ones have gone, the arrays are
cut, and they grow when an output is much longer than its source; both happens in powers of two, so
that a corpus needs a handful of programs.

The rows form two groups, each with its own call of the program: while the host looks after one, the
device works on the other, and a CPU has work for one core where the other group has not enough for
both.
"""

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Int32

from t2t_jax.batch import EOS_ID, PAD_ID
from t2t_jax.config import DecodingConfig
from t2t_jax.decoding.constraints import Constraints
from t2t_jax.decoding.hypotheses import SearchResult
from t2t_jax.decoding.programs import (
    Arrivals,
    Progress,
    Search,
    Sizes,
    Work,
    begin_work,
    proceed,
    resize_work,
)
from t2t_jax.decoding.strategies import BeamSearch, Greedy, Sampling, Strategy
from t2t_jax.modules.decoding_model import DecodingModel
from t2t_jax.modules.matrices import Parameters
from t2t_jax.parallel.mesh import on_host, put_rows, row_parts
from t2t_jax.system.signals import safe_point

_launching = threading.Lock()  # two threads would else compile the same program at once

# Many short sources share a program for this length; one for a shorter length would save nothing.
_SHORTEST = 32
# Sources of a length get a program of their own if they fill its rows at least this many times.
_WORTH = 8


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


def strategy_of(decoding: DecodingConfig, num_best: int = 1) -> Strategy:
    """The strategy that a config asks for.

    Args:
      decoding: the settings of the search.
      num_best: hypotheses wanted of each sentence.
    """
    if decoding.temperature > 0:
        return Sampling(EOS_ID, decoding.temperature, decoding.top_k, decoding.top_p)
    if decoding.beam_size == 1:
        return Greedy(EOS_ID)
    return BeamSearch(EOS_ID, decoding.beam_size, decoding.length_penalty, num_best)


def decode(
    model: DecodingModel,
    decoding: DecodingConfig,
    params: Parameters,
    mesh: Mesh,
    sentences: Sequence[Sentence],
    num_best: int = 1,
    seed: int = 0,
    constraints: Constraints | None = None,
) -> Iterator[tuple[int, SearchResult]]:
    """Decode sentences.

    Args:
      model: the model that decodes.
      decoding: how tokens are chosen. `tokens_per_batch` bounds the rows; no sentence has a limit
        of more than `max_extra_length` above its length.
      params: the parameters, from `DecodingModel.prepare`.
      mesh: the devices of the parameters. Sentences decoded together are split over them by rows.
      sentences: the sentences to decode.
      num_best: hypotheses wanted of each sentence.
      seed: seed of sampling.
      constraints: which tokens may be chosen; None allows all.

    Yields:
      The index of a sentence and its hypotheses `[num_best, t]`, in the order in which they end.

    Raises:
      ValueError: the limit of a sentence is too high.
    """
    extra = decoding.max_extra_length
    if any(sentence.limit > sentence.length + extra for sentence in sentences):
        raise ValueError(f"there is room for {extra} tokens more than in a source, and no more")
    order = sorted(range(len(sentences)), key=lambda i: -sentences[i].length)
    lengths = [sentences[i].length for i in order]
    prefix = max((len(sentence.prefix) for sentence in sentences), default=0)
    prefix = _rung(prefix) if prefix else 0
    planned = [sizes._replace(prefix=prefix) for sizes in plan(lengths, decoding, mesh)]
    waiting = deque(zip(order, planned, strict=True))
    search = Search(model, strategy_of(decoding, num_best), mesh, num_best)
    decoder = _Decoder(search, params, sentences, np.uint32(seed), constraints)
    capacity = _capacity(_rung(max(lengths, default=0)), decoding)
    groups = [decoder.group(waiting) for _ in range(_num_groups(capacity, mesh))]
    while groups:
        for group in [*groups]:
            safe_point()
            try:
                yield from next(group)
            except StopIteration:
                groups.remove(group)


def plan(lengths: Sequence[int], decoding: DecodingConfig, mesh: Mesh) -> list[Sizes]:
    """The sizes of the arrays in which each of some sentences is decoded.

    Args:
      lengths: numbers of tokens of the sources, longest first.
      decoding: the settings, of which `tokens_per_batch` and `max_extra_length` count.
      mesh: the devices.
    """
    if not lengths:
        return []
    sizes = partial(_sizes, decoding, mesh)
    capacity = _capacity(_rung(lengths[0]), decoding)
    if len(lengths) <= capacity:
        rows = min(capacity, 1 << (len(lengths) - 1).bit_length())
        one_program = sizes(_rung(lengths[0]), rows, rows)
        return [one_program._replace(room=one_program.most_room)] * len(lengths)
    planned: list[Sizes] = []
    for source_length, group in groupby(lengths, lambda length: max(_SHORTEST, _rung(length))):
        count = len(list(group))
        capacity = _capacity(source_length, decoding)
        rows = capacity // _num_groups(capacity, mesh)
        # A few sentences go along with longer ones.
        if not planned or count >= _WORTH * rows:
            planned += [sizes(source_length, rows, -(-rows // 4))] * count
        else:
            planned += [planned[-1]] * count
    return planned


def _capacity(source_length: int, decoding: DecodingConfig) -> int:
    return max(1, decoding.tokens_per_batch // (source_length + decoding.max_extra_length))


def _sizes(
    decoding: DecodingConfig, mesh: Mesh, source_length: int, rows: int, arrivals: int
) -> Sizes:
    parts = row_parts(mesh)
    rows, arrivals = (-(-n // parts) * parts for n in (rows, arrivals))
    most_room = source_length + decoding.max_extra_length
    return Sizes(rows, arrivals, source_length, source_length, most_room)


def _rung(length: int) -> int:
    return max(16, 1 << max(0, length - 1).bit_length())


def _num_groups(capacity: int, mesh: Mesh) -> int:
    """The number of groups that so many rows are divided into."""
    # A program on several devices waits for all of them: two at a time could wait for each other.
    return 2 if mesh.size == 1 and capacity > 1 else 1


@dataclass(frozen=True)
class _Decoder:
    """The search that all groups of rows take part in."""

    search: Search
    params: Parameters
    sentences: Sequence[Sentence]
    seed: np.uint32
    constraints: Constraints | None

    def group(self, waiting: deque[tuple[int, Sizes]]) -> Iterator[list[tuple[int, SearchResult]]]:
        """Decode waiting sentences in a group of rows.

        Args:
          waiting: the index of each sentence and the sizes planned for it; sentences are taken from
            the front.

        Yields:
          The sentences that have ended, with their hypotheses, whenever the device has work.
        """
        if not waiting:
            return
        sizes = planned = waiting[0][1]
        search = self.search
        held = np.full(sizes.rows, -1)  # the sentence in each row
        positions: Any = np.zeros(sizes.rows, int)
        ended: list[tuple[int, SearchResult]] = []
        # On a CPU, the programs that one thread calls run in turn, so each group has a thread.
        with ThreadPoolExecutor(1) as thread:
            work = begin_work(search, sizes, self.params, self.constraints)
            while waiting or (held >= 0).any():
                if waiting and self._fit_in(held, waiting[0][1]):
                    planned = waiting[0][1]
                fitting = _fitting(sizes, planned, int(positions[held >= 0].max(initial=0)))
                if fitting != sizes:
                    work = resize_work(search.model, search.mesh, fitting, work)
                    held = np.append(held, np.full(fitting.rows - sizes.rows, -1))
                    sizes = fitting
                rows = np.flatnonzero(held < 0)[: min(sizes.arrivals, len(waiting))]
                held[rows] = [waiting.popleft()[0] for _ in rows]
                arrivals = self._arrivals(held, rows, sizes)
                leave = _leave(sizes, int((held < 0).sum()), len(waiting))
                asked = thread.submit(self._launch, work, arrivals, leave)
                yield ended  # while the device computes
                work, progress = asked.result()
                searching, positions, best = on_host(progress)
                over = np.flatnonzero((held >= 0) & ~searching)
                ended = [(int(held[r]), jax.tree.map(lambda x, r=r: x[r], best)) for r in over]
                held[over] = -1
            yield ended

    def _launch(self, work: Work, arrivals: Arrivals, leave: int) -> tuple[Work, Progress]:
        with _launching:
            what = self.search, self.params, work, arrivals, self.seed, leave
            return proceed(*what, self.constraints)

    def _fit_in(self, held: np.ndarray, sizes: Sizes) -> bool:
        """Whether all sentences under way fit into arrays of these sizes."""
        return all(self.sentences[i].length <= sizes.source_length for i in held[held >= 0])

    def _arrivals(self, held: np.ndarray, rows: np.ndarray, sizes: Sizes) -> Arrivals:
        sentences = [self.sentences[i] for i in held[rows]]
        arrays: Any = np.full((3, sizes.arrivals), [[sizes.rows], [0], [0]], np.int32)
        places, limits, numbers = arrays
        places[: len(rows)] = rows
        limits[: len(rows)] = [sentence.limit for sentence in sentences]
        numbers[: len(rows)] = [sentence.number for sentence in sentences]
        tokens = [sentence.tokens for sentence in sentences]
        inputs = padded(tokens, sizes.arrivals, sizes.source_length)
        prefixes: Any = None
        if sizes.prefix:
            prefixes = np.full((sizes.arrivals, sizes.prefix), -1, np.int32)
            for row, sentence in zip(prefixes, sentences, strict=False):
                row[: len(sentence.prefix)] = sentence.prefix
        on_device = put_rows(inputs, self.search.mesh)
        return Arrivals(places, on_device, limits, numbers, prefixes)


def _fitting(sizes: Sizes, planned: Sizes, farthest: int) -> Sizes:
    """The planned sizes, with the rows there are and the room that the farthest position needs."""
    room = planned.room
    while room <= farthest:
        room = min(2 * room, planned.most_room)
    if planned.source_length == sizes.source_length and room < 2 * farthest:
        room = max(room, sizes.room)  # lest it be too small again at once
    return planned._replace(rows=max(planned.rows, sizes.rows), room=room)


def _leave(sizes: Sizes, free: int, waiting: int) -> int:
    """The number of sentences under way at which the program shall stop."""
    if not waiting:
        return 0
    if free >= sizes.arrivals:  # more can come in at once
        return sizes.rows
    return sizes.rows - min(sizes.arrivals, waiting)


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
