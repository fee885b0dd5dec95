"""Store hypotheses in arrays, and compute the scores that rank them."""

from functools import partial
from typing import NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32, Int, Int32, Key, PyTree

Tree = TypeVar("Tree")

IMPOSSIBLE = -1e9
"""The log-probability and score of an empty slot; finite, because infinities can give NaN."""

StepCache: TypeAlias = PyTree
"""The cache of a step function. One axis of each array, its slot axis, holds k slots for each index
of a ring buffer."""


class SearchResult(NamedTuple):
    """The k best hypotheses of each sentence, best first.

    Empty slots have length 0 and the score `IMPOSSIBLE`.
    """

    tokens: Int32[Array, "b k t"]
    """Generated token ids, including the end-of-sentence token; then padding."""
    scores: Float32[Array, "b k"]
    """`log_probs` divided by the length penalty."""
    log_probs: Float32[Array, "b k"]
    """Log-probability of each hypothesis under the model, in nats."""
    lengths: Int32[Array, "b k"]
    """Number of generated tokens."""


class Hypotheses(NamedTuple):
    """Live hypotheses or candidates, best first."""

    last: Int32[Array, "b m"]
    """The last token of each hypothesis; the beginning-of-sentence token before the first step."""
    tokens: Int32[Array, "b m t"]
    """The generated tokens, each at its step's index of the ring buffer."""
    ancestry: Int32[Array, "b m t"]
    """The cache slot of the hypothesis at each index of the ring buffer."""
    log_probs: Float32[Array, "b m"]
    """Log-probability of each hypothesis, in nats."""
    phrase_states: Bool[Array, "b m states"] | None = None
    """Whether each hypothesis is in each state of the phrase automaton, if any."""


class SearchRows(NamedTuple):
    """The searches of a batch, one sentence per row, with ring buffers of t steps."""

    starts: Int32[Array, " b"]
    """The clock at the first step of each sentence."""
    limits: Int32[Array, " b"]
    """The most tokens to generate for each sentence."""
    searching: Bool[Array, " b"]
    """Whether each row's search is running; false for a free row."""
    keys: Key[Array, " b"] | None
    """A PRNG key per sentence, for sampling."""
    live: Hypotheses
    """The hypotheses that have not ended."""
    finished: SearchResult
    """The best finished hypotheses, with tokens in ring-buffer order."""
    prefixes: Int32[Array, "b p"] | None = None
    """Required first tokens of each output, padded with -1."""


class SearchState(NamedTuple):
    """The state of a batch of searches."""

    clock: Int32[Array, ""]
    """The number of the next step."""
    rows: SearchRows
    """The search of each sentence."""
    cache: StepCache
    """The step function's cache."""

    @property
    def capacity(self) -> int:
        """Return the size t of the ring buffer."""
        return self.rows.live.tokens.shape[-1]

    @property
    def ring_index(self) -> Int32[Array, ""]:
        """Return the ring-buffer index at which the next step writes."""
        return self.clock % self.capacity

    @property
    def positions(self) -> Int32[Array, " b"]:
        """Return the position of each live sentence's last token."""
        return self.clock - self.rows.starts


class LengthPenalty(NamedTuple):
    """The divisor of log-probabilities, `((5 + length) / 6) ** alpha` (section 6.1).

    The formula is equation 14 of Wu et al. (2016) without the coverage penalty.
    """

    alpha: float
    """0 ranks by log-probability; greater values favor longer hypotheses."""
    offset: float = 5.0
    """The constant 5 of the formula; 0 gives `length ** alpha`."""

    def __call__(self, length: Int[Array, "..."]) -> Float32[Array, "..."]:
        """Compute the divisor for `length` tokens, including the end-of-sentence token."""
        return ((self.offset + length.astype(jnp.float32)) / (self.offset + 1.0)) ** self.alpha


def add_finished(
    finished: SearchResult,
    candidates: Hypotheses,
    is_finished: Bool[Array, "b m"],
    lengths: Int[Array, " b"],
    penalty: LengthPenalty,
) -> SearchResult:
    """Return the k best among the finished hypotheses and the candidates that `is_finished` marks.

    Args:
      lengths: number of generated tokens of each sentence's candidates.
    """
    scores = scores_of(candidates.log_probs, lengths, penalty)
    new = SearchResult(
        tokens=candidates.tokens,
        scores=jnp.where(is_finished, scores, IMPOSSIBLE),
        log_probs=candidates.log_probs,
        lengths=jnp.broadcast_to(lengths.astype(jnp.int32)[:, None], scores.shape),
    )
    pool = jax.tree.map(lambda old, new: jnp.concatenate([old, new], axis=1), finished, new)
    # top_k prefers the first of equal scores, so an unmarked candidate fills no empty slot.
    _, slots = jax.lax.top_k(pool.scores, finished.scores.shape[1])
    return take_hypotheses(pool, slots)


def scores_of(
    log_probs: Float32[Array, "b m"], lengths: Int[Array, " b"], penalty: LengthPenalty
) -> Float32[Array, "b m"]:
    """Divide the log-probabilities of hypotheses by the length penalty."""
    scores = log_probs / penalty(lengths)[:, None]
    return jnp.where(is_possible(log_probs), scores, IMPOSSIBLE)


def is_possible(log_probs: Float32[Array, "*shape"]) -> Bool[Array, "*shape"]:
    """Return whether each slot holds a hypothesis, from its log-probability."""
    return log_probs > IMPOSSIBLE / 2


def take_hypotheses(tree: Tree, slots: Int32[Array, "b n"]) -> Tree:
    """Select hypotheses by slot, on axis 1 of each array of a tree."""

    def take(array: Array) -> Array:
        return jnp.take_along_axis(array, slots.reshape(slots.shape + (1,) * (array.ndim - 2)), 1)

    return jax.tree.map(take, tree)


def choose_rows(condition: Bool[Array, " b"], new: Tree, old: Tree) -> Tree:
    """Select each sentence's row from `new` where `condition` is true, or else from `old`."""
    return jax.tree.map(partial(jax.vmap(jnp.where), condition), new, old)
