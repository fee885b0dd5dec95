"""The loop of a search: begin, admit sentences, advance and read the results."""

import math
from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Int32, Key, PyTree

from . import hypotheses
from .constraints import UNCONSTRAINED, Constraints
from .hypotheses import Hypotheses, SearchResult, SearchRows, SearchState, StepCache, Tree
from .reductions import PLAIN, Reductions
from .strategies import NextLogits, Strategy

StepFn: TypeAlias = Callable[
    [Int32[Array, "b k"], Int32[Array, " b"], Int32[Array, ""], Bool[Array, "b k t k"], StepCache],
    tuple[Float[Array, "b k v"], StepCache],
]
"""`step(tokens, positions, clock, ancestry_mask, cache) -> logits, cache`.

`tokens` are the last tokens of the hypotheses, and `positions` their positions; the token at
position 0 is the beginning of sentence. Step number `clock` writes entries in all k slots at index
`clock % t` of the ring buffer, and returns the logits of the next tokens. `ancestry_mask[b, j, t,
i]` is true if the entry in slot `i` at index `t` belongs to hypothesis `j`: one slot for every
position up to and including the current one.
"""


def begin(
    cache: StepCache,
    limits: Int[Array, " b"],
    *,
    beam_size: int,
    capacity: int,
    bos_id: int,
    keys: Key[Array, " b"] | None = None,
    constraints: Constraints = UNCONSTRAINED,
    prefixes: Int32[Array, "b p"] | None = None,
) -> SearchState:
    """Begin to search for every sentence.

    Args:
      limits: the most tokens to generate for each sentence; 0 for a free row.
      capacity: steps t that the ring buffer holds, at least one.
      bos_id: the token at position 0.
      keys: a PRNG key for each sentence, if tokens are sampled.
      constraints: the constraints for `advance`.
      prefixes: tokens with which each output must begin, padded with -1.
    """
    slots = jnp.broadcast_to(jnp.arange(beam_size, dtype=jnp.int32), (*limits.shape, beam_size))
    nothing = jnp.full(slots.shape, hypotheses.IMPOSSIBLE, jnp.float32)
    empty = jnp.zeros((*slots.shape, capacity), jnp.int32)
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
            constraints.initial_states(slots.shape),
        ),
        finished=SearchResult(empty, nothing, nothing, jnp.zeros_like(slots)),
        prefixes=prefixes,
    )
    return SearchState(jnp.int32(0), rows, cache)


def admit(state: SearchState, new: SearchRows, rows: Int[Array, " n"]) -> SearchState:
    """Begin to search for more sentences, in free rows.

    Args:
      new: the searches of the sentences, from `begin` with the same capacity.
      rows: indices of their rows; an index beyond the last row changes nothing.
    """
    new = new._replace(starts=jnp.broadcast_to(state.clock, new.limits.shape))
    return state._replace(rows=put_rows(state.rows, new, rows))


