"""Strategies by which tokens are chosen: greedy search, sampling and beam search (section 6.1)."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32, Int, Int32, Key

from . import hypotheses
from .hypotheses import Hypotheses, SearchResult, SearchState
from .reductions import Reductions, top_k

_SMALLEST = float(jnp.finfo(jnp.float32).tiny)


class NextLogits(NamedTuple):
    """The logits of the next token of every hypothesis."""

    model: Float32[Array, "b k v"]
    """The logits of the model."""
    allowed: Float32[Array, "b k v"]
    """The same with -inf for tokens that are not allowed."""
    reductions: Reductions
    """The functions that reduce logits over the vocabulary."""


Extended: TypeAlias = tuple[Hypotheses, SearchResult, Bool[Array, " b"]]
"""The live and the finished hypotheses, and whether the search of each sentence goes on."""


@dataclass(frozen=True)
class Greedy:
    """Take the most probable token at every position.

    Attributes:
      eos_id: id that ends a sentence.
    """

    eos_id: int
    beam_size: int = field(default=1, init=False)
    alpha: float = field(default=0.0, init=False)
    offset: float = field(default=hypotheses.WU_OFFSET, init=False)
    draws: bool = field(default=False, init=False)

    def choose(
        self, state: SearchState, logits: NextLogits
    ) -> tuple[Int32[Array, "b 1"], Float32[Array, "b 1"]]:
        """Return the next token of each hypothesis, and the logsumexp of its logits."""
        return logits.reductions.argmax_and_logsumexp(logits.model, logits.allowed)

    def extend(self, state: SearchState, logits: NextLogits) -> Extended:
        """Extend the live hypotheses of each sentence by one token."""
        live = state.rows.live
        chosen, normalizer = self.choose(state, logits)
        log_probs = jnp.take_along_axis(logits.model, chosen[:, :, None], axis=2)[:, :, 0]
        log_probs -= normalizer
        log_probs += live.log_probs
        tokens = jax.lax.dynamic_update_index_in_dim(live.tokens, chosen, state.ring_index, axis=2)
        live = live._replace(last=chosen, tokens=tokens, log_probs=log_probs)
        ended = chosen[:, 0] == self.eos_id
        new = SearchResult(tokens, log_probs, log_probs, (state.positions + 1)[:, None])
        return live, hypotheses.choose_rows(ended, new, state.rows.finished), ~ended


@dataclass(frozen=True)
class Sampling(Greedy):
    """Draw tokens from the model's distribution, after temperature, top-k and top-p.

    A sentence with the same key gets the same sample in any batch. Log-probabilities are the
    model's, before temperature and cuts.

    Attributes:
      temperature: above 0; the logits are divided by it first.
      top_k: draw from this many of the most probable tokens; 0 means all.
      top_p: draw from the fewest of the most probable tokens, at least one, that hold this share of
        the probability left after temperature and `top_k`.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    draws: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        """Refuse settings that leave no distribution to draw from."""
        if self.temperature <= 0 or self.top_k < 0 or not 0 < self.top_p <= 1:
            raise ValueError(f"there is no distribution for {self}")

    def choose(
        self, state: SearchState, logits: NextLogits
    ) -> tuple[Int32[Array, "b 1"], Float32[Array, "b 1"]]:
        """Draw the next tokens; see `Greedy.choose`."""
        sentence_keys: Any = state.rows.keys
        keys = jax.vmap(jax.random.fold_in)(sentence_keys, state.positions)
        drawn = self._draw(keys, logits.allowed[:, 0]).astype(jnp.int32)
        return drawn[:, None], logits.reductions.logsumexp(logits.model)

    def _draw(self, keys: Key[Array, " b"], logits: Float32[Array, "b v"]) -> Int[Array, " b"]:
        # Both stay above 0 in float32: a temperature of 0 would divide 0 by 0, and a share of 0
        # would leave nothing to draw from.
        settings = self.temperature, self.top_p
        temperature, top_p = (max(_SMALLEST, min(x, 1 / _SMALLEST)) for x in settings)
        # With the greatest logit at 0, a tiny temperature cannot overflow to infinity.
        logits = (logits - jnp.max(logits, axis=-1, keepdims=True)) / temperature
        ids = None
        if self.top_k > 0:
            logits, ids = jax.lax.top_k(logits, min(self.top_k, logits.shape[-1]))
        if top_p < 1:
            logits = jnp.where(_nucleus(logits, top_p), logits, -jnp.inf)
        with jax.threefry_partitionable(True):  # the same sample under either setting of the user
            drawn = jax.vmap(jax.random.categorical)(keys, logits)
        return drawn if ids is None else jnp.take_along_axis(ids, drawn[:, None], axis=1)[:, 0]


