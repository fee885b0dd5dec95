"""Strategies by which tokens are chosen: greedy search, sampling and beam search (section 6.1)."""

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32, Int, Int32, Key

from t2t_jax.decoding import hypotheses
from t2t_jax.decoding.hypotheses import Hypotheses, SearchResult, SearchState
from t2t_jax.kernels.preset import Kernels
from t2t_jax.parallel.jax_settings import fixed_random_bits

_SMALLEST = float(jnp.finfo(jnp.float32).tiny)


class Given(NamedTuple):
    """The inputs of a strategy: it chooses the next token of every live hypothesis from these."""

    state: SearchState
    """The state of the searches."""
    logits: Float32[Array, "b k v"]
    """The logits of the next token."""
    choices: Float32[Array, "b k v"]
    """The logits with -inf for tokens that are not allowed."""
    place: Int32[Array, ""]
    """The ring's place for the new tokens."""
    kernels: Kernels
    """The implementations for the devices."""


Extended: TypeAlias = tuple[Hypotheses, SearchResult, Bool[Array, " b"]]
"""The live hypotheses, the finished ones, and whether the search of each sentence goes on."""


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

    def extend(self, given: Given) -> Extended:
        """Extend the live hypotheses of each sentence by one token."""
        if given.kernels.greatest is not None:
            chosen, normalizer = given.kernels.greatest(given.logits, given.choices)
        else:
            chosen = top_k(given.choices, 1)[1][:, :, 0]  # on CPUs many times faster than argmax
            normalizer = jax.nn.logsumexp(given.logits, axis=-1)
        return _append(given, normalizer, chosen, self.eos_id)


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

    def extend(self, given: Given) -> Extended:
        """Extend hypotheses by a drawn token; see `Greedy.extend`."""
        own_keys: Any = given.state.rows.keys
        keys = jax.vmap(jax.random.fold_in)(own_keys, given.state.positions)
        logits = given.choices[:, 0]
        chosen = _draw(keys, logits, self.temperature, self.top_k, self.top_p)[:, None]
        return _append(given, normalizer_of(given), chosen, self.eos_id)


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
        # With alpha < 0 the score would no longer be highest at the limit, as _can_improve assumes.
        if not 1 <= self.num_best <= self.beam_size or self.alpha < 0:
            raise ValueError(f"cannot search with {self}")

    def extend(self, given: Given) -> Extended:
        """Extend the hypotheses of each sentence, and keep the best; see `Greedy.extend`."""
        candidates = _expand(given)
        ended = candidates.last == self.eos_id
        num_entering = self.beam_size if self.by_transformers else 2 * self.beam_size
        may_enter = jnp.arange(ended.shape[1]) < num_entering
        entering = ended & may_enter
        log_probs = jnp.where(ended, hypotheses.IMPOSSIBLE, candidates.log_probs)
        _, best = jax.lax.top_k(log_probs, self.beam_size)
        live = hypotheses.take_hypotheses(candidates._replace(log_probs=log_probs), best)
        rows, lengths = given.state.rows, given.state.positions + 1
        final_lengths, wanted = rows.limits, self.num_best
        if self.by_transformers:
            final_lengths, wanted = lengths, self.beam_size
            entering |= (lengths >= rows.limits)[:, None] & may_enter  # cut at the limit
        penalty = self.alpha, self.offset
        finished = hypotheses.add_finished(rows.finished, candidates, entering, lengths, *penalty)
        worst = finished.scores[:, wanted - 1]
        return live, finished, _can_improve(live, worst, final_lengths, *penalty)


Strategy: TypeAlias = Greedy | Sampling | BeamSearch
"""A search strategy, hashable as a static argument of compiled functions. Common fields are
`beam_size`, `alpha` and `offset` of `length_penalty`, and `draws`: whether it needs PRNG keys."""


def normalizer_of(given: Given) -> Float32[Array, "b k"]:
    """Compute the logsumexp of each hypothesis's logits."""
    return given.kernels.normalizer(given.logits)


def _append(
    given: Given, normalizer: Float32[Array, "b 1"], chosen: Int32[Array, "b 1"], eos_id: int
) -> Extended:
    state, logits, place = given.state, given.logits, given.place
    log_probs = jnp.take_along_axis(logits, chosen[:, :, None], axis=2)[:, :, 0]
    log_probs -= normalizer
    log_probs += state.rows.live.log_probs
    tokens = jax.lax.dynamic_update_index_in_dim(state.rows.live.tokens, chosen, place, axis=2)
    live = state.rows.live._replace(last=chosen, tokens=tokens, log_probs=log_probs)
    ended = chosen[:, 0] == eos_id
    lengths = (state.positions + 1)[:, None]
    new = SearchResult(live.tokens, log_probs, log_probs, lengths)
    return live, hypotheses.choose_rows(ended, new, state.rows.finished), ~ended


