"""Search for an output sequence: greedy search, sampling and beam search (section 6.1).

This module knows no model, config or vocabulary. The caller passes a step function with a cache,
usually the keys and values of a decoder, and the search tracks which cache entries belong to which
hypothesis.

The cache is written once per step and never reordered. At step `t` the hypothesis in slot `j`
writes its entry at `[t, j]`, and a hypothesis is a path through those slots. Its `ancestry` holds
its slot at every step:

    step       0    1    2    3
    slot 0    <s>  the  dog  ran      hypothesis 0: <s> the cat ran    ancestry 0 0 1 0
    slot 1     .    a   cat  sat      hypothesis 1: <s> the cat sat    ancestry 0 0 1 1

When hypotheses die and others split, the search reorders these few integers instead of the cache,
and the step function attends over all slots through a mask made from them. The step function closes
over the constants of a sentence, such as the keys and values of its source: there is one copy, not
one per hypothesis.

The sentences of a batch need not begin together. `admit` puts new ones into rows whose sentence has
ended, while the others go on. All write to the same place, because the `t` places form a ring
buffer: step number `clock` writes to place `clock % room`, and a sentence that began at `start` has
its position 0 at place `start % room`. Rows are not cleared for a new sentence; the mask hides the
entries of the previous one.

The result of a sentence does not depend on the other sentences of its batch. The functions trace
under `jax.jit`; all arguments other than arrays and keys are plain Python numbers.
"""

import math
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Int32, Key

from t2t_jax.decoding import hypotheses
from t2t_jax.decoding.constraints import (
    Constraints,
    allowed_tokens,
    begin_matching,
    follow_automaton,
    with_told_tokens,
)
from t2t_jax.decoding.hypotheses import Hypotheses, SearchResult, SearchRows, SearchState, StepCache
from t2t_jax.decoding.strategies import Given, Strategy
from t2t_jax.kernels.preset import Kernels
from t2t_jax.kernels.reference import REFERENCE

_Tree = TypeVar("_Tree")

StepFn: TypeAlias = Callable[
    [Int32[Array, "b k"], Int32[Array, " b"], Int32[Array, ""], Bool[Array, "b k t k"], StepCache],
    tuple[Float[Array, "b k v"], StepCache],
]
"""`step(tokens, positions, clock, ancestry_mask, cache) -> logits, cache`.

`tokens` are the last tokens of the hypotheses, and `positions` their positions; the token at
position 0 is the beginning of sentence. Step number `clock` writes entries in all k slots of one
place of its cache, and returns the logits of the next tokens. `ancestry_mask[b, j, t, i]` is true
if slot `i` at place `t` belongs to hypothesis `j`: one slot for every position up to and including
the current one, which is at place `clock % t`.
"""


def begin(
    cache: StepCache,
    limits: Int[Array, " b"],
    *,
    beam_size: int,
    room: int,
    bos_id: int,
    keys: Key[Array, " b"] | None = None,
    constraints: Constraints | None = None,
    prefixes: Int32[Array, "b p"] | None = None,
) -> SearchState:
    """Begin to search for every sentence.

    Args:
      limits: the most tokens to generate for each sentence; 0 for a free row.
      room: places t, at least one.
      bos_id: the token at position 0.
      keys: a PRNG key for each sentence, if tokens are sampled.
      constraints: the constraints for `advance`.
      prefixes: tokens with which each output must begin, padded with -1.
    """
    slots = jnp.broadcast_to(jnp.arange(beam_size, dtype=jnp.int32), (*limits.shape, beam_size))
    nothing = jnp.full(slots.shape, hypotheses.IMPOSSIBLE, jnp.float32)
    empty = jnp.zeros((*slots.shape, room), jnp.int32)
    # One hypothesis in slot 0; the other slots are impossible until it has split.
    log_probs = jnp.where(slots == 0, 0.0, nothing)
    rows = SearchRows(
        starts=jnp.zeros(limits.shape, jnp.int32),
        limits=limits.astype(jnp.int32),
        searching=limits > 0,
        keys=keys,
        live=Hypotheses(
            jnp.full_like(slots, bos_id),
            empty,
            empty,
            log_probs,
            begin_matching(constraints, slots.shape),
        ),
        finished=SearchResult(empty, nothing, nothing, jnp.zeros_like(slots)),
        prefixes=prefixes,
    )
    return SearchState(jnp.int32(0), rows, cache)


