"""Run a search: begin, admit sentences, advance and read the results."""

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

`tokens` are the last tokens of the hypotheses, at `positions`; position 0 holds the
beginning-of-sentence token. Step number `clock` writes cache entries in all k slots at index `clock
% t` of the ring buffer. `logits` score the next tokens. `ancestry_mask[b, j, t, i]` is true if the
entry in slot `i` at index `t` belongs to hypothesis `j`.
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
    """Create the initial state of a search, with one hypothesis per sentence.

    Args:
      limits: the most tokens to generate for each sentence; 0 for a free row.
      capacity: size of the ring buffer in steps, at least 1.
      bos_id: the token at position 0.
      keys: a PRNG key for each sentence, for sampling.
      prefixes: required first tokens of each output, padded with -1.
    """
    slots = jnp.broadcast_to(jnp.arange(beam_size, dtype=jnp.int32), (*limits.shape, beam_size))
    no_scores = jnp.full(slots.shape, hypotheses.IMPOSSIBLE, jnp.float32)
    no_tokens = jnp.zeros((*slots.shape, capacity), jnp.int32)  # [batch, beam, capacity]
    # Identical hypotheses would all have the same continuations, so only slot 0 is filled.
    log_probs = jnp.where(slots == 0, 0.0, no_scores)
    rows = SearchRows(
        starts=jnp.zeros(limits.shape, jnp.int32),
        limits=limits.astype(jnp.int32),
        searching=limits > 0,
        keys=keys,
        live=Hypotheses(
            jnp.full_like(slots, bos_id),
            no_tokens,
            no_tokens,
            log_probs,
            constraints.initial_states(slots.shape),
        ),
        finished=SearchResult(no_tokens, no_scores, no_scores, jnp.zeros_like(slots)),
        prefixes=prefixes,
    )
    return SearchState(jnp.int32(0), rows, cache)


def admit(state: SearchState, new: SearchRows, rows: Int[Array, " n"]) -> SearchState:
    """Put new sentences into free rows.

    Args:
      new: searches from `begin` with the same capacity.
      rows: the row index of each sentence; an index beyond the last row is ignored.
    """
    new = new._replace(starts=jnp.broadcast_to(state.clock, new.limits.shape))
    return state._replace(rows=put_rows(state.rows, new, rows))


def advance(
    strategy: Strategy,
    step: StepFn,
    state: SearchState,
    max_live: int | Int[Array, ""] = 0,
    constraints: Constraints = UNCONSTRAINED,
    max_steps: Int[Array, ""] | None = None,
    reductions: Reductions = PLAIN,
) -> SearchState:
    """Run decoding steps until few sentences are live, that is, still searching.

    The search also stops when a sentence fills the ring buffer. The caller then calls `resize`, and
    this function again.

    Args:
      step: computes the logits of the next tokens, and the new cache.
      state: searches from `begin`; the defaults of the other arguments run them to their end.
      max_live: stop once at most this many sentences are live.
      constraints: the constraints passed to `begin`.
      max_steps: the most steps to compute; None sets no limit.
    """
    start = state.clock

    def should_continue(state: SearchState) -> Bool[Array, ""]:
        is_full = state.rows.searching & (state.positions >= state.capacity)
        has_work = (jnp.sum(state.rows.searching) > max_live) & ~jnp.any(is_full)
        return has_work if max_steps is None else has_work & (state.clock - start < max_steps)

    def extend(state: SearchState) -> SearchState:
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
        next_logits = NextLogits(logits, allowed, reductions)
        live, finished, can_improve = strategy.extend(state, next_logits)
        new = constraints.advance_automaton(live), finished
        # The step computes rows of ended sentences too; their hypotheses must not change.
        live, finished = hypotheses.choose_rows(rows.searching, new, (rows.live, rows.finished))
        searching = rows.searching & can_improve & (state.positions + 1 < rows.limits)
        rows = rows._replace(searching=searching, live=live, finished=finished)
        return SearchState(state.clock + 1, rows, cache)

    return jax.lax.while_loop(should_continue, extend, state)


def results(strategy: Strategy, state: SearchState, pad_id: int = 0) -> SearchResult:
    """Return the k best finished hypotheses of each sentence.

    If no hypothesis of a sentence is finished, return its live hypotheses, scored as if their
    length were the limit.
    """
    rows = state.rows
    none_finished = ~hypotheses.is_possible(rows.finished.scores[:, :1])
    is_added = jnp.broadcast_to(none_finished, rows.live.last.shape)
    finished, limits, penalty = rows.finished, rows.limits, strategy.penalty
    best = hypotheses.add_finished(finished, rows.live, is_added, limits, penalty)
    positions = jnp.arange(state.capacity)
    ring_indices = (rows.starts[:, None] + positions) % state.capacity
    tokens = jnp.take_along_axis(best.tokens, ring_indices[:, None], axis=2)
    return best._replace(tokens=jnp.where(positions < best.lengths[:, :, None], tokens, pad_id))


def resize(
    state: SearchState, num_rows: int, capacity: int, empty_cache: StepCache, slot_axes: PyTree[int]
) -> SearchState:
    """Change the number of rows and the size of the ring buffers.

    Args:
      state: searches whose positions are below `capacity`.
      num_rows: the new number of rows. New rows are free; the last rows are cut.
      capacity: the new size of the ring buffer; the newest steps stay.
      empty_cache: the shapes of a cache of the new sizes; its ring buffers may be shorter.
      slot_axes: the slot axis of each array of the cache; see `StepCache`.
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
    is_old_row = jnp.arange(num_rows) < len(rows.searching)
    rows, cache = resize_rows((rows, cache), num_rows)
    return SearchState(clock, rows._replace(searching=rows.searching & is_old_row), cache)


def _resize_ring(x: Array, clock: Int32[Array, ""], slots: int, capacity: int, axis: int) -> Array:
    """Copy the newest steps to a ring buffer of `capacity` steps: step s goes to s % capacity.

    Args:
      clock: number of steps so far; the newest is `clock - 1`.
      slots: number of entries per step along `axis`.
    """
    size = x.shape[axis] // slots
    oldest_first = jnp.roll(x, -(clock % size) * slots, axis)
    newest = jax.lax.slice_in_dim(oldest_first, max(0, size - capacity) * slots, None, axis=axis)
    widths = [(0, 0)] * x.ndim
    widths[axis] = max(0, capacity - size) * slots, 0
    return jnp.roll(jnp.pad(newest, widths), clock % capacity * slots, axis)


def put_rows(tree: Tree, new: Tree, rows: Int[Array, " n"]) -> Tree:
    """Write new rows into the arrays of a tree; an index beyond the last row is ignored."""
    return jax.tree.map(lambda old, new: old.at[rows].set(new, mode="drop"), tree, new)


def resize_rows(tree: Tree, num_rows: int) -> Tree:
    """Cut arrays to their first `num_rows` rows, or append copies of the last row."""
    return jax.tree.map(lambda x: x[jnp.minimum(jnp.arange(num_rows), len(x) - 1)], tree)


def _ancestry_mask(
    ancestry: Int32[Array, "b k t"], positions: Int32[Array, " b"], ring_index: Int32[Array, ""]
) -> Bool[Array, "b k t k"]:
    _, beam_size, capacity = ancestry.shape
    steps_ago = (ring_index - jnp.arange(capacity)) % capacity
    is_valid = steps_ago <= positions[:, None]  # [b, t], false before the sentence's start
    return jax.nn.one_hot(ancestry, beam_size, dtype=jnp.bool_) & is_valid[:, None, :, None]