@fixed_random_bits()
def _draw(
    keys: Key[Array, " b"],
    logits: Float32[Array, "b v"],
    temperature: float,
    top_k: int,
    top_p: float,
) -> Int32[Array, " b"]:
    # Both stay above 0 in float32: a temperature of 0 would divide 0 by 0, and a share of 0 would
    # leave nothing to draw from.
    temperature, top_p = (max(_SMALLEST, min(x, 1 / _SMALLEST)) for x in (temperature, top_p))
    # With the greatest logit at 0, a tiny temperature cannot overflow to infinity.
    logits = (logits - jnp.max(logits, axis=-1, keepdims=True)) / temperature
    ids = None
    if top_k > 0:
        logits, ids = jax.lax.top_k(logits, min(top_k, logits.shape[-1]))
    if top_p < 1:
        logits = jnp.where(_nucleus(logits, top_p), logits, -jnp.inf)
    drawn = jax.vmap(jax.random.categorical)(keys, logits)
    if ids is not None:
        drawn = jnp.take_along_axis(ids, drawn[:, None], axis=1)[:, 0]
    return drawn.astype(jnp.int32)


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


def _expand(given: Given) -> Hypotheses:
    """Return the 2k best continuations by one allowed token, written at `place`.

    At most k of them end, one for each live hypothesis, so at least k stay live.
    """
    live, place = given.state.rows.live, given.place
    batch_size, beam_size, vocab_size = given.logits.shape
    width = min(2 * beam_size, vocab_size)
    # Normalising shifts a whole row, so its best are found before that: no log-softmax over v.
    best, tokens = top_k(given.choices, width)  # [b, k, width]
    best -= normalizer_of(given)[:, :, None]
    best += live.log_probs[:, :, None]
    flat = (batch_size, beam_size * width)
    log_probs, chosen = jax.lax.top_k(best.reshape(flat), 2 * beam_size)  # [b, 2k]
    candidates = hypotheses.take_hypotheses(live, chosen // width)
    last = jnp.take_along_axis(tokens.reshape(flat), chosen, axis=1)
    tokens = jax.lax.dynamic_update_index_in_dim(candidates.tokens, last, place, axis=2)
    return candidates._replace(last=last, tokens=tokens, log_probs=log_probs)


def _can_improve(
    live: Hypotheses,
    worst: Float32[Array, " b"],
    lengths: Int[Array, " b"],
    alpha: float,
    offset: float,
) -> Bool[Array, " b"]:
    """Return whether a live hypothesis, scored at `lengths`, is better than `worst`.

    Log-probabilities only fall, and the length penalty is greatest at the limit: if `lengths` are
    the limits, no live hypothesis can end with a higher score.
    """
    best = jnp.max(live.log_probs, axis=1, keepdims=True)
    return hypotheses.scores_of(best, lengths, alpha, offset)[:, 0] > worst


def top_k(
    x: Float32[Array, "*rows n"], k: int
) -> tuple[Float32[Array, "*rows {k}"], Int32[Array, "*rows {k}"]]:
    """Return what `jax.lax.top_k` returns, for long rows on CPUs in a third of its time or less.

    A row is cut into blocks. The k greatest numbers are in the k blocks with the greatest maxima,
    so that one pass over the row finds the few numbers that have to be sorted.

    Args:
      k: how many to find in each row, at most n.

    Returns:
      The k greatest of each row, greatest first, and their indices. Of equal numbers, the first.
    """
    length = x.shape[-1]
    block = 1 << round(math.log2(length / k) / 2)  # as many maxima as numbers in the k blocks
    blocks = length // block
    if blocks < 2 * k:
        values, places = jax.lax.top_k(x, k)
        return values, places
    whole = blocks * block
    maxima = jnp.max(x[..., :whole].reshape(*x.shape[:-1], blocks, block), axis=-1)
    chosen = jnp.sort(jax.lax.top_k(maxima, k)[1], axis=-1)
    places = (chosen[..., None] * block + jnp.arange(block)).reshape(*x.shape[:-1], k * block)
    rest = jnp.broadcast_to(jnp.arange(whole, length), (*x.shape[:-1], length - whole))
    places = jnp.concatenate([places, rest], axis=-1)
    values, best = jax.lax.top_k(jnp.take_along_axis(x, places, axis=-1), k)
    return values, jnp.take_along_axis(places, best, axis=-1)
