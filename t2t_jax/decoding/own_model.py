"""Beam search over a model of one's own, given as a function of the last tokens and a state."""

from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Int32, PyTree

from t2t_jax.batch import PAD_ID
from t2t_jax.decoding.search.hypotheses import SearchResult, take_hypotheses
from t2t_jax.decoding.search.loop import begin, search
from t2t_jax.decoding.search.strategies import BeamSearch, Greedy, Strategy
from t2t_jax.errors import UserError

OwnStep: TypeAlias = Callable[[Int32[Array, " n"], PyTree], tuple[Float[Array, "n v"], PyTree]]
"""`step(tokens, state) -> logits, state`, for n hypotheses, each of which is a row.

`tokens` are the last tokens of the hypotheses, and `logits` score the tokens that may follow: they
need not be normalised. `state` is any tree of arrays with a row for each hypothesis, such as the
hidden vectors of a recurrent network or the tokens so far."""


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
    """Search for the most probable sequences of a model of one's own (section 6.1).

    Row `n` belongs to sentence `n // beam_size`. When hypotheses die and others split, the rows of
    `state` follow them; `decoding.search` has a search that moves no cache of keys and values.

    Args:
      step: the model, which is traced as under `jax.jit`; see `OwnStep`.
      state: the state before the first token: arrays with a row for each sentence, or None.
      start: the token that each sentence starts from, which is no part of the result.
      max_length: the most tokens of a sequence, its end included.
      beam_size: hypotheses kept of each sentence; 1 is greedy search, which ranks nothing.
      alpha: exponent of the length penalty, at least 0; 0 ranks only by probability.
      eos_id: the token that ends a sequence.
      pad_id: the token that fills the places after a sequence.

    Returns:
      The `beam_size` best sequences of each sentence, best first; places without one are empty.
      Sequences that have not ended at `max_length` are returned only if none has ended.

    Raises:
      UserError: a number is out of its range, or `step` and `state` are not as `OwnStep` says.
    """
    for name, value in ("max_length", max_length), ("beam_size", beam_size), ("alpha", alpha):
        least = 0 if name == "alpha" else 1
        if value < least:
            raise UserError(f"{name}={value} is less than {least}")
    start = _checked_starts(step, state, start, eos_id, beam_size)
    beams: Strategy = BeamSearch(eos_id, beam_size, alpha, num_best=beam_size)

    def of_each_hypothesis(
        tokens: Int32[Array, "b k"],
        positions: Int32[Array, " b"],
        clock: Int32[Array, ""],
        ancestry_mask: Bool[Array, "b k t k"],
        state: PyTree,
    ) -> tuple[Float[Array, "b k v"], PyTree]:
        slots = jnp.argmax(ancestry_mask[:, :, (clock - 1) % max_length], axis=-1)
        state = take_hypotheses(state, slots)  # of the step before
        tokens = jnp.where(positions[:, None] == 0, start[:, None], tokens)
        rows = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (tokens, state))
        return jax.tree.map(lambda x: x.reshape(*tokens.shape, *x.shape[1:]), step(*rows))

    begun = begin(
        jax.tree.map(lambda x: jnp.repeat(jnp.asarray(x)[:, None], beam_size, axis=1), state),
        jnp.full(start.shape, max_length, jnp.int32),
        beam_size=beam_size,
        capacity=max_length,
        bos_id=0,  # `start` takes its place
    )
    return search(beams if beam_size > 1 else Greedy(eos_id), of_each_hypothesis, begun, pad_id)


def _checked_starts(
    step: OwnStep, state: PyTree, start: jax.typing.ArrayLike, eos_id: int, beam_size: int
) -> Int32[Array, " b"]:
    """Return the first tokens as an array, or refuse what a search could not go on with."""
    start = jnp.asarray(start, jnp.int32)
    if start.ndim != 1:
        raise UserError(f"start has shape {start.shape}; give one token for each sentence")
    rows = len(start) * beam_size
    state = jax.tree.map(jnp.asarray, state)
    for x in jax.tree.leaves(state):
        if x.shape[:1] != start.shape:
            raise UserError(
                f"state has an array of shape {x.shape}; give it a row for each of the "
                f"{len(start)} sentences in start"
            )
    before = jax.tree.map(lambda x: jax.ShapeDtypeStruct((rows, *x.shape[1:]), x.dtype), state)
    made = jax.eval_shape(step, jax.ShapeDtypeStruct((rows,), jnp.int32), before)
    if not isinstance(made, tuple) or len(made) != 2:
        raise UserError("step does not return two things; return logits and state")
    logits, after = made
    if len(logits.shape) != 2 or logits.shape[0] != rows:
        raise UserError(
            f"step returned logits of shape {logits.shape} for {rows} hypotheses; return "
            f"[{rows}, vocabulary]"
        )
    if not 0 <= eos_id < logits.shape[1]:
        raise UserError(f"eos_id={eos_id} is no token of {logits.shape[1]} logits; give their end")
    kinds = [jax.tree.map(lambda x: f"{x.dtype}{list(x.shape)}", x) for x in (before, after)]
    if kinds[0] != kinds[1]:
        raise UserError(
            f"step made a state of {kinds[1]} from one of {kinds[0]}; return arrays of the same "
            "shapes and dtypes"
        )
    return start
