"""Hypotheses under search and those that have ended: the arrays, and their order."""

from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32, Int, Int32, Key

IMPOSSIBLE = -1e9
"""Log-probability and score of a place that holds no hypothesis: finite, so that no NaN arises."""

Cache: TypeAlias = Any
"""Any pytree of arrays; only the step function looks inside. In each, the last axis holds the
places of the ring, with the same number of entries for every place."""


class SearchResult(NamedTuple):
    """The k best hypotheses of each sentence, best first.

    A place without a hypothesis has length 0, only padding, and `IMPOSSIBLE` as its score.
    """

    tokens: Int32[Array, "b k t"]
    """Ids after the begin of sentence, up to and including the end of sentence; then padding."""
    scores: Float32[Array, "b k"]
    """`log_probs` over the length penalty."""
    log_probs: Float32[Array, "b k"]
    """Log-probability of the whole hypothesis under the model, in nats."""
    lengths: Int32[Array, "b k"]
    """Tokens generated, end of sentence included."""


class Hypotheses(NamedTuple):
    """Hypotheses that have not ended, or candidates for them, best first."""

    last: Int32[Array, "b m"]
    """Their last token, which is the begin of sentence at first."""
    tokens: Int32[Array, "b m t"]
    """What was generated, each token at the place of the step that chose it."""
    ancestry: Int32[Array, "b m t"]
    """The slot in which each place was written."""
    log_probs: Float32[Array, "b m"]


class Rows(NamedTuple):
    """What belongs to a sentence each, with room for t positions."""

    starts: Int32[Array, " b"]
    """The clock when it began."""
    limits: Int32[Array, " b"]
    """The most tokens to generate, end of sentence included."""
    searching: Bool[Array, " b"]
    """False for a row that is free, or whose sentence has ended and waits to be read."""
    keys: Key[Array, " b"] | None
    """For tokens that are drawn."""
    live: Hypotheses
    finished: SearchResult
    """The best that have ended; their tokens are at places of the ring."""


class SearchState(NamedTuple):
    """Searches under way."""

    clock: Int32[Array, ""]
    """Steps taken since the first sentence began."""
    rows: Rows
    cache: Cache

    @property
    def room(self) -> int:
        """Places of the ring, t."""
        return self.rows.live.tokens.shape[-1]

    @property
    def positions(self) -> Int32[Array, " b"]:
        """Position of the last token of each sentence that is under way."""
        return self.clock - self.rows.starts


def length_penalty(length: Int[Array, "..."], alpha: float) -> Float32[Array, "..."]:
    """What a log-probability is divided by: `((5 + length) / 6) ** alpha`.

    Wu et al. (2016), equation 14, with the coverage penalty left out, as in section 6.1.

    Args:
      length: tokens generated, end of sentence included.
      alpha: 0 compares plain log-probabilities; more favours longer hypotheses.
    """
    return ((5.0 + length.astype(jnp.float32)) / 6.0) ** alpha


def add_finished(
    finished: SearchResult,
    hypotheses: Hypotheses,
    entering: Bool[Array, "b m"],
    lengths: Int[Array, " b"],
    alpha: float,
) -> SearchResult:
    """The k best of those finished and those entering, which are `lengths` long."""
    scores = scores_of(hypotheses.log_probs, lengths, alpha)
    new = SearchResult(
        tokens=hypotheses.tokens,
        scores=jnp.where(entering, scores, IMPOSSIBLE),
        log_probs=hypotheses.log_probs,
        lengths=jnp.broadcast_to(lengths.astype(jnp.int32)[:, None], scores.shape),
    )
    pool = jax.tree.map(lambda old, new: jnp.concatenate([old, new], axis=1), finished, new)
    # Of equal scores top_k takes the first: an empty place stays empty if nothing better enters.
    _, best = jax.lax.top_k(pool.scores, finished.scores.shape[1])
    return take_hypotheses(pool, best)


def scores_of(
    log_probs: Float32[Array, "b m"], lengths: Int[Array, " b"], alpha: float
) -> Float32[Array, "b m"]:
    """What hypotheses are ranked by: log-probability over the length penalty.

    Args:
      log_probs: of the hypotheses.
      lengths: tokens generated for those of each sentence.
      alpha: exponent of `length_penalty`.
    """
    scores = log_probs / length_penalty(lengths, alpha)[:, None]
    return jnp.where(is_possible(log_probs), scores, IMPOSSIBLE)


def is_possible(log_probs: Float32[Array, "*shape"]) -> Bool[Array, "*shape"]:
    """Whether there is a hypothesis: nothing that is one comes near `IMPOSSIBLE`."""
    return log_probs > IMPOSSIBLE / 2


def write_place(
    rows: Int32[Array, "b m t"], column: Int32[Array, "b m"], place: Int32[Array, ""]
) -> Int32[Array, "b m t"]:
    """The rows with another column at a place of the ring."""
    return jax.lax.dynamic_update_index_in_dim(rows, column, place, axis=2)


def take_hypotheses(tree: Any, rows: Int32[Array, "b n"]) -> Any:
    """For each sentence, some of the rows (axis 1) of every array."""

    def take(array: Array) -> Array:
        return jnp.take_along_axis(array, rows.reshape(rows.shape + (1,) * (array.ndim - 2)), 1)

    return jax.tree.map(take, tree)


def choose_rows(condition: Bool[Array, " b"], new: Any, old: Any) -> Any:
    """For each sentence, one or the other of every pair of arrays."""

    def choose(new: Array, old: Array) -> Array:
        return jnp.where(condition.reshape((-1,) + (1,) * (new.ndim - 1)), new, old)

    return jax.tree.map(choose, new, old)
