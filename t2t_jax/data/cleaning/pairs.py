"""Measures of the sentences of some pairs, each computed when a rule first asks for it."""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cache, cached_property
from hashlib import blake2b
from itertools import chain
from typing import TypeAlias

import numpy as np
from jaxtyping import Bool, Float64, Int64, UInt8, UInt64

Mask: TypeAlias = Bool[np.ndarray, "pairs"]
Numbers: TypeAlias = Int64[np.ndarray, "pairs"]
Keys: TypeAlias = UInt64[np.ndarray, "pairs"]
Scores: TypeAlias = Float64[np.ndarray, "pairs"]

_NOT_LETTERS = re.compile(r"[\W\d_]+")
SPACE, DIGIT, BROKEN, LETTER, OWN_LETTER, _OTHER = range(6)
"""Kinds of characters: spaces, digits, those that no text has, letters, and those of the script of
the language."""
_BROKEN_CATEGORIES = {"Cc", "Cn", "Co", "Cs"}  # controls, unassigned, private use, surrogates
_OF_NO_SCRIPT = (
    "COMBINING",
    "MODIFIER",
    "FEMININE",
    "MASCULINE",
    "MICRO",
    "FULLWIDTH",
    "VARIATION",
)


class Side:
    """The source, or the target, sentences of some pairs, with their measures."""

    def __init__(self, lines: Sequence[str], script: str = "LATIN", spaced: bool = True) -> None:
        """Keep the lines; see `CleaningLimits.scripts` for the script."""
        self.lines, self.is_spaced, self._script = list(lines), spaced, script

    @cached_property
    def num_words(self) -> Numbers:
        """Return the number of words of each line, counted between spaces."""
        return _integers(len(line.split()) for line in self.lines)

    @cached_property
    def num_characters(self) -> Numbers:
        """Return the number of characters of each line."""
        return _integers(map(len, self.lines))

    @cached_property
    def width(self) -> Numbers:
        """Return the number of characters, in a language without spaces each three times.

        A character of Chinese or Japanese says about as much as three letters of an alphabet.
        """
        return self.num_characters * (1 if self.is_spaced else 3)

    @cached_property
    def longest_word(self) -> Numbers:
        """Return the number of characters of the longest word of each line."""
        return _integers(max(map(len, line.split()), default=0) for line in self.lines)

    @property
    def num_letters(self) -> Numbers:
        """Return the number of letters of each line, with the marks that belong to letters."""
        return self.count(LETTER) + self.count(OWN_LETTER)

    def count(self, kind: int) -> Numbers:
        """Return how many characters of a kind each line has, such as `DIGIT`."""
        return self._counts[:, kind]

    @cached_property
    def keys(self) -> Keys:
        """Return a hash of 64 bits of each line."""
        return _hashes(self.lines)

    @cached_property
    def near_keys(self) -> Keys:
        """Return a hash of the letters of each line in lower case; of a line without any, `keys`.

        Lines that differ in case, digits, punctuation, symbols or spaces alone have one hash.
        """
        letters = (_NOT_LETTERS.sub("", line.casefold()) for line in self.lines)
        return _hashes(near or line for near, line in zip(letters, self.lines, strict=True))

    @cached_property
    def _counts(self) -> Int64[np.ndarray, "pairs kinds"]:
        """Return how many characters of each kind each line has."""
        points = np.frombuffer("".join(self.lines).encode("utf-32-le", "surrogatepass"), np.uint32)
        of_line = np.repeat(np.arange(len(self.lines)) * 8, self.num_characters)
        found = np.bincount(of_line + _kinds(self._script)[points], minlength=8 * len(self.lines))
        return found.reshape(-1, 8)


class PairChunk:
    """Some consecutive pairs of a corpus, with the measures of their sides."""

    def __init__(self, source: Side, target: Side) -> None:
        """Keep the two sides, which have equally many lines."""
        self.source, self.target = source, target

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self.source.lines)

    @property
    def sides(self) -> tuple[Side, Side]:
        """Return the source and the target."""
        return self.source, self.target

    @cached_property
    def keys(self) -> Keys:
        """Return a hash of 64 bits of each pair."""
        return _joined(self.source.keys, self.target.keys)

    @property
    def near_keys(self) -> Keys:
        """Return a hash of each pair, made of those of its sides (`Side.near_keys`)."""
        return _joined(self.source.near_keys, self.target.near_keys)


def _joined(source: Keys, target: Keys) -> Keys:
    return source * np.uint64(0x9E3779B97F4A7C15) + target  # odd: the order of the sides matters


def _integers(numbers: Iterable[int]) -> Numbers:
    return np.fromiter(numbers, np.int64)


def _hashes(texts: Iterable[str]) -> Keys:
    digests = (blake2b(text.encode(), digest_size=8).digest() for text in texts)
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)


@cache
def _kinds(script: str) -> UInt8[np.ndarray, "points"]:
    """Return the kind of every code point of Unicode; letters are told apart by their script."""
    own = (*script.split(), *_OF_NO_SCRIPT)
    kinds = np.full(0x110000, BROKEN, np.uint8)
    for point in chain(range(0x34000), range(0xE0000, 0xE0200)):  # all assigned
        character = chr(point)
        category = unicodedata.category(character)
        if category[0] in "LM":
            is_own = unicodedata.name(character, "").startswith(own)
            kinds[point] = OWN_LETTER if is_own else LETTER
        elif category not in _BROKEN_CATEGORIES:
            kinds[point] = DIGIT if category == "Nd" else _OTHER
    kinds[[ord("\N{REPLACEMENT CHARACTER}"), 0xFEFF]] = BROKEN
    kinds[[ord(space) for space in " \t\N{NO-BREAK SPACE}\N{NARROW NO-BREAK SPACE}\u3000"]] = SPACE
    return kinds