def admit(state: SearchState, new: SearchRows, places: Int[Array, " n"]) -> SearchState:
    """Begin to search for more sentences, in free rows.

    Args:
      new: the searches of the sentences, from `begin` with the same room.
      places: indices of their rows; an index beyond the last row changes nothing.
    """
    new = new._replace(starts=jnp.broadcast_to(state.clock, new.limits.shape))
    return state._replace(rows=put(state.rows, new, places))


def rewind(state: SearchState, slot_axes: Any) -> SearchState:
    """Lower the clock by a multiple of the ring's size, so that every entry keeps its place.

    Otherwise the clock of a server would overflow int32 after some weeks.

    Args:
      slot_axes: for each array of the cache, the axis that has `k` slots for each place.
    """
    clock, rows = state.clock, state.rows
    beam_size = rows.live.last.shape[1]
    rings = jax.tree.map(lambda x, axis: x.shape[axis] // beam_size, state.cache, slot_axes)
    period = math.lcm(state.room, *jax.tree.leaves(rings))
    first = jnp.where(rows.searching, rows.starts, clock).min()
    passed = first - first % period
    return state._replace(clock=clock - passed, rows=rows._replace(starts=rows.starts - passed))


def advance(
    strategy: Strategy,
    step: StepFn,
    state: SearchState,
    leave: int | Int[Array, ""] = 0,
    constraints: Constraints | None = None,
    most_steps: int | Int[Array, ""] | None = None,
    kernels: Kernels = REFERENCE,
) -> SearchState:
    """Search until few sentences are live, or one needs more room; then the caller calls `resize`.

    Args:
      leave: stop once at most this many sentences are live.
      constraints: those with which the state was begun.
      most_steps: the most positions to compute; None is no bound.
    """
    first = state.clock

    def goes_on(state: SearchState) -> Bool[Array, ""]:
        full = state.rows.searching & (state.positions >= state.room)
        more = (jnp.sum(state.rows.searching) > leave) & ~jnp.any(full)
        return more if most_steps is None else more & (state.clock - first < most_steps)

    def further(state: SearchState) -> SearchState:
        return _step(strategy, step, state, constraints, kernels)

    return jax.lax.while_loop(goes_on, further, state)


def _step(
    strategy: Strategy,
    step: StepFn,
    state: SearchState,
    constraints: Constraints | None,
    kernels: Kernels,
) -> SearchState:
    place, rows = state.clock % state.room, state.rows
    slots = jnp.arange(strategy.beam_size, dtype=jnp.int32)
    slots = jnp.broadcast_to(slots, rows.live.last.shape)
    ancestry = jax.lax.dynamic_update_index_in_dim(rows.live.ancestry, slots, place, axis=2)
    live = rows.live._replace(ancestry=ancestry)
    mask = _ancestry_mask(live.ancestry, state.positions, place)
    logits, cache = step(live.last, state.positions, state.clock, mask, state.cache)
    state = state._replace(rows=rows._replace(live=live))
    logits = choices = with_told_tokens(constraints, state, logits.astype(jnp.float32))
    allowed = allowed_tokens(constraints, state, logits.shape[-1], strategy.eos_id)
    if allowed is not None:
        choices = jnp.where(allowed, logits, -jnp.inf)
    given = Given(state, logits, choices, place, kernels)
    live, finished, more = strategy.extend(given)
    live = follow_automaton(constraints, live)
    # A row whose sentence has ended runs on with the others, and keeps what it had.
    live, finished = hypotheses.choose_rows(
        rows.searching, (live, finished), (rows.live, rows.finished)
    )
    searching = rows.searching & more & (state.positions + 1 < rows.limits)
    rows = rows._replace(searching=searching, live=live, finished=finished)
    return SearchState(state.clock + 1, rows, cache)


def results(
    state: SearchState, alpha: float, pad_id: int = 0, offset: float = hypotheses.WU_OFFSET
) -> SearchResult:
    """Return each sentence's best hypotheses, which are final once its search is over.

    Args:
      alpha: the strategy's exponent of the length penalty.
      offset: see `length_penalty`.

    Returns:
      The k best hypotheses that ended. If none of a sentence ended, the k best live ones, scored as
      if their length were the limit.
    """
    rows = state.rows
    none_ended = ~hypotheses.is_possible(rows.finished.scores[:, :1])
    entering = jnp.broadcast_to(none_ended, rows.live.last.shape)
    found = hypotheses.add_finished(rows.finished, rows.live, entering, rows.limits, alpha, offset)
    positions = jnp.arange(state.room)
    places = (rows.starts[:, None] + positions) % state.room
    tokens = jnp.take_along_axis(found.tokens, places[:, None], axis=2)
    return found._replace(tokens=jnp.where(positions < found.lengths[:, :, None], tokens, pad_id))


def resize(
    state: SearchState, num_rows: int, room: int, empty_cache: StepCache, slot_axes: Any
) -> SearchState:
    """Change the number of rows and of places.

    Args:
      state: the searches, none of which is at position `room` or later.
      num_rows: number of rows; new rows are free, and the last rows are dropped first.
      room: number of places; the newest are kept.
      empty_cache: the shapes of a cache of the new sizes; it may have fewer places than the room.
      slot_axes: for each array of the cache, the axis that has `k` slots for each place.
    """
    clock, rows = state.clock, state.rows
    beam_size = rows.live.last.shape[1]

    def fit(x: Array) -> Array:
        return _fit_ring(x, clock, 1, room, -1)

    def fit_cache(x: Array, new: Any, axis: int) -> Array:
        return _fit_ring(x, clock, beam_size, new.shape[axis] // beam_size, axis)

    cache = jax.tree.map(fit_cache, state.cache, empty_cache, slot_axes)
    rows = rows._replace(
        live=rows.live._replace(tokens=fit(rows.live.tokens), ancestry=fit(rows.live.ancestry)),
        finished=rows.finished._replace(tokens=fit(rows.finished.tokens)),
    )
    existing = jnp.arange(num_rows) < len(rows.searching)
    rows, cache = add_rows((rows, cache), num_rows)
    return SearchState(clock, rows._replace(searching=rows.searching & existing), cache)


def _fit_ring(x: Array, clock: Int32[Array, ""], each: int, places: int, axis: int) -> Array:
    """Copy the newest entries to a ring of another size, those of step s to place s % places.

    Args:
      x: an array with a ring along `axis`.
      each: entries per place.
      places: number of places of the new ring.
    """
    old = x.shape[axis] // each
    oldest_first = jnp.roll(x, -(clock % old) * each, axis)
    kept = jax.lax.slice_in_dim(oldest_first, max(0, old - places) * each, None, axis=axis)
    widths = [(0, 0)] * x.ndim
    widths[axis] = max(0, places - old) * each, 0
    return jnp.roll(jnp.pad(kept, widths), clock % places * each, axis)


def put(tree: _Tree, new: _Tree, places: Int[Array, " n"]) -> _Tree:
    """Replace rows, on the first axis of arrays; an index beyond the last row drops the new row."""
    return jax.tree.map(lambda old, new: old.at[places].set(new, mode="drop"), tree, new)


def add_rows(tree: _Tree, num_rows: int) -> _Tree:
    """Return arrays with `num_rows` rows: the first ones, then copies of the last one."""
    return jax.tree.map(lambda x: x[jnp.minimum(jnp.arange(num_rows), len(x) - 1)], tree)


def search(strategy: Strategy, step: StepFn, state: SearchState, pad_id: int = 0) -> SearchResult:
    """Search for all sentences of a batch.

    Args:
      state: the searches, from `begin`, with room for the limit of each sentence.
      pad_id: id after the end of a sentence.
    """
    state = advance(strategy, step, state)
    return results(state, strategy.alpha, pad_id, strategy.offset)


def _ancestry_mask(
    ancestry: Int32[Array, "b k t"], positions: Int32[Array, " b"], place: Int32[Array, ""]
) -> Bool[Array, "b k t k"]:
    _, beam_size, room = ancestry.shape
    steps_ago = (place - jnp.arange(room)) % room
    written = steps_ago <= positions[:, None]  # [b, t]
    return jax.nn.one_hot(ancestry, beam_size, dtype=jnp.bool_) & written[:, None, :, None]