@dataclass(frozen=True)
class BeamSearch:
    """Keep the k best live and the k best finished hypotheses (section 6.1).

    A sentence stops at its limit, or once no live hypothesis can enter its `num_best` best.

    Attributes:
      eos_id: id that ends a hypothesis.
      beam_size: hypotheses k.
      alpha: exponent of `length_penalty`, at least 0 (the paper: 0.6).
      num_best: the number of exact results. The k - `num_best` after them are good, but the search
        may stop before it finds better ones.
      by_transformers: rank and end as the library transformers does: scores are divided by
        `length ** alpha`, a hypothesis ends only among the k best continuations, and a sentence
        stops once k have ended and no live one is better than the worst at its current length. At
        the limit, the k best continuations compete with the hypotheses that ended.
    """

    eos_id: int
    beam_size: int
    alpha: float
    num_best: int
    by_transformers: bool = False
    draws: bool = field(default=False, init=False)

    @property
    def offset(self) -> float:
        """Return the offset in the length penalty; see `length_penalty`."""
        return 0.0 if self.by_transformers else hypotheses.WU_OFFSET

    def __post_init__(self) -> None:
        """Refuse settings that the search cannot honour."""
        # With alpha < 0 the score would no longer be highest at the limit, as `extend` assumes.
        if not 1 <= self.num_best <= self.beam_size or self.alpha < 0:
            raise ValueError(f"cannot search with {self}")

    def extend(self, state: SearchState, logits: NextLogits) -> Extended:
        """Extend the hypotheses of each sentence, and keep the best; see `Greedy.extend`."""
        candidates = _expand(state, logits)
        ended = candidates.last == self.eos_id
        num_entering = self.beam_size if self.by_transformers else 2 * self.beam_size
        may_enter = jnp.arange(ended.shape[1]) < num_entering
        entering = ended & may_enter
        log_probs = jnp.where(ended, hypotheses.IMPOSSIBLE, candidates.log_probs)
        _, best = jax.lax.top_k(log_probs, self.beam_size)
        live = hypotheses.take_hypotheses(candidates._replace(log_probs=log_probs), best)
        rows, lengths = state.rows, state.positions + 1
        final_lengths, num_exact = rows.limits, self.num_best
        if self.by_transformers:
            final_lengths, num_exact = lengths, self.beam_size
            entering |= (lengths >= rows.limits)[:, None] & may_enter  # cut at the limit
        penalty = self.alpha, self.offset
        finished = hypotheses.add_finished(rows.finished, candidates, entering, lengths, *penalty)
        # Log-probabilities only fall, and the length penalty is greatest at the limit: if the final
        # lengths are the limits, no live hypothesis can end with a higher score.
        best_live = jnp.max(live.log_probs, axis=1, keepdims=True)
        best_scores = hypotheses.scores_of(best_live, final_lengths, *penalty)[:, 0]
        return live, finished, best_scores > finished.scores[:, num_exact - 1]


Strategy: TypeAlias = Greedy | Sampling | BeamSearch
"""A search strategy, hashable as a static argument of compiled functions. Common fields are
`beam_size`, `alpha` and `offset` of `length_penalty`, and `draws`: whether it needs PRNG keys."""


def _nucleus(logits: Float32[Array, "b v"], top_p: float) -> Bool[Array, "b v"]:
    """Mark the fewest tokens, most probable first, that hold `top_p` of the probability.

    Sorting the vocabulary can take longer than the model. Instead, a bitwise search finds the
    probability of the last token: non-negative floats are ordered like their bits as integers.
    """
    probabilities = jax.nn.softmax(logits)
    bits = jax.lax.bitcast_convert_type(probabilities, jnp.int32)

    def mass_of(chosen: Bool[Array, "b v"]) -> Float32[Array, "b 1"]:
        return jnp.sum(jnp.where(chosen, probabilities, 0.0), axis=-1, keepdims=True)

    def set_bit(i: Int32[Array, ""], last: Int32[Array, "b 1"]) -> Int32[Array, "b 1"]:
        higher = last | (1 << (30 - i))
        return jnp.where(mass_of(bits >= higher) >= top_p, higher, last)

    last = jax.lax.fori_loop(0, 31, set_bit, jnp.zeros_like(bits[:, :1]))
    # Of tokens that tie for the last place, the first few are enough.
    tied = bits == last
    before = jnp.cumsum(jnp.where(tied, probabilities, 0.0), axis=-1) - probabilities
    return (bits > last) | (tied & (before < top_p - mass_of(bits > last)))


def _expand(state: SearchState, logits: NextLogits) -> Hypotheses:
    """Return the 2k best continuations by one allowed token.

    At most k of them end, one for each live hypothesis, so at least k stay live.
    """
    live = state.rows.live
    batch_size, beam_size, vocab_size = logits.allowed.shape
    width = min(2 * beam_size, vocab_size)
    # Normalising shifts a whole row, so its best are found before that: no log-softmax over v.
    best, tokens = top_k(logits.allowed, width)  # [b, k, width]
    best -= logits.reductions.logsumexp(logits.model)[:, :, None]
    best += live.log_probs[:, :, None]
    flat = (batch_size, beam_size * width)
    log_probs, chosen = jax.lax.top_k(best.reshape(flat), 2 * beam_size)  # [b, 2k]
    parents = hypotheses.take_hypotheses(live, chosen // width)
    last = jnp.take_along_axis(tokens.reshape(flat), chosen, axis=1)
    tokens = jax.lax.dynamic_update_index_in_dim(parents.tokens, last, state.ring_index, axis=2)
    return parents._replace(last=last, tokens=tokens, log_probs=log_probs)
