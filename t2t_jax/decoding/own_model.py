"""Run beam search for a model that is given as a step function."""

from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Int32, PyTree

from t2t_jax.batch import PAD_ID
from t2t_jax.decoding.search.hypotheses import SearchResult, take_hypotheses
from t2t_jax.decoding.search.loop import advance, begin, results
from t2t_jax.decoding.search.strategies import BeamSearch, Greedy, Strategy
from t2t_jax.errors import UserError

OwnStep: TypeAlias = Callable[[Int32[Array, " n"], PyTree], tuple[Float[Array, "n v"], PyTree]]
"""`step(tokens, state) -> logits, state` for n hypotheses.

`tokens` are the last tokens, and `logits` score the next tokens; they need not be normalized.
`state` is a pytree of arrays with a row for each hypothesis, such as the hidden vectors of a
recurrent network or the tokens so far."""


def beam_search(
    step: OwnStep,
    state: PyTree,
    start: Int[Array, " b"],
    *,
    eos_id: int,
    max_length: int,
    beam_size: int = 4,
    alpha: float = 0.6,
    pad_id: int = PAD_ID,
) -> SearchResult:
    """Run beam search for a model given as a step function (section 6.1).

    The search reorders the rows of `state` at every step; row `n` belongs to sentence `n //
    beam_size`.

    Args:
      step: the model, a traceable function; see `OwnStep`.
      state: the state before the first token: arrays with a row for each sentence, or None.
      start: the first token of each sentence, which is not part of the result.
      max_length: the most tokens of a sequence, including its end-of-sentence token.
      beam_size: number of hypotheses of each sentence; 1 means greedy search.
      alpha: exponent of the length penalty, at least 0; 0 ranks by probability.
      eos_id: the end-of-sentence token.
      pad_id: the token after the end of a sequence.

    Returns:
      The `beam_size` best sequences of each sentence, best first; an empty slot has length 0.
      Unfinished sequences of `max_length` tokens are returned only if no sequence is finished.

    Raises:
      UserError: an argument is out of range, or `step` or `state` does not match `OwnStep`.
    """
    for name, value in ("max_length", max_length), ("beam_size", beam_size), ("alpha", alpha):
        minimum = 0 if name == "alpha" else 1
        if value < minimum:
            raise UserError(f"{name}={value} is less than {minimum}")
    start = _checked_starts(step, state, start, eos_id, beam_size)
    strategy: Strategy = BeamSearch(eos_id, beam_size, alpha, num_best=beam_size)
    if beam_size == 1:
        strategy = Greedy(eos_id)

    def search_step(
        tokens: Array, positions: Array, clock: Array, ancestry_mask: Array, state: PyTree
    ) -> tuple[Array, PyTree]:
        # The state is in the slots of the previous step, so move it to the current slots.
        slots = jnp.argmax(ancestry_mask[:, :, (clock - 1) % max_length], axis=-1)  # [b, k]
        state = take_hypotheses(state, slots)
        tokens = jnp.where(positions[:, None] == 0, start[:, None], tokens)
        flat_inputs = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (tokens, state))
        return jax.tree.map(lambda x: x.reshape(*tokens.shape, *x.shape[1:]), step(*flat_inputs))

    searches = begin(
        jax.tree.map(lambda x: jnp.repeat(jnp.asarray(x)[:, None], beam_size, axis=1), state),
        jnp.full(start.shape, max_length, jnp.int32),
        beam_size=beam_size,
        capacity=max_length,
        bos_id=0,  # `search_step` replaces it by `start`
    )
    return results(strategy, advance(strategy, search_step, searches), pad_id)


def _checked_starts(
    step: OwnStep, state: PyTree, start: jax.typing.ArrayLike, eos_id: int, beam_size: int
) -> Int32[Array, " b"]:
    start = jnp.asarray(start, jnp.int32)
    if start.ndim != 1:
        raise UserError(f"start has shape {start.shape}; give one token for each sentence")
    num_rows = len(start) * beam_size
    state = jax.tree.map(jnp.asarray, state)
    for x in jax.tree.leaves(state):
        if x.shape[:1] != start.shape:
            raise UserError(
                f"state has an array of shape {x.shape}; give it a row for each of the "
                f"{len(start)} sentences in start"
            )
    state = jax.tree.map(lambda x: jax.ShapeDtypeStruct((num_rows, *x.shape[1:]), x.dtype), state)
    outputs = jax.eval_shape(step, jax.ShapeDtypeStruct((num_rows,), jnp.int32), state)
    if not isinstance(outputs, tuple) or len(outputs) != 2:
        raise UserError("step must return a tuple of two; return logits and state")
    logits, new_state = outputs
    if len(logits.shape) != 2 or logits.shape[0] != num_rows:
        raise UserError(
            f"step returned logits of shape {logits.shape} for {num_rows} hypotheses; return "
            f"[{num_rows}, vocabulary]"
        )
    if not 0 <= eos_id < logits.shape[1]:
        raise UserError(f"eos_id={eos_id} is not a token; give one from 0 to {logits.shape[1] - 1}")
    types = [jax.tree.map(lambda x: f"{x.dtype}{[*x.shape]}", tree) for tree in (state, new_state)]
    if types[0] != types[1]:
        raise UserError(
            f"step returned a state of {types[1]} for a state of {types[0]}; return arrays of the "
            "same shapes and dtypes"
        )
    return start
