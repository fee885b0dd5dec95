"""Constraints on the tokens that may follow a hypothesis, under every strategy of the search.

A strategy chooses among the allowed tokens. Log-probabilities are the model's, normalised over the
whole vocabulary: a constraint changes the translation, but not the probability of a translation.

An automaton recognises forbidden phrases in every spelling: it reads a hypothesis token by token,
and its states are positions within the phrases. The caller makes it for a vocabulary.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32, Int, Int32

from .hypotheses import IMPOSSIBLE, Hypotheses, SearchState


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
      forbidden: whether each id of the vocabulary is forbidden.
      phrases: the automaton of the forbidden phrases.
      no_repeat_ngram_size: the n of n-grams that occur at most once in a hypothesis; 0 allows all.
      prompt_length: the number of tokens at the start of each prefix that are inputs of the model,
        such as the mark of the target language; they have probability 1.
    """

    min_length: Int32[Any, ""] | None = None
    forbidden: Bool[Any, " v"] | None = None
    phrases: Phrases | None = None
    no_repeat_ngram_size: int = field(default=0, metadata={"static": True})
    prompt_length: int = field(default=0, metadata={"static": True})

    def apply(
        self, state: SearchState, logits: Float32[Array, "b k v"], eos_id: int
    ) -> Float32[Array, "b k v"]:
        """Return logits with -inf for each token that may not follow its live hypothesis.

        Within the prefix of a sentence only the next token of the prefix is allowed, whatever the
        other constraints say. A hypothesis ends if these leave no token.
        """
        is_constrained = jax.tree.leaves(self) or self.no_repeat_ngram_size
        prefixes = state.rows.prefixes
        if not is_constrained and prefixes is None:
            return logits
        ids = jnp.arange(logits.shape[-1])
        allowed = jnp.ones(logits.shape, jnp.bool_)
        if self.forbidden is not None:
            allowed &= ~self.forbidden
        if self.min_length is not None:
            too_short = (state.positions < self.min_length)[:, None, None]
            allowed &= ~(too_short & (ids == eos_id))
        if self.no_repeat_ngram_size:
            allowed = _disallow(allowed, _repeated_ngrams(state, self.no_repeat_ngram_size))
        if self.phrases is not None:
            allowed = _disallow(allowed, _completed_phrases(self.phrases, state))
        if is_constrained:
            allowed |= ~jnp.any(allowed, axis=-1, keepdims=True) & (ids == eos_id)
        if prefixes is not None:
            allowed = _force(prefixes, state.positions, allowed)
        return jnp.where(allowed, logits, -jnp.inf)

    def force_prompt(
        self, state: SearchState, logits: Float32[Array, "b k v"]
    ) -> Float32[Array, "b k v"]:
        """Return logits that give the first `prompt_length` tokens of prefixes probability 1."""
        if not self.prompt_length or state.rows.prefixes is None:
            return logits
        prompts = state.rows.prefixes[:, : self.prompt_length]
        possible = _force(prompts, state.positions, jnp.ones(logits.shape, jnp.bool_))
        return jnp.where(possible, logits, IMPOSSIBLE)

    def initial_states(self, shape: tuple[int, ...]) -> Bool[Array, "b k states"] | None:
        """Return the automaton's states before the first token; None without an automaton.

        Args:
          shape: the number of sentences, and of hypotheses of each.
        """
        if self.phrases is None:
            return None
        begin = jnp.asarray(self.phrases.begin)
        return jnp.broadcast_to(begin, (*shape, *begin.shape))

    def advance_automaton(self, live: Hypotheses) -> Hypotheses:
        """Return hypotheses with the automaton's states after their last token."""
        phrases, states = self.phrases, live.phrase_states
        if phrases is None or states is None:
            return live
        taken = states[..., phrases.sources] & (live.last[..., None] == phrases.tokens)
        reached = jnp.zeros_like(states).at[..., phrases.targets].max(taken, mode="drop")
        return live._replace(phrase_states=reached | phrases.always)


UNCONSTRAINED = Constraints()
"""No constraints."""


def _disallow(allowed: Bool[Array, "b k v"], tokens: Int[Array, "b k n"]) -> Bool[Array, "b k v"]:
    """Disallow tokens of each hypothesis; an id beyond the vocabulary changes nothing."""
    rows, slots = (jnp.arange(n) for n in allowed.shape[:2])
    return allowed.at[rows[:, None, None], slots[:, None], tokens].set(False, mode="drop")


def _repeated_ngrams(state: SearchState, size: int) -> Int32[Array, "b k n"]:
    """Return the tokens that would repeat an n-gram, padded with ids beyond the vocabulary."""
    capacity, nothing = state.capacity, jnp.iinfo(jnp.int32).max
    ago = jnp.arange(capacity)
    tokens = state.rows.live.tokens[:, :, (state.clock - 1 - ago) % capacity]  # the newest first
    generated = (ago < state.positions[:, None])[:, None]
    count = max(0, capacity - size + 1)  # of n-grams that end before the newest token
    # The n-gram that ends `i` tokens ago repeats if the tokens before its last are the newest ones.
    repeats = generated[..., size - 1 :]
    for j in range(size - 1):
        repeats = repeats & (tokens[..., j + 1 : j + 1 + count] == tokens[..., j : j + 1])
    return jnp.where(repeats, tokens[..., :count], nothing)


def _completed_phrases(phrases: Phrases, state: SearchState) -> Int32[Array, "b k edges"]:
    """Return the tokens that would complete a phrase, padded with ids beyond the vocabulary."""
    states = state.rows.live.phrase_states
    assert states is not None
    ends = (phrases.tokens >= 0) & (phrases.targets >= states.shape[-1])
    completes = states[..., phrases.sources] & ends
    return jnp.where(completes, phrases.tokens, jnp.iinfo(jnp.int32).max)


def _force(
    prefixes: Int32[Array, "b p"], positions: Int32[Array, " b"], allowed: Bool[Array, "b k v"]
) -> Bool[Array, "b k v"]:
    """Within the prefix of a sentence, allow only the next token of the prefix."""
    last = prefixes.shape[1] - 1
    tokens = jnp.take_along_axis(prefixes, jnp.minimum(positions, last)[:, None], axis=1)  # [b, 1]
    is_forced = (positions[:, None] <= last) & (tokens >= 0)
    is_next = tokens == jnp.arange(allowed.shape[-1])  # [b, v]
    return jnp.where(is_forced[:, None], is_next[:, None], allowed)
