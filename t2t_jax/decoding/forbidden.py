"""Build the automaton that keeps forbidden phrases out of outputs.

A phrase is forbidden at the start of an output and after a space. The automaton recognizes every
segmentation into subwords, letters or bytes, and any number of spaces between words. The search
disallows the subword that would complete the phrase, before it sees the next subword. A longer word
is therefore forbidden if its first subwords spell the phrase: "in" forbids "in" + "side", but not
the single subword "inside". A subword that completes the phrase and continues with
anything but a letter or digit is forbidden too.

Matching is case-sensitive. A phrase after another character than a space, such as an opening
quotation mark, is not detected.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

import numpy as np

from t2t_jax.batch import EOS_ID
from t2t_jax.config import DecodingConfig
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.decoding.search.constraints import Constraints, Phrases
from t2t_jax.errors import UserError

_SPACE = b" "


def constraints_of(decoding: DecodingConfig, vocabulary: Vocabulary) -> Constraints:
    """Make the constraints of a config and a vocabulary.

    Each prefix starts with the tokens that begin every target, such as a language tag; the
    constraints store how many. Forbidden phrases also forbid subwords without text, such as
    padding, because such a subword inside a phrase would hide the phrase.
    """
    is_forbidden = np.zeros(len(vocabulary), np.bool_)
    for token in decoding.forbidden_ids:
        if token == EOS_ID or not 0 <= token < len(vocabulary):
            raise UserError(
                f"decoding.forbidden_ids has {token}; give ids from 0 to {len(vocabulary) - 1} "
                f"other than {EOS_ID}, the end of sentence"
            )
        is_forbidden[token] = True
    texts = spelt_by(vocabulary) if decoding.forbidden else []
    for token, text in enumerate(texts):
        is_forbidden[token] |= not text and token != EOS_ID
    return Constraints(
        np.int32(decoding.min_length) if decoding.min_length else None,
        is_forbidden if is_forbidden.any() else None,
        automaton(decoding.forbidden, vocabulary) if decoding.forbidden else None,
        decoding.no_repeat_ngram_size,
        len(vocabulary.target_begin),
    )


@lru_cache(maxsize=16)  # each call of a translator needs it
def automaton(phrases: tuple[str, ...], vocabulary: Vocabulary) -> Phrases:
    """Make the automaton that recognizes phrases in sequences of subwords. No phrase may be blank.

    The numbers of states and edges are padded to powers of two, so that other phrases share a
    compiled program.
    """
    pieces = _Pieces(spelt_by(vocabulary))
    texts = dict.fromkeys(_SPACE + " ".join(words.split()).encode() for words in phrases)
    num_states = _power_of_two(sum(map(len, texts)))
    initial, always = np.zeros((2, num_states), np.bool_)
    edges: list[tuple[int, int, int]] = []
    first = 0  # index of the state in which no byte of a phrase is matched
    for text in texts:
        always[first] = True
        initial[first : first + 2] = True  # the start of an output counts as a space
        for start in range(len(text)):
            for token, end in pieces.edges(text, start):
                target = num_states if end == len(text) else first + end
                edges.append((first + start, token, target))
        first += len(text)
    padded_edges = np.tile(np.array([0, -1, num_states], np.int32), (_power_of_two(len(edges)), 1))
    padded_edges[: len(edges)] = edges or padded_edges[:0]
    return Phrases(initial, always, *padded_edges.T)


@lru_cache(maxsize=4)
def spelt_by(vocabulary: Vocabulary) -> Sequence[bytes]:
    """Return the UTF-8 text of each id of a vocabulary, with a space before words."""
    return [vocabulary.spelling(token) for token in range(len(vocabulary))]


class _Pieces:
    """The subwords of a vocabulary, sorted for prefix lookup."""

    def __init__(self, texts: Iterable[bytes]) -> None:
        # The bytes and the id of each subword, sorted by bytes.
        self.ordered = sorted((text, token) for token, text in enumerate(texts) if text)
        # The subwords that have a space after their first byte.
        self.inner_spaces = [piece for piece in self.ordered if _SPACE in piece[0][1:]]

    def edges(self, text: bytes, matched: int) -> set[tuple[int, int]]:
        """Return the ids that can continue a phrase, each with the bytes that are matched after it.

        Args:
          text: the phrase, with a space before it.
          matched: number of bytes already matched.
        """
        suffix = text[matched:]
        tails = {suffix, _SPACE + suffix} if text[:matched].endswith(_SPACE) else {suffix}
        pieces = {piece for tail in tails for piece in self._fitting(tail)} | set(self.inner_spaces)
        # Any text may precede the phrase, so the phrase may start inside the subword.
        return {
            (token, end)
            for piece, token in pieces
            for begin in (range(len(piece)) if matched == 0 else (0,))
            if (end := _read(text, matched, piece[begin:])) is not None
        }

    def _fitting(self, text: bytes) -> Iterator[tuple[bytes, int]]:
        """Yield the bytes and id of each subword that begins with a text or is a prefix of it."""
        for end in range(1, len(text) + 1):
            for index in range(bisect_left(self.ordered, (text[:end], 0)), len(self.ordered)):
                piece = self.ordered[index]
                if piece[0] != text[:end] and not (end == len(text) and piece[0].startswith(text)):
                    break
                yield piece


def _read(text: bytes, matched: int, piece: bytes) -> int | None:
    """Return how many bytes of the phrase `text` match after the subword `piece`.

    Return None if the subword does not match. Repeated spaces count as one.

    Args:
      matched: number of bytes that match before it.
    """
    for index, byte in enumerate(piece):
        if matched == len(text):
            following = piece[index:].decode(errors="replace")[0]
            return None if following.isalnum() else matched
        if byte == text[matched]:
            matched += 1
        elif not (byte == _SPACE[0] and text[:matched].endswith(_SPACE)):
            return None
    return matched


def _power_of_two(count: int) -> int:
    return 1 << max(0, count - 1).bit_length()
