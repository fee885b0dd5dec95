"""Constrain which tokens may follow a hypothesis, for every search strategy.

A constraint changes which translation wins, but not the log-probability of a translation, which is
normalized over the whole vocabulary.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32, Int, Int32

from .hypotheses import IMPOSSIBLE, Hypotheses, SearchState


class Phrases(NamedTuple):
    """An automaton that reads a hypothesis, to find tokens that would complete a forbidden phrase.

    Its states are positions within the phrases. A hypothesis can be in several states at once.
    Padding edges have token -1.
    """

    initial: Bool[Any, " states"]
    """Whether a hypothesis is in each state before its first token."""
    always: Bool[Any, " states"]
    """Whether a hypothesis is in each state after every token."""
    sources: Int32[Any, " edges"]
    """The state in which each edge starts."""
    tokens: Int32[Any, " edges"]
    """The token of each edge."""
    targets: Int32[Any, " edges"]
    """The state in which each edge ends; beyond the last state, a phrase is complete."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Constraints:
    """The constraints of a search; None or 0 disables a constraint.

    Attributes:
      min_length: fewest tokens before the end-of-sentence token.
      forbidden: whether each token of the vocabulary is forbidden.
      phrases: the automaton of the forbidden phrases.
      no_repeat_ngram_size: the n of n-grams that occur at most once in a hypothesis.
      prompt_length: number of tokens at the start of each prefix that get probability 1, such as a
        language tag.
    """

    min_length: Int32[Any, ""] | None = None
    forbidden: Bool[Any, " v"] | None = None
    phrases: Phrases | None = None
    no_repeat_ngram_size: int = field(default=0, metadata={"static": True})
    prompt_length: int = field(default=0, metadata={"static": True})

    def apply(
        self, state: SearchState, logits: Float32[Array, "b k v"], eos_id: int
    ) -> Float32[Array, "b k v"]:
        """Set the logits of the tokens that may not follow each live hypothesis to -inf.

        A prefix overrides the other constraints. If the other constraints allow no token, the
        sentence must end.
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
        """Give the first `prompt_length` tokens of each prefix probability 1."""
        if not self.prompt_length or state.rows.prefixes is None:
            return logits
        prompts = state.rows.prefixes[:, : self.prompt_length]
        is_possible = _force(prompts, state.positions, jnp.ones(logits.shape, jnp.bool_))
        return jnp.where(is_possible, logits, IMPOSSIBLE)

    def initial_states(self, shape: tuple[int, ...]) -> Bool[Array, "b k states"] | None:
        """Return the automaton's states before the first token, for a shape (batch, beam)."""
        if self.phrases is None:
            return None
        initial = jnp.asarray(self.phrases.initial)
        return jnp.broadcast_to(initial, (*shape, *initial.shape))

    def advance_automaton(self, live: Hypotheses) -> Hypotheses:
        """Advance the automaton by the last token of each hypothesis."""
        phrases, states = self.phrases, live.phrase_states
        if phrases is None or states is None:
            return live
        edges = states[..., phrases.sources] & (live.last[..., None] == phrases.tokens)
        new_states = jnp.zeros_like(states).at[..., phrases.targets].max(edges, mode="drop")
        return live._replace(phrase_states=new_states | phrases.always)


UNCONSTRAINED = Constraints()
"""A search without constraints."""


def _disallow(allowed: Bool[Array, "b k v"], tokens: Int[Array, "b k n"]) -> Bool[Array, "b k v"]:
    """Disallow tokens of each hypothesis, ignoring ids beyond the vocabulary."""
    rows, slots = (jnp.arange(n) for n in allowed.shape[:2])
    return allowed.at[rows[:, None, None], slots[:, None], tokens].set(False, mode="drop")


def _repeated_ngrams(state: SearchState, size: int) -> Int32[Array, "b k n"]:
    """Return the tokens that would repeat an n-gram, padded with ids beyond the vocabulary."""
    capacity, padding = state.capacity, jnp.iinfo(jnp.int32).max
    steps_ago = jnp.arange(capacity)
    # Newest token first: [batch, beam, steps ago]
    tokens = state.rows.live.tokens[:, :, (state.clock - 1 - steps_ago) % capacity]
    is_generated = (steps_ago < state.positions[:, None])[:, None]
    num_ngrams = max(0, capacity - size + 1)
    # The last token of an n-gram would repeat the n-gram, if the tokens before it equal the newest
    # tokens of the hypothesis.
    is_repeat = is_generated[..., size - 1 :]
    for j in range(size - 1):
        is_repeat &= tokens[..., j + 1 : j + 1 + num_ngrams] == tokens[..., j : j + 1]
    return jnp.where(is_repeat, tokens[..., :num_ngrams], padding)


def _completed_phrases(phrases: Phrases, state: SearchState) -> Int32[Array, "b k edges"]:
    """Return the tokens that would complete a phrase, padded with ids beyond the vocabulary."""
    states = state.rows.live.phrase_states
    assert states is not None
    is_final = (phrases.tokens >= 0) & (phrases.targets >= states.shape[-1])
    completes = states[..., phrases.sources] & is_final  # [batch, beam, edges]
    return jnp.where(completes, phrases.tokens, jnp.iinfo(jnp.int32).max)


def _force(
    prefixes: Int32[Array, "b p"], positions: Int32[Array, " b"], allowed: Bool[Array, "b k v"]
) -> Bool[Array, "b k v"]:
    """Allow only the next prefix token, where a sentence is within its prefix."""
    last = prefixes.shape[1] - 1
    tokens = jnp.take_along_axis(prefixes, jnp.minimum(positions, last)[:, None], axis=1)  # [b, 1]
    is_forced = (positions[:, None] <= last) & (tokens >= 0)  # -1 is padding
    is_next = tokens == jnp.arange(allowed.shape[-1])  # [b, v]
    return jnp.where(is_forced[:, None], is_next[:, None], allowed)
