"""Which tokens may follow a hypothesis, whatever the strategy by which they are chosen.

A strategy chooses among the allowed tokens. Log-probabilities stay those of the model itself,
normalised over the whole vocabulary: a constraint changes which translation is found, and never how
probable the model is said to find it.

Phrases of text are recognised as they are spelt, in whatever pieces: an automaton reads a
hypothesis token by token, and its states are the places within the phrases up to which a hypothesis
has spelt them. `decoding.forbidden` makes the automaton of a vocabulary. Here it is three arrays of
edges, and one that says in which states every hypothesis is at its begin.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Int32

from t2t_jax.decoding.hypotheses import Hypotheses, SearchState


class Phrases(NamedTuple):
    """An automaton that reads hypotheses, and says when a token would complete a phrase.

    NumPy arrays on the host, JAX on a device.

    A hypothesis is in several states at once, or in none. What is there to fill the arrays are
    edges with a token of -1, which nothing takes.
    """

    begin: Bool[Any, " states"]
    """The states in which a hypothesis is before its first token."""
    always: Bool[Any, " states"]
    """The states in which every hypothesis is at any time."""
    sources: Int32[Any, " edges"]
    """The state that an edge leaves."""
    tokens: Int32[Any, " edges"]
    """The token by which it is taken."""
    targets: Int32[Any, " edges"]
    """The state that it leads to; a number beyond the last is the end of a phrase."""


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["min_length", "never", "phrases"],
    meta_fields=["no_repeat_ngram_size"],
)
@dataclass(frozen=True)
class Constraints:
    """The constraints of a search. Which of them there are is compiled in, what they say is not.

    NumPy arrays on the host, JAX on a device.

    Attributes:
      min_length: fewest tokens before the end of sentence.
      never: for each id of the vocabulary, whether it is never chosen.
      phrases: what must not be spelt.
      no_repeat_ngram_size: no n-gram of so many tokens occurs twice in a hypothesis; 0 allows any.
    """

    min_length: Int32[Any, ""] | None = None
    never: Bool[Any, " v"] | None = None
    phrases: Phrases | None = None
    no_repeat_ngram_size: int = 0


def allowed_tokens(
    constraints: Constraints | None, state: SearchState, vocab_size: int, eos_id: int
) -> Bool[Array, "b k v"] | None:
    """Whether each token may follow each live hypothesis; None if any may.

    While a hypothesis is shorter than the prefix forced upon its sentence, the next token of the
    prefix is the only one, whatever the other constraints say. Where they leave no token, the end
    of sentence is allowed: a hypothesis that cannot go on ends.

    Args:
      constraints: the constraints, if there are any.
      state: the searches under way.
      vocab_size: entries v of the vocabulary.
      eos_id: id of the end of sentence.
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
        forced = _forced(state.rows.prefixes, state.positions)[:, None, None]
        allowed = jnp.where(forced >= 0, forced == ids, allowed)
    return allowed


def begin_matching(
    constraints: Constraints | None, shape: tuple[int, ...]
) -> Bool[Array, "b k states"] | None:
    """The states of hypotheses before their first token; None if no phrases are watched for.

    Args:
      constraints: the constraints, if there are any.
      shape: numbers of sentences and of hypotheses of each.
    """
    if constraints is None or constraints.phrases is None:
        return None
    begin = jnp.asarray(constraints.phrases.begin)
    return jnp.broadcast_to(begin, (*shape, *begin.shape))


def follow_automaton(constraints: Constraints | None, live: Hypotheses) -> Hypotheses:
    """Hypotheses in the states to which their last token leads.

    Args:
      constraints: the constraints, if there are any.
      live: hypotheses in the states before it.
    """
    if constraints is None or constraints.phrases is None or live.matched is None:
        return live
    phrases = constraints.phrases
    taken = live.matched[..., phrases.sources] & (live.last[..., None] == phrases.tokens)
    reached = jnp.zeros_like(live.matched).at[..., phrases.targets].max(taken, mode="drop")
    return live._replace(matched=reached | phrases.always)


def _without(allowed: Bool[Array, "b k v"], tokens: Int[Array, "b k n"]) -> Bool[Array, "b k v"]:
    """The allowed tokens less some of each hypothesis; an id beyond the last is none."""
    rows, slots = (jnp.arange(n) for n in allowed.shape[:2])
    return allowed.at[rows[:, None, None], slots[:, None], tokens].set(False, mode="drop")


def _repeating(state: SearchState, size: int) -> Int32[Array, "b k n"]:
    """The tokens that would repeat an n-gram of their hypothesis; the ids beyond are no tokens."""
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
    """The tokens that would complete a phrase in each hypothesis; the ids beyond are no tokens."""
    matched = state.rows.live.matched
    assert matched is not None
    ends = (phrases.tokens >= 0) & (phrases.targets >= matched.shape[-1])
    completes = matched[..., phrases.sources] & ends
    return jnp.where(completes, phrases.tokens, jnp.iinfo(jnp.int32).max)


def _forced(prefixes: Int32[Array, "b p"], positions: Int32[Array, " b"]) -> Int32[Array, " b"]:
    """The next token of each sentence's prefix; below 0 after it."""
    last = prefixes.shape[1] - 1
    found = jnp.take_along_axis(prefixes, jnp.minimum(positions, last)[:, None], axis=1)[:, 0]
    return jnp.where(positions <= last, found, -1)
