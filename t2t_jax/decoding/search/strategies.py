"""Choose tokens by greedy search, sampling or beam search (section 6.1)."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32, Int, Int32, Key

from . import hypotheses
from .hypotheses import Hypotheses, LengthPenalty, SearchResult, SearchState
from .reductions import Reductions, top_k

_SMALLEST = float(jnp.finfo(jnp.float32).tiny)


class NextLogits(NamedTuple):
    """The logits of the next token of every hypothesis."""

    model: Float32[Array, "b k v"]
    """The model's logits."""
    allowed: Float32[Array, "b k v"]
    """The model's logits, with -inf for tokens that the constraints disallow."""
    reductions: Reductions
    """The functions that reduce logits over the vocabulary."""


Extended: TypeAlias = tuple[Hypotheses, SearchResult, Bool[Array, " b"]]
"""The live hypotheses, the finished hypotheses, and whether each sentence's search continues."""


@dataclass(frozen=True)
class Greedy:
    """Choose the most probable token at every position.

    Attributes:
      eos_id: the end-of-sentence token.
    """

    eos_id: int
    beam_size: int = field(default=1, init=False)
    penalty: LengthPenalty = field(default=LengthPenalty(0.0), init=False)

    def choose(
        self, state: SearchState, logits: NextLogits
    ) -> tuple[Int32[Array, "b 1"], Float32[Array, "b 1"]]:
        """Return the next token of each hypothesis, and the logsumexp of the model's logits."""
        return logits.reductions.argmax_and_logsumexp(logits.model, logits.allowed)

    def extend(self, state: SearchState, logits: NextLogits) -> Extended:
        """Extend the live hypotheses of each sentence by one token."""
        live = state.rows.live
        last, normalizer = self.choose(state, logits)
        log_probs = jnp.take_along_axis(logits.model, last[:, :, None], axis=2)[:, :, 0]
        log_probs -= normalizer
        log_probs += live.log_probs
        tokens = jax.lax.dynamic_update_index_in_dim(live.tokens, last, state.ring_index, axis=2)
        live = live._replace(last=last, tokens=tokens, log_probs=log_probs)
        is_finished = last[:, 0] == self.eos_id
        new = SearchResult(tokens, log_probs, log_probs, (state.positions + 1)[:, None])
        return live, hypotheses.choose_rows(is_finished, new, state.rows.finished), ~is_finished


@dataclass(frozen=True)
class Sampling(Greedy):
    """Sample tokens from the model's distribution, after temperature, top-k and top-p.

    The log-probabilities of hypotheses are the model's, without temperature, top-k and top-p.

    Attributes:
      temperature: positive divisor of the logits.
      top_k: number of most probable tokens to sample from; 0 means all tokens.
      top_p: sample from the fewest most probable tokens with this total probability, after
        temperature and top-k.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def choose(
        self, state: SearchState, logits: NextLogits
    ) -> tuple[Int32[Array, "b 1"], Float32[Array, "b 1"]]:
        """Sample the next tokens; return them with the logsumexp of the model's logits."""
        sentence_keys: Any = state.rows.keys
        keys = jax.vmap(jax.random.fold_in)(sentence_keys, state.positions)
        tokens = self._sample(keys, logits.allowed[:, 0]).astype(jnp.int32)
        return tokens[:, None], logits.reductions.logsumexp(logits.model)

    def _sample(self, keys: Key[Array, " b"], logits: Float32[Array, "b v"]) -> Int[Array, " b"]:
        # In float32, tiny settings would become 0. A temperature of 0 would divide 0 by 0, and a
        # top_p of 0 would leave no token to sample.
        settings = self.temperature, self.top_p
        temperature, top_p = (max(_SMALLEST, min(x, 1 / _SMALLEST)) for x in settings)
        # With the greatest logit at 0, a tiny temperature cannot overflow to infinity.
        logits = (logits - jnp.max(logits, axis=-1, keepdims=True)) / temperature
        ids = None
        if self.top_k > 0:
            logits, ids = jax.lax.top_k(logits, min(self.top_k, logits.shape[-1]))
        if top_p < 1:
            logits = jnp.where(_nucleus(logits, top_p), logits, -jnp.inf)
        with jax.threefry_partitionable(True):  # the user's setting must not change samples
            samples = jax.vmap(jax.random.categorical)(keys, logits)
        return samples if ids is None else jnp.take_along_axis(ids, samples[:, None], axis=1)[:, 0]


