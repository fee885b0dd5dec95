"""Terms that an output has to contain, as an automaton that reads hypotheses token by token.

Each sentence has its own terms, so the automaton is a row of arrays of the search and not a part of
its program: other terms need no other program. A term may be spelt in several ways, such as with a
capital at the beginning of a sentence; the first spelling that a hypothesis completes is enough.
The spellings of all terms of a sentence stand one behind the other, and a state of the automaton is
a place among their tokens: the token that a hypothesis would have to choose next to go on with that
spelling. A hypothesis can be in several states at once.

`decoding.dynamic_beams` searches with it.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Int32

FIRST = 1
"""The flag of the first token of a spelling."""
LAST = 2
"""The flag of the last token of a spelling."""
WORD_ENDS = 4
"""The flag of a last token behind which no letter or digit may stand."""
WORD_BEGINS = 8
"""The flag of a first token that may stand only where a word begins without a space of its own."""
AT_BEGINNING = 16
"""The flag of a first token that may stand only at the beginning of an output."""


class Spelling(NamedTuple):
    """A way to spell a term."""

    tokens: tuple[int, ...]
    """The ids of its subwords."""
    word_ends: bool = False
    """Whether no letter or digit may stand behind it."""
    word_begins: bool = False
    """Whether it may stand only at the beginning of an output, and behind a subword after which a
    word begins (`Boundaries.opens`)."""
    at_beginning: bool = False
    """Whether it may stand only at the beginning of an output."""


WantedTerm: TypeAlias = tuple[Spelling, ...]
"""The spellings of a term, of which a hypothesis has to contain one."""


class Boundaries(NamedTuple):
    """What the subwords of a vocabulary say about the words around them."""

    opens: Bool[Any, " v"]
    """Whether a word can begin behind a subword without a space: it ends in a space, or in an
    opening bracket or quotation mark."""
    continues: Bool[Any, " v"]
    """Whether a subword begins with a letter or digit, and so goes on with the word before it."""


class TermRows(NamedTuple):
    """The wanted terms of each sentence, as the tokens of all their spellings."""

    tokens: Int32[Any, "b c"]
    """The tokens, then -1."""
    terms: Int32[Any, "b c"]
    """The number of the term that a token belongs to, from 0."""
    gains: Int32[Any, "b c"]
    """By how many banks a hypothesis rises with a token: the weight of the term where the term is
    whole then, else the number of tokens of the spelling up to it, but less than the weight."""
    flags: Int32[Any, "b c"]
    """Sums of the flags of this module."""
    weights: Int32[Any, "b c"]
    """At the first token of a term, the length of its first spelling; else 0."""


class TermStates(NamedTuple):
    """How far hypotheses have come with the terms of their sentences."""

    begun: Bool[Array, "b m c"]
    """Whether the tokens before a place, in its spelling, are the newest ones of a hypothesis."""
    met: Bool[Array, "b m c"]
    """Whether a hypothesis contains the term that a token belongs to."""
    closed: Bool[Array, "b m"]
    """Whether the last token ends a term behind which no letter or digit may stand."""


def num_tokens(terms: Sequence[WantedTerm]) -> int:
    """Return the number of places that the terms of a sentence take."""
    return sum(len(one.tokens) for term in terms for one in term)


def term_rows(of_sentences: Sequence[Sequence[WantedTerm]], rows: int, places: int) -> TermRows:
    """Make the arrays of the terms of sentences.

    Args:
      of_sentences: the terms of each sentence.
      rows: number of rows b; those after the sentences have no terms.
      places: number of places c of each row.
    """
    arrays: Any = np.zeros((5, rows, places), np.int32)
    arrays[0] = -1
    for row, terms in enumerate(of_sentences):
        place = 0
        # Longer terms come first: a token ends one term at most, and of several the first.
        ordered = sorted(terms, key=lambda term: -len(term[0].tokens))
        for number, term in enumerate(ordered):
            weight = arrays[4, row, place] = len(term[0].tokens)
            for one in term:
                size = len(one.tokens)
                own = arrays[:, row, place : place + size]
                own[0], own[1] = one.tokens, number
                own[2] = np.minimum(range(1, size + 1), weight - 1)
                own[2, -1] = weight
                own[3, 0] |= FIRST | WORD_BEGINS * one.word_begins
                own[3, 0] |= AT_BEGINNING * one.at_beginning
                own[3, -1] |= LAST | WORD_ENDS * one.word_ends
                place += size
    return TermRows(*arrays)


def begin_terms(rows: TermRows, beam_size: int) -> TermStates:
    """Return the states of hypotheses before their first token."""
    shape = rows.tokens.shape[0], beam_size, rows.tokens.shape[1]
    nothing = jnp.zeros(shape, jnp.bool_)
    return TermStates(nothing, nothing, jnp.zeros(shape[:2], jnp.bool_))


def advancing(
    rows: TermRows,
    states: TermStates,
    boundaries: Boundaries,
    last: Int32[Array, "b m"],
    is_beginning: Bool[Array, " b"],
) -> Bool[Array, "b m c"]:
    """Return the places whose token would begin a wanted spelling, or go on with one.

    Args:
      last: the last token of each hypothesis.
      is_beginning: whether the outputs of a sentence have no token yet beside those that the model
        is told.
    """
    beginning = is_beginning[:, None, None]
    opened = jnp.asarray(boundaries.opens)[last][..., None] | beginning
    needs_word, needs_beginning = (
        (rows.flags & flag)[:, None] > 0 for flag in (WORD_BEGINS, AT_BEGINNING)
    )
    can_begin = (opened | ~needs_word) & (beginning | ~needs_beginning)
    is_first = (rows.flags & FIRST)[:, None] > 0
    there = jnp.where(is_first, can_begin, states.begun)
    return there & ~states.met & (rows.tokens >= 0)[:, None]


def follow_terms(
    rows: TermRows, states: TermStates, active: Bool[Array, "b m c"], tokens: Int[Array, "b m"]
) -> TermStates:
    """Return the states of hypotheses after one more token.

    Args:
      states: their states before it.
      active: what `advancing` returns for these states.
      tokens: the token of each hypothesis.
    """
    taken = active & (rows.tokens[:, None] == tokens[..., None])
    is_last = (rows.flags & LAST)[:, None] > 0
    begun = jnp.pad(taken & ~is_last, ((0, 0), (0, 0), (1, 0)))[..., :-1]
    ends = taken & is_last
    ends &= jnp.cumsum(ends, axis=-1) == 1  # the first of several
    ended = jnp.max(jnp.where(ends, rows.terms[:, None], -1), axis=-1, keepdims=True)
    met = states.met | (rows.terms[:, None] == ended)
    closed = jnp.any(ends & ((rows.flags & WORD_ENDS)[:, None] > 0), axis=-1)
    return TermStates(begun, met, closed)


def num_met(rows: TermRows, states: TermStates) -> Int32[Array, "b m"]:
    """Return the sum of the weights of the terms that each hypothesis contains."""
    return jnp.sum(jnp.where(states.met, rows.weights[:, None], 0), axis=-1)


def have_all(rows: TermRows, states: TermStates) -> Bool[Array, "b m"]:
    """Return whether each hypothesis contains all terms of its sentence."""
    return jnp.all(states.met | (rows.tokens < 0)[:, None], axis=-1)
