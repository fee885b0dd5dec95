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
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jaxtyping import Array, Bool, Float, Int, Int32, Key, UInt32

from t2t_jax.config import DecodingConfig
from t2t_jax.data.vocabulary import BOS_ID, EOS_ID, PAD_ID
from t2t_jax.decoding.search import (
    BeamSearch,
    Greedy,
    Sampling,
    SearchResult,
    SearchState,
    Strategy,
    add_rows,
    admit,
    begin,
    put,
    resize,
    results,
    run,
)
from t2t_jax.modules.ensemble import Model, empty_cache
from t2t_jax.modules.transformer import Parameters
from t2t_jax.parallel.axes import RULES
from t2t_jax.parallel.mesh import on_host, put_rows, replicated, row_parts
from t2t_jax.system.signals import safe_point

_launching = threading.Lock()  # two threads would else compile the same program at once

_SHORTEST = 32  # source of many: a program of its own for shorter ones would save nothing
_WORTH = 8  # times that their rows are filled: then sentences are worth a program of their size


class Sentence(NamedTuple):
    """What is to be decoded."""

    tokens: list[int]
    """Of the source, with the end of sentence."""
    limit: int
    """The most tokens to generate, end of sentence included."""
    number: int
    """Of its line; with the seed, it determines what is drawn."""


class Sizes(NamedTuple):
    """Sizes of the arrays that a group of rows consists of."""

    rows: int
    """Sentences decoded together."""
    arrivals: int
    """Sentences that may come in at once."""
    source_length: int
    """Positions of a source, padding included."""
    room: int
    """Positions for an output, until one needs more."""
    most_room: int
    """Positions for an output that none exceeds."""


class Work(NamedTuple):
    """Sentences under way, one a row."""

    state: SearchState
    memory: Any
    """What the model knows of their sources."""


class Arrivals(NamedTuple):
    """Sentences that come in; those beyond the last row do not exist."""

    rows: Int32[Array, " n"]
    inputs: Int32[Array, "n s"]
    limits: Int32[Array, " n"]
    numbers: Int32[Array, " n"]


class Progress(NamedTuple):
    """What the host wants to know of the rows."""

    searching: Bool[Array, " b"]
    positions: Int[Array, " b"]
    """Of the last token of each sentence."""
    best: SearchResult
    """Of the rows which are not searching, with the `num_best` best hypotheses each."""


def strategy_of(decoding: DecodingConfig, num_best: int = 1) -> Strategy:
    """The search that a config asks for, if so many hypotheses are wanted of each sentence."""
    if decoding.temperature > 0:
        return Sampling(EOS_ID, decoding.temperature, decoding.top_k, decoding.top_p)
    if decoding.beam_size == 1:
        return Greedy(EOS_ID)
    return BeamSearch(EOS_ID, decoding.beam_size, decoding.length_penalty, num_best)


