"""Constraints on the tokens that may follow a hypothesis, under every strategy of the search.

A strategy chooses among the allowed tokens. Log-probabilities are the model's, normalised over the
whole vocabulary: a constraint changes the translation, but not the probability of a translation.

An automaton recognises forbidden phrases in every spelling: it reads a hypothesis token by token,
and its states are positions within the phrases. `decoding.forbidden` makes it for a vocabulary.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32, Int, Int32

from t2t_jax.decoding.hypotheses import IMPOSSIBLE, Hypotheses, SearchState


class Phrases(NamedTuple):
    """An automaton that reads hypotheses, and knows which tokens would complete a phrase.

    A hypothesis can be in several states at once, or in none. The arrays are NumPy's on the host,
    and JAX's on a device; padding edges have token -1.
    """

    begin: Bool[Any, " states"]
    """Whether a hypothesis is in each state before its first token."""
    always: Bool[Any, " states"]
    """Whether every hypothesis is in each state at any time."""
    sources: Int32[Any, " edges"]
    """The state at the start of each edge."""
    tokens: Int32[Any, " edges"]
    """The token of each edge."""
    targets: Int32[Any, " edges"]
    """The state at the end of each edge; beyond the last state, the phrase is complete."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Constraints:
    """The constraints of a search. Programs depend on which are set, and on the size of n-grams.

    Attributes:
      min_length: fewest tokens before the end of sentence.
      never: whether each id of the vocabulary is forbidden.
      phrases: the automaton of the forbidden phrases.
      no_repeat_ngram_size: the n of n-grams that occur at most once in a hypothesis; 0 allows all.
      num_told: the number of tokens at the start of each prefix that are inputs of the model, such
        as the mark of the target language; they have probability 1.
    """

    min_length: Int32[Any, ""] | None = None
    never: Bool[Any, " v"] | None = None
    phrases: Phrases | None = None
    no_repeat_ngram_size: int = field(default=0, metadata={"static": True})
    num_told: int = field(default=0, metadata={"static": True})


def allowed_tokens(
    constraints: Constraints | None, state: SearchState, vocab_size: int, eos_id: int
) -> Bool[Array, "b k v"] | None:
    """Return whether each token may follow each live hypothesis; None allows all.

    Within the prefix of a sentence only the next token of the prefix is allowed, whatever the other
    constraints say. A hypothesis ends if these leave no token.
    """
    if constraints is None and state.rows.prefixes is None:
        return None
    ids = jnp.arange(vocab_size)
    allowed = jnp.ones((*state.rows.live.last.shape, vocab_size), jnp.bool_)
    if constraints is not None:
        if constraints.never is not None:
            allowed &= ~constraints.never
        if constraints.min_length is not None:
            too_short = (state.positions < constraints.min_length)[:, None, None]
            allowed &= ~(too_short & (ids == eos_id))
        if constraints.no_repeat_ngram_size:
            allowed = _without(allowed, _repeating(state, constraints.no_repeat_ngram_size))
        if constraints.phrases is not None:
            allowed = _without(allowed, _completing(constraints.phrases, state))
        allowed |= ~jnp.any(allowed, axis=-1, keepdims=True) & (ids == eos_id)
    if state.rows.prefixes is not None:
        allowed = _only(_forced(state.rows.prefixes, state.positions), ids, allowed)
    return allowed


def with_told_tokens(
    constraints: Constraints | None, state: SearchState, logits: Float32[Array, "b k v"]
) -> Float32[Array, "b k v"]:
    """Return logits that give the `num_told` first tokens of prefixes probability 1."""
    if constraints is None or not constraints.num_told or state.rows.prefixes is None:
        return logits
    told, ids = state.rows.prefixes[:, : constraints.num_told], jnp.arange(logits.shape[-1])
    certain = _only(_forced(told, state.positions), ids, jnp.ones(logits.shape, jnp.bool_))
    return jnp.where(certain, logits, IMPOSSIBLE)


def begin_matching(
    constraints: Constraints | None, shape: tuple[int, ...]
) -> Bool[Array, "b k states"] | None:
    """Return the automaton's states before the first token; None if no phrases are forbidden.

    Args:
      shape: the number of sentences, and of hypotheses of each.
    """
    if constraints is None or constraints.phrases is None:
        return None
    begin = jnp.asarray(constraints.phrases.begin)
    return jnp.broadcast_to(begin, (*shape, *begin.shape))


def follow_automaton(constraints: Constraints | None, live: Hypotheses) -> Hypotheses:
    """Return hypotheses with the automaton's states after their last token."""
    if constraints is None or constraints.phrases is None or live.matched is None:
        return live
    phrases = constraints.phrases
    taken = live.matched[..., phrases.sources] & (live.last[..., None] == phrases.tokens)
    reached = jnp.zeros_like(live.matched).at[..., phrases.targets].max(taken, mode="drop")
    return live._replace(matched=reached | phrases.always)


def _without(allowed: Bool[Array, "b k v"], tokens: Int[Array, "b k n"]) -> Bool[Array, "b k v"]:
    """Disallow tokens of each hypothesis; an id beyond the vocabulary changes nothing."""
    rows, slots = (jnp.arange(n) for n in allowed.shape[:2])
    return allowed.at[rows[:, None, None], slots[:, None], tokens].set(False, mode="drop")


def _repeating(state: SearchState, size: int) -> Int32[Array, "b k n"]:
    """Return the tokens that would repeat an n-gram, padded with ids beyond the vocabulary."""
    room, nothing = state.room, jnp.iinfo(jnp.int32).max
    ago = jnp.arange(room)
    tokens = state.rows.live.tokens[:, :, (state.clock - 1 - ago) % room]  # the newest first
    generated = (ago < state.positions[:, None])[:, None]
    count = max(0, room - size + 1)  # places at which an n-gram can end before the newest token
    # The n-gram that ends `i` tokens ago repeats if the tokens before its last are the newest ones.
    repeats = generated[..., size - 1 :]
    for j in range(size - 1):
        repeats = repeats & (tokens[..., j + 1 : j + 1 + count] == tokens[..., j : j + 1])
    return jnp.where(repeats, tokens[..., :count], nothing)


def _completing(phrases: Phrases, state: SearchState) -> Int32[Array, "b k edges"]:
    """Return the tokens that would complete a phrase, padded with ids beyond the vocabulary."""
    matched = state.rows.live.matched
    assert matched is not None
    ends = (phrases.tokens >= 0) & (phrases.targets >= matched.shape[-1])
    completes = matched[..., phrases.sources] & ends
    return jnp.where(completes, phrases.tokens, jnp.iinfo(jnp.int32).max)


def _only(
    forced: Int32[Array, " b"], ids: Int32[Array, " v"], allowed: Bool[Array, "b k v"]
) -> Bool[Array, "b k v"]:
    """Allow only the forced token of a sentence; a number below 0 forces none."""
    forced = forced[:, None, None]
    return jnp.where(forced >= 0, forced == ids, allowed)


def _forced(prefixes: Int32[Array, "b p"], positions: Int32[Array, " b"]) -> Int32[Array, " b"]:
    """Return the next token of each prefix; -1 after the end of the prefix."""
    last = prefixes.shape[1] - 1
    found = jnp.take_along_axis(prefixes, jnp.minimum(positions, last)[:, None], axis=1)[:, 0]
    return jnp.where(positions <= last, found, -1)