def rewind(state: SearchState, slot_axes: PyTree[int]) -> SearchState:
    """Lower the clock by a multiple of the ring buffers' sizes, so that no entry has to move.

    Otherwise the clock of a server would overflow int32 after some weeks.

    Args:
      slot_axes: for each array of the cache, the axis of the slots; see `StepCache`.
    """
    clock, rows = state.clock, state.rows
    beam_size = rows.live.last.shape[1]
    rings = jax.tree.map(lambda x, axis: x.shape[axis] // beam_size, state.cache, slot_axes)
    period = math.lcm(state.capacity, *jax.tree.leaves(rings))
    first = jnp.where(rows.searching, rows.starts, clock).min()
    passed = first - first % period
    return state._replace(clock=clock - passed, rows=rows._replace(starts=rows.starts - passed))


def advance(
    strategy: Strategy,
    step: StepFn,
    state: SearchState,
    leave: int | Int[Array, ""] = 0,
    constraints: Constraints = UNCONSTRAINED,
    max_steps: int | Int[Array, ""] | None = None,
    reductions: Reductions = PLAIN,
) -> SearchState:
    """Search until few sentences are live, or one fills the ring buffer: then call `resize`.

    Args:
      leave: stop once at most this many sentences are live.
      constraints: those with which the state was begun.
      max_steps: the most positions to compute; None is no bound.
      reductions: the functions that reduce logits over the vocabulary.
    """
    first = state.clock

    def goes_on(state: SearchState) -> Bool[Array, ""]:
        full = state.rows.searching & (state.positions >= state.capacity)
        more = (jnp.sum(state.rows.searching) > leave) & ~jnp.any(full)
        return more if max_steps is None else more & (state.clock - first < max_steps)

    def further(state: SearchState) -> SearchState:
        rows, ring_index, live = state.rows, state.ring_index, state.rows.live
        slots = jnp.arange(strategy.beam_size, dtype=jnp.int32)
        slots = jnp.broadcast_to(slots, live.last.shape)
        ancestry = jax.lax.dynamic_update_index_in_dim(live.ancestry, slots, ring_index, axis=2)
        live = live._replace(ancestry=ancestry)
        mask = _ancestry_mask(ancestry, state.positions, ring_index)
        logits, cache = step(live.last, state.positions, state.clock, mask, state.cache)
        state = state._replace(rows=rows._replace(live=live))
        logits = constraints.force_prompt(state, logits.astype(jnp.float32))
        allowed = constraints.apply(state, logits, strategy.eos_id)
        live, finished, more = strategy.extend(state, NextLogits(logits, allowed, reductions))
        live = constraints.advance_automaton(live)
        # A row whose sentence has ended runs on with the others, and keeps what it had.
        before = rows.live, rows.finished
        live, finished = hypotheses.choose_rows(rows.searching, (live, finished), before)
        searching = rows.searching & more & (state.positions + 1 < rows.limits)
        rows = rows._replace(searching=searching, live=live, finished=finished)
        return SearchState(state.clock + 1, rows, cache)

    return jax.lax.while_loop(goes_on, further, state)


def results(strategy: Strategy, state: SearchState, pad_id: int = 0) -> SearchResult:
    """Return each sentence's best hypotheses, which are final once its search is over.

    Returns:
      The k best finished hypotheses. If none of a sentence is finished, the k best live ones,
      scored as if their length were the limit.
    """
    rows = state.rows
    none_finished = ~hypotheses.is_possible(rows.finished.scores[:, :1])
    entering = jnp.broadcast_to(none_finished, rows.live.last.shape)
    best = hypotheses.add_finished(
        rows.finished, rows.live, entering, rows.limits, strategy.alpha, strategy.offset
    )
    positions = jnp.arange(state.capacity)
    ring_indices = (rows.starts[:, None] + positions) % state.capacity
    tokens = jnp.take_along_axis(best.tokens, ring_indices[:, None], axis=2)
    return best._replace(tokens=jnp.where(positions < best.lengths[:, :, None], tokens, pad_id))


def resize(
    state: SearchState, num_rows: int, capacity: int, empty_cache: StepCache, slot_axes: PyTree[int]
) -> SearchState:
    """Change the number of rows and the size of the ring buffers.

    Args:
      state: the searches, none of which is at position `capacity` or later.
      num_rows: number of rows; new rows are free, and the last rows are dropped first.
      capacity: steps that the new ring buffer holds; the newest are kept.
      empty_cache: the shapes of a cache of the new sizes, whose ring buffers may be shorter.
      slot_axes: see `rewind`.
    """
    clock, rows = state.clock, state.rows
    beam_size = rows.live.last.shape[1]

    def fit(x: Array) -> Array:
        return _resize_ring(x, clock, 1, capacity, -1)

    def fit_cache(x: Array, new: Array | jax.ShapeDtypeStruct, axis: int) -> Array:
        return _resize_ring(x, clock, beam_size, new.shape[axis] // beam_size, axis)

    cache = jax.tree.map(fit_cache, state.cache, empty_cache, slot_axes)
    rows = rows._replace(
        live=rows.live._replace(tokens=fit(rows.live.tokens), ancestry=fit(rows.live.ancestry)),
        finished=rows.finished._replace(tokens=fit(rows.finished.tokens)),
    )
    existing = jnp.arange(num_rows) < len(rows.searching)
    rows, cache = resize_rows((rows, cache), num_rows)
    return SearchState(clock, rows._replace(searching=rows.searching & existing), cache)


def _resize_ring(x: Array, clock: Int32[Array, ""], slots: int, capacity: int, axis: int) -> Array:
    """Copy the newest entries to a ring buffer of another size, of step s to index s % capacity.

    Args:
      x: an array with a ring buffer along `axis`.
      slots: entries of each step.
      capacity: steps that the new ring buffer holds.
    """
    old = x.shape[axis] // slots
    oldest_first = jnp.roll(x, -(clock % old) * slots, axis)
    newest = jax.lax.slice_in_dim(oldest_first, max(0, old - capacity) * slots, None, axis=axis)
    widths = [(0, 0)] * x.ndim
    widths[axis] = max(0, capacity - old) * slots, 0
    return jnp.roll(jnp.pad(newest, widths), clock % capacity * slots, axis)


def put_rows(tree: Tree, new: Tree, rows: Int[Array, " n"]) -> Tree:
    """Replace rows, on the first axis of arrays; an index beyond the last row drops the new row."""
    return jax.tree.map(lambda old, new: old.at[rows].set(new, mode="drop"), tree, new)


def resize_rows(tree: Tree, num_rows: int) -> Tree:
    """Return arrays with `num_rows` rows: the first ones, then copies of the last one."""
    return jax.tree.map(lambda x: x[jnp.minimum(jnp.arange(num_rows), len(x) - 1)], tree)


def search(
    strategy: Strategy,
    step: StepFn,
    state: SearchState,
    pad_id: int = 0,
    constraints: Constraints = UNCONSTRAINED,
) -> SearchResult:
    """Search for all sentences of a batch.

    Args:
      state: the searches, from `begin`, with capacity for the limit of each sentence.
      pad_id: id after the end of a sentence.
      constraints: the constraints with which the state was begun.
    """
    return results(strategy, advance(strategy, step, state, constraints=constraints), pad_id)


def _ancestry_mask(
    ancestry: Int32[Array, "b k t"], positions: Int32[Array, " b"], ring_index: Int32[Array, ""]
) -> Bool[Array, "b k t k"]:
    _, beam_size, capacity = ancestry.shape
    steps_ago = (ring_index - jnp.arange(capacity)) % capacity
    written = steps_ago <= positions[:, None]  # [b, t]
    return jax.nn.one_hot(ancestry, beam_size, dtype=jnp.bool_) & written[:, None, :, None]