def decode(
    model: Model,
    decoding: DecodingConfig,
    params: Parameters,
    mesh: Mesh,
    sentences: Sequence[Sentence],
    num_best: int = 1,
    seed: int = 0,
) -> Iterator[tuple[int, SearchResult]]:
    """Decode sentences.

    Args:
      model: the network.
      decoding: how tokens are chosen. `tokens_per_batch` bounds the rows; no sentence has a limit
        of more than `max_extra_length` above its length.
      params: the network's, from `prepare_parameters`.
      mesh: their devices. What is decoded together is split over them by rows.
      sentences: what to decode.
      num_best: hypotheses of each sentence.
      seed: of what is drawn.

    Yields:
      The index of a sentence and its hypotheses `[num_best, t]`, in the order in which they end.

    Raises:
      ValueError: the limit of a sentence is too high.
    """
    extra = decoding.max_extra_length
    if any(sentence.limit > len(sentence.tokens) + extra for sentence in sentences):
        raise ValueError(f"there is room for {extra} tokens more than in a source, and no more")
    order = sorted(range(len(sentences)), key=lambda i: -len(sentences[i].tokens))
    lengths = [len(sentences[i].tokens) for i in order]
    waiting = deque(zip(order, plan(lengths, decoding, mesh), strict=True))
    strategy = strategy_of(decoding, num_best)
    decoder = _Decoder(model, strategy, mesh, num_best, params, sentences, np.uint32(seed))
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
    """Sizes for each of the sentences.

    Args:
      lengths: tokens of their sources, longest first.
      decoding: what it says of `tokens_per_batch` and `max_extra_length`.
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
    """Into how many groups so many rows are divided."""
    # Programs on several devices wait for one another; two at a time could do so for ever.
    return 2 if mesh.size == 1 and capacity > 1 else 1


@dataclass(frozen=True)
class _Decoder:
    """What groups of rows have in common."""

    model: Model
    strategy: Strategy
    mesh: Mesh
    num_best: int
    params: Parameters
    sentences: Sequence[Sentence]
    seed: np.uint32

    def group(self, waiting: deque[tuple[int, Sizes]]) -> Iterator[list[tuple[int, SearchResult]]]:
        """Decode what waits in rows of its own; yields what has ended when the device has work."""
        if not waiting:
            return
        sizes = planned = waiting[0][1]
        what = self.model, self.strategy, self.mesh
        held = np.full(sizes.rows, -1)  # the sentence in each row
        positions: Any = np.zeros(sizes.rows, int)
        ended: list[tuple[int, SearchResult]] = []
        # A CPU has what one thread asks for done in turn.
        with ThreadPoolExecutor(1) as thread:
            work = begin_work(*what, sizes, self.params)
            while waiting or (held >= 0).any():
                if waiting and self._fit_in(held, waiting[0][1]):
                    planned = waiting[0][1]
                fitting = _fitting(sizes, planned, int(positions[held >= 0].max(initial=0)))
                if fitting != sizes:
                    work = resize_work(self.mesh, fitting, work)
                    held = np.append(held, np.full(fitting.rows - sizes.rows, -1))
                    sizes = fitting
                rows = np.flatnonzero(held < 0)[: min(sizes.arrivals, len(waiting))]
                held[rows] = [waiting.popleft()[0] for _ in rows]
                arrivals = self._arrivals(held, rows, sizes)
                leave = _leave(sizes, int((held < 0).sum()), len(waiting))
                rest = self.num_best, self.params, work, arrivals, self.seed, leave
                asked = thread.submit(_launch, *what, *rest)
                yield ended  # while the device computes
                work, progress = asked.result()
                searching, positions, best = on_host(progress)
                over = np.flatnonzero((held >= 0) & ~searching)
                ended = [(int(held[r]), jax.tree.map(lambda x, r=r: x[r], best)) for r in over]
                held[over] = -1
            yield ended

    def _fit_in(self, held: np.ndarray, sizes: Sizes) -> bool:
        """Whether the sources of sentences under way are no longer than that."""
        return all(len(self.sentences[i].tokens) <= sizes.source_length for i in held[held >= 0])

    def _arrivals(self, held: np.ndarray, rows: np.ndarray, sizes: Sizes) -> Arrivals:
        sentences = [self.sentences[i] for i in held[rows]]
        arrays: Any = np.full((3, sizes.arrivals), [[sizes.rows], [0], [0]], np.int32)
        places, limits, numbers = arrays
        places[: len(rows)] = rows
        limits[: len(rows)] = [sentence.limit for sentence in sentences]
        numbers[: len(rows)] = [sentence.number for sentence in sentences]
        tokens = [sentence.tokens for sentence in sentences]
        inputs = padded(tokens, sizes.arrivals, sizes.source_length)
        return Arrivals(places, put_rows(inputs, self.mesh), limits, numbers)


def _fitting(sizes: Sizes, planned: Sizes, farthest: int) -> Sizes:
    """The planned sizes, with the rows there are and the room that the farthest position needs."""
    room = planned.room
    while room <= farthest:
        room = min(2 * room, planned.most_room)
    if planned.source_length == sizes.source_length and room < 2 * farthest:
        room = max(room, sizes.room)  # lest it be too small again at once
    return planned._replace(rows=max(planned.rows, sizes.rows), room=room)


def _launch(*arguments: Any) -> tuple[Work, Progress]:
    with _launching:
        return proceed(*arguments)


def _leave(sizes: Sizes, free: int, waiting: int) -> int:
    """At how many sentences under way the program shall stop."""
    if not waiting:
        return 0
    if free >= sizes.arrivals:  # more can come in at once
        return sizes.rows
    return sizes.rows - min(sizes.arrivals, waiting)


def padded(sentences: Sequence[list[int]], rows: int, length: int) -> Int32[np.ndarray, "b t"]:
    """Sentences, one a row; the rest is padding."""
    tokens = np.full((rows, length), PAD_ID, np.int32)
    for row, sentence in enumerate(sentences):
        tokens[row, : len(sentence)] = sentence
    return tokens


@partial(jax.jit, static_argnames=("model", "strategy", "mesh", "sizes"))
def begin_work(
    model: Model, strategy: Strategy, mesh: Mesh, sizes: Sizes, params: Parameters
) -> Work:
    """Rows that are all free."""
    beam_size, room = strategy.beam_size, sizes.room
    free = jnp.zeros((sizes.rows,), jnp.int32)
    state = begin(
        empty_cache(model, sizes.rows, beam_size, room),
        free,
        beam_size=beam_size,
        room=room,
        bos_id=BOS_ID,
        keys=_keys(strategy, jnp.uint32(0), free),
    )
    inputs = jnp.zeros((sizes.rows, sizes.source_length), jnp.int32)
    memory = jax.eval_shape(partial(_memory, model), params, inputs)
    memory = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), memory)
    return _by_rows(Work(state, memory), mesh)


@partial(jax.jit, static_argnames=("model", "strategy", "mesh", "num_best"), donate_argnames="work")
def proceed(
    model: Model,
    strategy: Strategy,
    mesh: Mesh,
    num_best: int,
    params: Parameters,
    work: Work,
    arrivals: Arrivals,
    seed: UInt32[Array, ""],
    leave: Int[Array, ""],
) -> tuple[Work, Progress]:
    """Let sentences come in, and search until at most `leave` are under way or one needs room.

    Args:
      model: the network.
      strategy: how tokens are chosen.
      mesh: the devices.
      num_best: hypotheses wanted of each sentence.
      params: the network's, from `prepare_parameters`.
      work: the sentences under way, which are overwritten.
      arrivals: those that come in, into rows that are free.
      seed: of what is drawn.
      leave: how many sentences may still be under way in the end.
    """
    new = _memory(model, params, arrivals.inputs)
    memory = put(work.memory, new, arrivals.rows)
    keys = _keys(strategy, seed, arrivals.numbers)
    state = admit(work.state, arrivals.rows, arrivals.limits, bos_id=BOS_ID, keys=keys)

    def step(
        tokens: Int32[Array, "b k"],
        positions: Int32[Array, " b"],
        place: Int32[Array, ""],
        ancestry_mask: Bool[Array, "b k t k"],
        cache: Any,
    ) -> tuple[Float[Array, "b k vocab"], Any]:
        arguments = tokens, positions, place, ancestry_mask, cache, memory
        return cast(tuple[Array, Any], model.apply({"params": params}, *arguments, method="step"))

    state = run(strategy, step, state, leave)
    found = results(state, strategy.alpha, PAD_ID)
    best = jax.tree.map(lambda x: x[:, :num_best], found)
    return _by_rows(Work(state, memory), mesh), Progress(
        state.rows.searching, state.positions, best
    )


@partial(jax.jit, static_argnames=("mesh", "sizes"))
def resize_work(mesh: Mesh, sizes: Sizes, work: Work) -> Work:
    """The same work in arrays of other sizes, with at least as many rows."""

    def fit(x: Array) -> Array:
        kept = x[..., : sizes.source_length]
        return jnp.pad(kept, [(0, 0)] * (x.ndim - 1) + [(0, sizes.source_length - kept.shape[-1])])

    memory = add_rows(jax.tree.map(fit, work.memory), sizes.rows)
    return _by_rows(Work(resize(work.state, sizes.rows, sizes.room), memory), mesh)


def _memory(model: Model, params: Parameters, inputs: Int32[Array, "b s"]) -> Any:
    segments = (inputs != PAD_ID).astype(jnp.int32)
    return model.apply({"params": params}, inputs, segments, method="memory")


def _keys(
    strategy: Strategy, seed: UInt32[Array, ""], numbers: Int32[Array, " b"]
) -> Key[Array, " b"] | None:
    if not isinstance(strategy, Sampling):
        return None
    return jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(seed), numbers)


def _by_rows(work: Work, mesh: Mesh) -> Work:
    """Have rows lie on the devices alike before and after a program: it is compiled once."""
    rows = NamedSharding(mesh, RULES.spec(["batch"]))
    return jax.lax.with_sharding_constraint(
        work, jax.tree.map(lambda x: rows if x.ndim else replicated(mesh), work)
    )
