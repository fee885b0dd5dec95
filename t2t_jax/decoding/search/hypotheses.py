"""The arrays of live and finished hypotheses, and the scores that rank them."""

from functools import partial
from typing import NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32, Int, Int32, Key, PyTree

Tree = TypeVar("Tree")

IMPOSSIBLE = -1e9
"""The log-probability and score of an empty slot: a finite number, so that no NaN arises."""

WU_OFFSET = 5.0
"""The number 5 in the length penalty of Wu et al. (2016), equation 14."""

StepCache: TypeAlias = PyTree
"""The cache of a step function: a pytree of arrays, which only the step function reads. One axis of
each array, named by `slot_axes` in `resize`, holds k slots for each index of a ring buffer."""


class SearchResult(NamedTuple):
    """The k best hypotheses of each sentence, best first.

    An empty slot has length 0, only padding, and the score `IMPOSSIBLE`.
    """

    tokens: Int32[Array, "b k t"]
    """Ids after the begin of sentence, up to and including the end of sentence; then padding."""
    scores: Float32[Array, "b k"]
    """`log_probs` over the length penalty."""
    log_probs: Float32[Array, "b k"]
    """Log-probability of each hypothesis under the model, in nats."""
    lengths: Int32[Array, "b k"]
    """Tokens generated, end of sentence included."""


class Hypotheses(NamedTuple):
    """Live hypotheses, or the candidates for the next ones, best first."""

    last: Int32[Array, "b m"]
    """The last token of each hypothesis; before the first step, the begin of sentence."""
    tokens: Int32[Array, "b m t"]
    """The generated tokens, each at its step's index of the ring buffer."""
    ancestry: Int32[Array, "b m t"]
    """The cache slot of the hypothesis at each index of the ring buffer."""
    log_probs: Float32[Array, "b m"]
    """Log-probability of each hypothesis under the model, in nats."""
    phrase_states: Bool[Array, "b m states"] | None = None
    """Whether each hypothesis is in each state of the phrase automaton, if there is one."""


class SearchRows(NamedTuple):
    """The searches of a batch, one sentence per row, with a ring buffer of t steps."""

    starts: Int32[Array, " b"]
    """The clock when the sentence began."""
    limits: Int32[Array, " b"]
    """The most tokens to generate, end of sentence included."""
    searching: Bool[Array, " b"]
    """False for a free row, or if the sentence has ended."""
    keys: Key[Array, " b"] | None
    """PRNG keys of the sentences, if tokens are sampled."""
    live: Hypotheses
    """The hypotheses that have not ended."""
    finished: SearchResult
    """The best hypotheses that have ended; tokens are in the order of the ring buffer."""
    prefixes: Int32[Array, "b p"] | None = None
    """Tokens with which each output must begin, padded with -1, if any output has a prefix."""


class SearchState(NamedTuple):
    """The state of all searches of a batch."""

    clock: Int32[Array, ""]
    """The number of the next step; `rewind` lowers it."""
    rows: SearchRows
    """The search of each sentence."""
    cache: StepCache
    """The cache for the next step."""

    @property
    def capacity(self) -> int:
        """Return the number of steps t that the ring buffer holds."""
        return self.rows.live.tokens.shape[-1]

    @property
    def ring_index(self) -> Int32[Array, ""]:
        """Return the index of the ring buffer at which the next step writes."""
        return self.clock % self.capacity

    @property
    def positions(self) -> Int32[Array, " b"]:
        """Return the position of the last token of each live sentence."""
        return self.clock - self.rows.starts


def length_penalty(
    length: Int[Array, "..."], alpha: float, offset: float = WU_OFFSET
) -> Float32[Array, "..."]:
    """Return the divisor of a log-probability, `((5 + length) / 6) ** alpha` (section 6.1).

    This is equation 14 of Wu et al. (2016) without the coverage penalty.

    Args:
      length: generated tokens, end of sentence included.
      alpha: 0 compares plain log-probabilities; a greater value favours longer hypotheses.
      offset: the number 5 of the formula; 0 gives `length ** alpha`.
    """
    return ((offset + length.astype(jnp.float32)) / (offset + 1.0)) ** alpha


def add_finished(
    finished: SearchResult,
    hypotheses: Hypotheses,
    entering: Bool[Array, "b m"],
    lengths: Int[Array, " b"],
    alpha: float,
    offset: float = WU_OFFSET,
) -> SearchResult:
    """Return the k best among the finished hypotheses and the entering candidates.

    Args:
      lengths: generated tokens of the candidates of each sentence.
      alpha: see `length_penalty`, also for the offset.
    """
    scores = scores_of(hypotheses.log_probs, lengths, alpha, offset)
    new = SearchResult(
        tokens=hypotheses.tokens,
        scores=jnp.where(entering, scores, IMPOSSIBLE),
        log_probs=hypotheses.log_probs,
        lengths=jnp.broadcast_to(lengths.astype(jnp.int32)[:, None], scores.shape),
    )
    pool = jax.tree.map(lambda old, new: jnp.concatenate([old, new], axis=1), finished, new)
    # Of equal scores top_k takes the first: an empty slot stays empty if nothing better enters.
    _, best = jax.lax.top_k(pool.scores, finished.scores.shape[1])
    return take_hypotheses(pool, best)


def scores_of(
    log_probs: Float32[Array, "b m"],
    lengths: Int[Array, " b"],
    alpha: float,
    offset: float = WU_OFFSET,
) -> Float32[Array, "b m"]:
    """Return the scores of hypotheses: log-probability over `length_penalty`.

    Args:
      lengths: generated tokens of the hypotheses of each sentence.
    """
    scores = log_probs / length_penalty(lengths, alpha, offset)[:, None]
    return jnp.where(is_possible(log_probs), scores, IMPOSSIBLE)


def is_possible(log_probs: Float32[Array, "*shape"]) -> Bool[Array, "*shape"]:
    """Return whether each slot holds a hypothesis."""
    return log_probs > IMPOSSIBLE / 2


def take_hypotheses(tree: Tree, slots: Int32[Array, "b n"]) -> Tree:
    """Take some slots on axis 1 of all arrays of a tree."""

    def take(array: Array) -> Array:
        return jnp.take_along_axis(array, slots.reshape(slots.shape + (1,) * (array.ndim - 2)), 1)

    return jax.tree.map(take, tree)


def choose_rows(condition: Bool[Array, " b"], new: Tree, old: Tree) -> Tree:
    """Return the row of each sentence from `new` where `condition` is true, else from `old`."""
    return jax.tree.map(partial(jax.vmap(jnp.where), condition), new, old)
