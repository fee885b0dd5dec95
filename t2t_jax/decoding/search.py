"""Search for an output sequence: greedy search, sampling and beam search (section 6.1).

Nothing in here knows a model, a config or a vocabulary. The caller gives a step function with a
cache, usually the keys and values of a decoder, and the search says which of its entries belong to
which hypothesis.

The cache is written once per position and never reordered. At position `t` the hypothesis in slot
`j` writes its entry at `[t, j]`, and a hypothesis is a path through those slots. Its `ancestry`
holds, for every position, the slot in which that position was written:

    position   0    1    2    3
    slot 0    <s>  the  dog  ran      hypothesis 0: <s> the cat ran    ancestry 0 0 1 0
    slot 1     .    a   cat  sat      hypothesis 1: <s> the cat sat    ancestry 0 0 1 1

When hypotheses die and others split, these few integers are reordered instead of the cache, and
the step function attends over all slots through a mask made of them. What is constant for a
sentence, such as the keys and values of its source, the step function closes over: there is one
copy, not one per hypothesis.

A sentence's result depends on nothing else in its batch. The searches trace under `jax.jit`; give
them plain Python numbers for everything but arrays and keys.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Float32, Int, Int32, Key

IMPOSSIBLE = -1e9
"""Log-probability and score of a place that holds no hypothesis: finite, so that no NaN arises."""

Cache: TypeAlias = Any
"""Any pytree of arrays; only the step function looks inside."""

StepFn: TypeAlias = Callable[
    [Int32[Array, "b k"], Int32[Array, ""], Bool[Array, "b k t k"], Cache],
    tuple[Float[Array, "b k v"], Cache],
]
"""`step(tokens, position, ancestry_mask, cache) -> logits, cache`.