@dataclass(frozen=True)
class BeamSearch:
    """Keep the k best live and the k best finished hypotheses (section 6.1).

    A sentence stops at its limit, or once no live hypothesis can enter its `num_best` best.

    Attributes:
      eos_id: the end-of-sentence token.
      beam_size: the number of hypotheses k.
      alpha: exponent of `LengthPenalty`, at least 0 (the paper: 0.6).
      num_best: number of exact results. Lower-ranked results may not be the best ones.
      transformers_rule: rank and stop like the Transformers library. Scores divide by `length **
        alpha`. Only the k best continuations can finish; at the limit, they all do. A sentence
        stops once no live hypothesis, at its current length, beats the worst of k finished ones.
    """

    eos_id: int
    beam_size: int
    alpha: float
    num_best: int
    transformers_rule: bool = False

    @property
    def penalty(self) -> LengthPenalty:
        """Return the length penalty."""
        penalty = LengthPenalty(self.alpha)
        return penalty._replace(offset=0.0) if self.transformers_rule else penalty

    def extend(self, state: SearchState, logits: NextLogits) -> Extended:
        """Extend the live hypotheses of each sentence by one token, and keep the best."""
        candidates = _expand(state, logits)
        is_eos = candidates.last == self.eos_id
        num_eligible = self.beam_size if self.transformers_rule else 2 * self.beam_size
        is_eligible = jnp.arange(is_eos.shape[1]) < num_eligible
        is_final = is_eos & is_eligible
        log_probs = jnp.where(is_eos, hypotheses.IMPOSSIBLE, candidates.log_probs)
        _, slots = jax.lax.top_k(log_probs, self.beam_size)
        live = hypotheses.take_hypotheses(candidates._replace(log_probs=log_probs), slots)
        rows, lengths = state.rows, state.positions + 1
        final_lengths, num_exact = rows.limits, self.num_best
        if self.transformers_rule:
            final_lengths, num_exact = lengths, self.beam_size
            # Transformers also finishes hypotheses that reach the limit.
            is_final |= (lengths >= rows.limits)[:, None] & is_eligible
        penalty = self.penalty
        finished = hypotheses.add_finished(rows.finished, candidates, is_final, lengths, penalty)
        # Log-probabilities only fall, and the length penalty is greatest at the limit: if the final
        # lengths are the limits, no live hypothesis can end with a higher score.
        best_live = jnp.max(live.log_probs, axis=1, keepdims=True)
        best_scores = hypotheses.scores_of(best_live, final_lengths, penalty)[:, 0]
        return live, finished, best_scores > finished.scores[:, num_exact - 1]


Strategy: TypeAlias = Greedy | Sampling | BeamSearch
"""A search strategy: a hashable static argument of compiled functions. All have the fields
`beam_size` and `penalty`."""


def _nucleus(logits: Float32[Array, "b v"], top_p: float) -> Bool[Array, "b v"]:
    """Mark the fewest most probable tokens whose total probability is at least `top_p`."""
    # Sorting can take longer than the model. A bitwise search finds the lowest marked probability,
    # as non-negative floats are ordered like their bit patterns.
    probabilities = jax.nn.softmax(logits)
    bits = jax.lax.bitcast_convert_type(probabilities, jnp.int32)

    def mass_of(tokens: Bool[Array, "b v"]) -> Float32[Array, "b 1"]:
        return jnp.sum(jnp.where(tokens, probabilities, 0.0), axis=-1, keepdims=True)

    def set_bit(i: Int32[Array, ""], threshold: Int32[Array, "b 1"]) -> Int32[Array, "b 1"]:
        higher = threshold | (1 << (30 - i))
        return jnp.where(mass_of(bits >= higher) >= top_p, higher, threshold)

    threshold = jax.lax.fori_loop(0, 31, set_bit, jnp.zeros_like(bits[:, :1]))
    # If several tokens have the threshold's probability, mark only as many as top_p needs.
    is_tied = bits == threshold
    mass_before = jnp.cumsum(jnp.where(is_tied, probabilities, 0.0), axis=-1) - probabilities
    return (bits > threshold) | (is_tied & (mass_before < top_p - mass_of(bits > threshold)))


def _expand(state: SearchState, logits: NextLogits) -> Hypotheses:
    """Extend the live hypotheses by one token, and return the 2k best candidates."""
    # At most k candidates end, one for each live hypothesis, so at least k of them stay live.
    live = state.rows.live
    batch_size, beam_size, vocab_size = logits.allowed.shape
    width = min(2 * beam_size, vocab_size)
    # Normalization keeps the ranking, so log_softmax need not run over the vocabulary.
    log_probs, tokens = top_k(logits.allowed, width)  # [b, k, width]
    log_probs -= logits.reductions.logsumexp(logits.model)[:, :, None]
    log_probs += live.log_probs[:, :, None]
    shape = (batch_size, beam_size * width)
    log_probs, indices = jax.lax.top_k(log_probs.reshape(shape), 2 * beam_size)  # [b, 2k]
    parents = hypotheses.take_hypotheses(live, indices // width)
    last = jnp.take_along_axis(tokens.reshape(shape), indices, axis=1)
    tokens = jax.lax.dynamic_update_index_in_dim(parents.tokens, last, state.ring_index, axis=2)
    return parents._replace(last=last, tokens=tokens, log_probs=log_probs)
