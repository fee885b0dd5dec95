"""Phrases that no output may contain, as an automaton over a vocabulary's subwords.

A phrase is forbidden at the beginning of an output and after a space, in every spelling by
subwords, letters or bytes, and with any number of spaces between its words. The search disallows
the subword that would complete the phrase, without knowing the next one. So a longer word is
forbidden too if its subwords spell the phrase first: "in" forbids "in" + "side", but not "inside"
as one subword. A subword that continues the phrase with anything but a letter or digit completes it
as well.

Upper and lower case differ. A phrase after anything but a space, such as an opening quotation mark,
is not detected.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from t2t_jax.batch import EOS_ID
from t2t_jax.config import DecodingConfig
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.decoding.search.constraints import Constraints, Phrases
from t2t_jax.errors import UserError

_SPACE = b" "
_COMPLETE = -1


def constraints_of(decoding: DecodingConfig, vocabulary: Vocabulary) -> Constraints:
    """Make the constraints of a config and a vocabulary.

    Tokens that begin every target, such as the mark of its language, are in the prefix of each
    sentence; the constraints have their number. With forbidden phrases, subwords without text, such
    as padding, are forbidden too: one of these within a phrase would hide the phrase.
    """
    never = np.zeros(len(vocabulary), np.bool_)
    for token in decoding.forbidden_ids:
        if token == EOS_ID or not 0 <= token < len(vocabulary):
            raise UserError(
                f"decoding.forbidden_ids has {token}; give ids from 0 to {len(vocabulary) - 1} "
                f"other than {EOS_ID}, the end of sentence"
            )
        never[token] = True
    texts = spelt_by(vocabulary) if decoding.forbidden else []
    for token, text in enumerate(texts):
        never[token] |= not text and token != EOS_ID
    return Constraints(
        np.int32(decoding.min_length) if decoding.min_length else None,
        never if never.any() else None,
        automaton(decoding.forbidden, vocabulary) if decoding.forbidden else None,
        decoding.no_repeat_ngram_size,
        len(vocabulary.target_begin),
    )


@lru_cache(maxsize=16)  # every call of a translator asks
def automaton(phrases: tuple[str, ...], vocabulary: Vocabulary) -> Phrases:
    """Make the automaton that recognises phrases, none of them blank, in sequences of subwords.

    The numbers of states and edges are powers of two, so that other phrases share a compiled
    program.
    """
    pieces = _Pieces.of(spelt_by(vocabulary))
    begin: list[bool] = []
    always: list[bool] = []
    edges: list[tuple[int, int, int]] = []
    for phrase in dict.fromkeys(" ".join(one.split()) for one in phrases):
        text = _SPACE + phrase.encode()
        first = len(always)  # the number of the state in which nothing of this phrase is spelt
        for place in range(len(text)):
            always.append(place == 0)
            begin.append(place <= 1)  # an output begins as if after a space
            for token, end in pieces.edges(text, place):
                edges.append((first + place, token, _COMPLETE if end == len(text) else first + end))
    states = _power_of_two(len(always))
    filled = np.tile(np.array([0, -1, -1], np.int32), (_power_of_two(len(edges)), 1))
    filled[: len(edges)] = edges or filled[:0]
    sources, tokens, targets = filled.T
    targets = np.where(targets == _COMPLETE, states, targets)
    rest = (0, states - len(always))
    return Phrases(np.pad(begin, rest), np.pad(always, rest), sources, tokens, targets)


@lru_cache(maxsize=4)
def spelt_by(vocabulary: Vocabulary) -> Sequence[bytes]:
    """Return the text of each id of a vocabulary, in bytes, with a space before words."""
    return [vocabulary.spelling(token) for token in range(len(vocabulary))]


class _Pieces(NamedTuple):
    """The pieces of a vocabulary, sorted for look-up by their first bytes."""

    ordered: list[tuple[bytes, int]]
    """The bytes and the id of each piece, sorted by bytes."""
    inner_spaces: list[tuple[bytes, int]]
    """The pieces that have a space after their first byte."""

    @staticmethod
    def of(texts: Iterable[bytes]) -> "_Pieces":
        ordered = sorted((text, token) for token, text in enumerate(texts) if text)
        return _Pieces(ordered, [piece for piece in ordered if _SPACE in piece[0][1:]])

    def edges(self, text: bytes, place: int) -> set[tuple[int, int]]:
        """Return the ids of the pieces that can continue a phrase, and how far each spells it.

        Args:
          text: the phrase, with a space before it.
          place: number of bytes already spelt.
        """
        rest = text[place:]
        rests = {rest, _SPACE + rest} if text[:place].endswith(_SPACE) else {rest}
        found = {pair for one in rests for pair in self._fitting(one)} | set(self.inner_spaces)
        # Before the phrase anything may stand, so that a piece can begin anywhere in its own text.
        return {
            (token, end)
            for piece, token in found
            for begin in (range(len(piece)) if place == 0 else (0,))
            if (end := _read(text, place, piece[begin:])) is not None
        }

    def _fitting(self, rest: bytes) -> Iterator[tuple[bytes, int]]:
        """Yield the pieces with which a text begins, and the pieces that begin with the text."""
        for end in range(1, len(rest) + 1):
            for index in range(bisect_left(self.ordered, (rest[:end], 0)), len(self.ordered)):
                piece = self.ordered[index]
                if piece[0] != rest[:end] and not (end == len(rest) and piece[0].startswith(rest)):
                    break
                yield piece


def _read(text: bytes, place: int, piece: bytes) -> int | None:
    """Return the bytes spelt after one more piece; None if the piece does not fit.

    Several spaces in a row count as one.
    """
    for index, byte in enumerate(piece):
        if place == len(text):
            following = piece[index:].decode(errors="replace")[0]
            return None if following.isalnum() else place
        if byte == text[place]:
            place += 1
        elif not (byte == _SPACE[0] and text[:place].endswith(_SPACE)):
            return None
    return place


def _power_of_two(count: int) -> int:
    return 1 << max(0, count - 1).bit_length()