`tokens` stand at `position`, and the begin-of-sentence id at position 0. The step writes its entry
for `position` in all k slots of its cache, which has room for `max_length` positions, and returns
the logits of the tokens that follow. `ancestry_mask[b, j, t, i]` is true where slot `i` at position
`t` belongs to hypothesis `j`: one slot for every position up to and including this one.
"""


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


def length_penalty(length: Int[Array, "..."], alpha: float) -> Float32[Array, "..."]:
    """What a log-probability is divided by: `((5 + length) / 6) ** alpha`.

    Wu et al. (2016), equation 14, with the coverage penalty left out, as in section 6.1.

    Args:
      length: tokens generated, end of sentence included.
      alpha: 0 compares plain log-probabilities; more favours longer hypotheses.
    """
    return ((5.0 + length.astype(jnp.float32)) / 6.0) ** alpha


def greedy_search(
    step: StepFn,
    cache: Cache,
    *,
    batch_size: int,
    max_lengths: Int[Array, " b"],
    max_length: int,
    bos_id: int,
    eos_id: int,
    pad_id: int = 0,
) -> SearchResult:
    """Take the most probable token at every position.

    Args:
      step: see `StepFn`; k is 1.
      cache: what `step` takes first.
      batch_size: sentences b.
      max_lengths: the most tokens to generate for each sentence, end of sentence included.
      max_length: room for generated tokens t, which no limit exceeds.
      bos_id: id at position 0.
      eos_id: id that ends a sentence.
      pad_id: id that fills the places after it.

    Returns:
      One hypothesis per sentence (k is 1); `scores` are its `log_probs`.
    """

    def choose(logits: Float32[Array, "b v"], position: Int32[Array, ""]) -> Int32[Array, " b"]:
        del position
        return jax.lax.top_k(logits, 1)[1][:, 0]  # on CPUs a few times faster than argmax

    start = _start_generation(cache, batch_size, max_lengths, max_length, bos_id, pad_id)
    return _generate(step, choose, start, max_lengths, eos_id, pad_id)


def sample(
    step: StepFn,
    cache: Cache,
    *,
    keys: Key[Array, " b"],
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    batch_size: int,
    max_lengths: Int[Array, " b"],
    max_length: int,
    bos_id: int,
    eos_id: int,
    pad_id: int = 0,
) -> SearchResult:
    """Draw every token from the model's distribution, sharpened and cut as asked.

    Args:
      step: see `StepFn`; k is 1.
      cache: what `step` takes first.
      keys: one per sentence. A sentence with the same key gets the same sample in any batch.
      temperature: above 0; the logits are divided by it before anything is cut.
      top_k: draw from this many of the most probable tokens; 0 means all.
      top_p: draw from the fewest tokens, most probable first, that hold this share of the
        probability which temperature and `top_k` leave; at least one.
      batch_size: sentences b.
      max_lengths: the most tokens to generate for each sentence, end of sentence included.
      max_length: room for generated tokens t, which no limit exceeds.
      bos_id: id at position 0.
      eos_id: id that ends a sentence.
      pad_id: id that fills the places after it.

    Returns:
      One hypothesis per sentence (k is 1). `log_probs` and `scores` are those of the model itself,
      before temperature and cuts.

    Raises:
      ValueError: `temperature`, `top_k` or `top_p` is out of range.
    """
    if temperature <= 0 or top_k < 0 or not 0 < top_p <= 1:
        raise ValueError(f"cannot sample with {temperature=}, {top_k=}, {top_p=}")

    def choose(logits: Float32[Array, "b v"], position: Int32[Array, ""]) -> Int32[Array, " b"]:
        step_keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, position)
        return _draw(step_keys, logits, temperature, top_k, top_p)

    start = _start_generation(cache, batch_size, max_lengths, max_length, bos_id, pad_id)
    return _generate(step, choose, start, max_lengths, eos_id, pad_id)


def beam_search(
    step: StepFn,
    cache: Cache,
    *,
    batch_size: int,
    beam_size: int,
    alpha: float,
    max_lengths: Int[Array, " b"],
    max_length: int,
    bos_id: int,
    eos_id: int,
    pad_id: int = 0,
) -> SearchResult:
    """Keep the k best live hypotheses, and the k best that have ended (section 6.1).

    A sentence stops at its limit, or once no live hypothesis can still enter its k best.

    Args:
      step: see `StepFn`.
      cache: what `step` takes first.
      batch_size: sentences b.
      beam_size: hypotheses k.
      alpha: exponent of `length_penalty`, at least 0 (the paper: 0.6).
      max_lengths: the most tokens to generate for each sentence, end of sentence included.
      max_length: room for generated tokens t, which no limit exceeds.
      bos_id: id at position 0.
      eos_id: id that ends a hypothesis.
      pad_id: id that fills the places after it.

    Returns:
      The k best hypotheses that ended. For a sentence none of whose hypotheses ended, the k best
      live ones at its limit, scored at that length.

    Raises:
      ValueError: `beam_size` is not positive, or `alpha` is negative.
    """
    # With alpha < 0 the penalty would no longer be mildest at the limit, as _can_improve assumes.
    if beam_size < 1 or alpha < 0:
        raise ValueError(f"cannot search with {beam_size=}, {alpha=}")
    max_lengths = jnp.minimum(max_lengths, max_length)
    slots = jnp.broadcast_to(jnp.arange(beam_size, dtype=jnp.int32), (batch_size, beam_size))

    def advance(state: _BeamState) -> _BeamState:
        position = state.position
        live = state.live._replace(ancestry=_write(state.live.ancestry, slots, position))
        logits, cache = step(
            _read(live.tokens, position),
            position,
            _ancestry_mask(live.ancestry, position),
            state.cache,
        )
        candidates = _expand(live, logits.astype(jnp.float32), position + 1)
        ended = _read(candidates.tokens, position + 1) == eos_id
        lengths = jnp.full((batch_size,), position + 1)
        finished = _add_finished(state.finished, candidates, ended, lengths, alpha)
        live = _keep_live(candidates, ended)
        # A sentence that has stopped runs on with the others, and keeps what it had.
        live, finished = _where(state.searching, (live, finished), (state.live, state.finished))
        more = (lengths < max_lengths) & _can_improve(live, finished, max_lengths, alpha)
        return _BeamState(position + 1, state.searching & more, live, finished, cache)

    start = _start_beam(cache, slots, max_lengths, max_length, bos_id, pad_id)
    end = jax.lax.while_loop(lambda state: jnp.any(state.searching), advance, start)
    none_ended = jnp.broadcast_to(~_is_possible(end.finished.scores[:, :1]), slots.shape)
    return _add_finished(end.finished, end.live, none_ended, max_lengths, alpha)


class _Generation(NamedTuple):
    """State of greedy search and sampling; t1 is t + 1."""

    position: Int32[Array, ""]
    searching: Bool[Array, " b"]
    tokens: Int32[Array, "b 1 t1"]  # the begin of sentence, then what was generated
    log_probs: Float32[Array, " b"]
    lengths: Int32[Array, " b"]
    cache: Cache


def _start_generation(
    cache: Cache,
    batch_size: int,
    max_lengths: Int[Array, " b"],
    max_length: int,
    bos_id: int,
    pad_id: int,
) -> _Generation:
    return _Generation(
        position=jnp.int32(0),
        searching=max_lengths > 0,
        tokens=_start_tokens(batch_size, 1, max_length, bos_id, pad_id),
        log_probs=jnp.zeros((batch_size,), jnp.float32),
        lengths=jnp.zeros((batch_size,), jnp.int32),
        cache=cache,
    )


def _generate(
    step: StepFn,
    choose: Callable[[Float32[Array, "b v"], Int32[Array, ""]], Int32[Array, " b"]],
    start: _Generation,
    max_lengths: Int[Array, " b"],
    eos_id: int,
    pad_id: int,
) -> SearchResult:
    """One token after the other, as `choose(logits, position)` says."""
    max_length = start.tokens.shape[2] - 1
    max_lengths = jnp.minimum(max_lengths, max_length)
    ancestry = jnp.zeros_like(start.tokens[:, :, :max_length])  # one slot: nothing to choose from

    def advance(state: _Generation) -> _Generation:
        position, searching = state.position, state.searching
        logits, cache = step(
            _read(state.tokens, position), position, _ancestry_mask(ancestry, position), state.cache
        )
        logits = logits[:, 0].astype(jnp.float32)  # [b, v]
        chosen = choose(logits, position)
        log_probs = jnp.take_along_axis(logits, chosen[:, None], axis=1)[:, 0]
        log_probs -= jax.nn.logsumexp(logits, axis=-1)
        chosen = jnp.where(searching, chosen, pad_id)
        return _Generation(
            position=position + 1,
            searching=searching & (chosen != eos_id) & (position + 1 < max_lengths),
            tokens=_write(state.tokens, chosen[:, None], position + 1),
            log_probs=state.log_probs + jnp.where(searching, log_probs, 0.0),
            lengths=state.lengths + searching,
            cache=cache,
        )

    end = jax.lax.while_loop(lambda state: jnp.any(state.searching), advance, start)
    log_probs = end.log_probs[:, None]
    return SearchResult(end.tokens[:, :, 1:], log_probs, log_probs, end.lengths[:, None])


def _draw(
    keys: Key[Array, " b"],
    logits: Float32[Array, "b v"],
    temperature: float,
    top_k: int,
    top_p: float,
) -> Int32[Array, " b"]:
    """One token for each row, drawn with that row's key."""
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
    """The fewest tokens, most probable first, that hold `top_p` of the probability.

    A sort over the vocabulary can take longer than the model. So the probability of the last token
    that enters is found bit by bit: floats from 0 up are in the order of their bits as integers.
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


class _Hypotheses(NamedTuple):
    """Hypotheses that have not ended, or candidates for them, best first; t1 is t + 1."""

    tokens: Int32[Array, "b m t1"]  # the begin of sentence, then what was generated
    ancestry: Int32[Array, "b m t"]  # the slot in which each position was written
    log_probs: Float32[Array, "b m"]


class _BeamState(NamedTuple):
    position: Int32[Array, ""]
    searching: Bool[Array, " b"]
    live: _Hypotheses
    finished: SearchResult
    cache: Cache


def _start_beam(
    cache: Cache,
    slots: Int32[Array, "b k"],
    max_lengths: Int[Array, " b"],
    max_length: int,
    bos_id: int,
    pad_id: int,
) -> _BeamState:
    """One empty hypothesis in slot 0; the other slots are impossible until it has split."""
    batch_size, beam_size = slots.shape
    tokens = _start_tokens(batch_size, beam_size, max_length, bos_id, pad_id)
    nothing = jnp.full(slots.shape, IMPOSSIBLE, jnp.float32)
    empty = jnp.full_like(tokens[:, :, 1:], pad_id)
    return _BeamState(
        position=jnp.int32(0),
        searching=max_lengths > 0,
        live=_Hypotheses(tokens, jnp.zeros_like(empty), jnp.where(slots == 0, 0.0, nothing)),
        finished=SearchResult(empty, nothing, nothing, jnp.zeros_like(slots)),
        cache=cache,
    )


def _expand(
    live: _Hypotheses, logits: Float32[Array, "b k v"], position: Int32[Array, ""]
) -> _Hypotheses:
    """The best 2k continuations by one token, which will stand at `position`.

    At most k of them end, one for each live hypothesis, so that k are left to live on.
    """
    batch_size, beam_size, vocab_size = logits.shape
    width = min(2 * beam_size, vocab_size)
    # Normalising shifts a whole row, so its best can be found first: no log-softmax over v.
    best, tokens = jax.lax.top_k(logits, width)  # [b, k, width]
    best -= jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    best += live.log_probs[:, :, None]
    flat = (batch_size, beam_size * width)
    log_probs, chosen = jax.lax.top_k(best.reshape(flat), 2 * beam_size)  # [b, 2k]
    candidates = _take(live, chosen // width)
    tokens = jnp.take_along_axis(tokens.reshape(flat), chosen, axis=1)
    return candidates._replace(
        tokens=_write(candidates.tokens, tokens, position), log_probs=log_probs
    )


def _add_finished(
    finished: SearchResult,
    hypotheses: _Hypotheses,
    entering: Bool[Array, "b m"],
    lengths: Int[Array, " b"],
    alpha: float,
) -> SearchResult:
    """The k best of those finished and those entering, which are `lengths` long."""
    scores = _score(hypotheses.log_probs, lengths, alpha)
    new = SearchResult(
        tokens=hypotheses.tokens[:, :, 1:],
        scores=jnp.where(entering, scores, IMPOSSIBLE),
        log_probs=hypotheses.log_probs,
        lengths=jnp.broadcast_to(lengths.astype(jnp.int32)[:, None], scores.shape),
    )
    pool = jax.tree.map(lambda old, new: jnp.concatenate([old, new], axis=1), finished, new)
    # Of equal scores top_k takes the first: an empty place stays empty if nothing better enters.
    _, best = jax.lax.top_k(pool.scores, finished.scores.shape[1])
    return _take(pool, best)


def _keep_live(candidates: _Hypotheses, ended: Bool[Array, "b m"]) -> _Hypotheses:
    """The better half of the candidates, without those that ended."""
    log_probs = jnp.where(ended, IMPOSSIBLE, candidates.log_probs)
    _, best = jax.lax.top_k(log_probs, log_probs.shape[1] // 2)
    return _take(candidates._replace(log_probs=log_probs), best)


def _can_improve(
    live: _Hypotheses, finished: SearchResult, max_lengths: Int[Array, " b"], alpha: float
) -> Bool[Array, " b"]:
    """Whether the best live hypothesis, at no further cost, could still beat the worst finished.

    Log-probabilities only fall, and are divided by most at the limit: no score can be higher.
    """
    bound = _score(live.log_probs[:, :1], max_lengths, alpha)
    return (bound > finished.scores[:, -1:])[:, 0]


def _score(
    log_probs: Float32[Array, "b m"], lengths: Int[Array, " b"], alpha: float
) -> Float32[Array, "b m"]:
    scores = log_probs / length_penalty(lengths, alpha)[:, None]
    return jnp.where(_is_possible(log_probs), scores, IMPOSSIBLE)


def _is_possible(log_probs: Float32[Array, "*shape"]) -> Bool[Array, "*shape"]:
    """Whether there is a hypothesis: nothing that is one comes near `IMPOSSIBLE`."""
    return log_probs > IMPOSSIBLE / 2


def _ancestry_mask(
    ancestry: Int32[Array, "b k t"], position: Int32[Array, ""]
) -> Bool[Array, "b k t k"]:
    _, beam_size, max_length = ancestry.shape
    written = jnp.arange(max_length) <= position
    return jax.nn.one_hot(ancestry, beam_size, dtype=jnp.bool_) & written[None, None, :, None]


def _start_tokens(
    batch_size: int, beam_size: int, max_length: int, bos_id: int, pad_id: int
) -> Int32[Array, "b k t1"]:
    tokens = jnp.full((batch_size, beam_size, max_length + 1), pad_id, jnp.int32)
    return tokens.at[:, :, 0].set(bos_id)


def _read(rows: Int32[Array, "b m t"], position: Int32[Array, ""]) -> Int32[Array, "b m"]:
    return jax.lax.dynamic_index_in_dim(rows, position, axis=2, keepdims=False)


def _write(
    rows: Int32[Array, "b m t"], column: Int32[Array, "b m"], position: Int32[Array, ""]
) -> Int32[Array, "b m t"]:
    return jax.lax.dynamic_update_index_in_dim(rows, column, position, axis=2)


def _take(tree: Any, rows: Int32[Array, "b n"]) -> Any:
    """For each sentence, some of the rows (axis 1) of every array."""

    def take(array: Array) -> Array:
        return jnp.take_along_axis(array, rows.reshape(rows.shape + (1,) * (array.ndim - 2)), 1)

    return jax.tree.map(take, tree)


def _where(condition: Bool[Array, " b"], new: Any, old: Any) -> Any:
    """For each sentence, one or the other of every pair of arrays."""

    def choose(new: Array, old: Array) -> Array:
        return jnp.where(condition.reshape((-1,) + (1,) * (new.ndim - 1)), new, old)

    return jax.tree.map(choose, new, old)
