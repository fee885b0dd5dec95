"""The cleaning of some pairs after others: which are kept, and what each rule has dropped."""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from operator import add
from typing import Any

import numpy as np

from t2t_jax.data.cleaning.pairs import Keys, Mask, PairChunk
from t2t_jax.data.cleaning.rules import RULES, PairCleaning
from t2t_jax.data.splits import Chunk

_SAMPLES = 5


class SeenKeys:
    """Keys of 64 bits that were seen, in sorted arrays: 8 bytes a key, 16 while some are merged."""

    def __init__(self) -> None:
        """Begin without keys."""
        self._levels: list[Keys] = []

    def add_new(self, keys: Keys) -> Mask:
        """Add keys, and return which of them are the first of their value."""
        values, first = np.unique(keys, return_index=True)
        known = np.zeros(len(values), bool)
        for level in self._levels:
            places = np.minimum(np.searchsorted(level, values), len(level) - 1)
            known |= level[places] == values
        fresh = values[~known]
        while self._levels and len(self._levels[-1]) < 2 * len(fresh):
            fresh = np.sort(np.concatenate([self._levels.pop(), fresh]), kind="stable")
        if len(fresh):
            self._levels.append(fresh)
        is_new = np.zeros(len(keys), bool)
        is_new[first[~known]] = True
        return is_new


@dataclass
class CleaningState:
    """What the rules for repeated text know of the pairs before: keys, 16 bytes a pair and rule."""

    seen: dict[str, SeenKeys] = field(default_factory=dict)
    """The keys of all pairs before, by rule."""
    kept: dict[str, SeenKeys] = field(default_factory=dict)
    """The keys of the pairs before that the other rules kept, by rule."""

    def repeated(self, rule: str, keys: Keys, left: Mask) -> tuple[Mask, Mask]:
        """Return which pairs repeat one that is left, and which repeat any; add their keys."""
        among_left = np.zeros(len(keys), bool)
        among_left[left] = ~self.kept.setdefault(rule, SeenKeys()).add_new(keys[left])
        return among_left, ~self.seen.setdefault(rule, SeenKeys()).add_new(keys)


@dataclass(frozen=True)
class Dropped:
    """What one rule has dropped."""

    pairs: int = 0
    """Pairs that this rule is the first to drop."""
    alone: int = 0
    """Pairs that this rule would drop without the others; of cross-entropy, those it drops."""
    samples: tuple[tuple[int, str, str], ...] = ()
    """Those five pairs of the first kind that have the least hashes, with the hashes."""

    def __add__(self, other: "Dropped") -> "Dropped":
        """Return the sum of what a rule has dropped of two texts."""
        samples = heapq.nsmallest(_SAMPLES, {*self.samples, *other.samples})
        return Dropped(self.pairs + other.pairs, self.alone + other.alone, tuple(samples))


@dataclass(frozen=True)
class CleanedCounts:
    """The numbers of a cleaning. Those of several texts can be added, in any order."""

    read: tuple[int, ...] = (0, 0, 0)
    """Pairs, and words of source and target, that were read."""
    kept: tuple[int, ...] = (0, 0, 0)
    """Pairs, and words of source and target, that are kept."""
    dropped: Mapping[str, Dropped] = field(default_factory=dict)
    """What each rule has dropped, by its name."""

    def __add__(self, other: "CleanedCounts") -> "CleanedCounts":
        """Return the numbers of two texts together."""
        dropped = {
            name: self.dropped.get(name, Dropped()) + other.dropped.get(name, Dropped())
            for name in {**self.dropped, **other.dropped}
        }
        read, kept = map(add, self.read, other.read), map(add, self.kept, other.kept)
        return CleanedCounts(tuple(read), tuple(kept), dropped)


def clean_pairs(
    chunk: Chunk, cleaning: PairCleaning, state: CleaningState
) -> tuple[Chunk, CleanedCounts]:
    """Return those pairs of a chunk that the rules keep, in order, and what each rule has dropped.

    Args:
      chunk: source lines, and as many target lines.
      cleaning: the rules with their limits.
      state: the keys of the pairs before, to which those of this chunk are added.
    """
    pairs = cleaning.chunk(*chunk)
    words = [np.ones(len(pairs.left), np.int64), *(side.num_words for side in pairs.sides)]
    read, dropped = _sums(words, pairs.left), {}
    for name, first, alone in apply_rules(pairs, cleaning, state):
        dropped[name] = Dropped(int(first.sum()), int(alone.sum()), _samples(pairs, first))
    kept = [[*compress(side.lines, pairs.left)] for side in pairs.sides]
    return (kept[0], kept[1]), CleanedCounts(read, _sums(words, pairs.left), dropped)


def apply_rules(
    pairs: PairChunk, cleaning: PairCleaning, state: CleaningState
) -> Iterator[tuple[str, Mask, Mask]]:
    """Yield each rule, the pairs that it is the first to drop, and those that it drops alone.

    After each rule, `pairs.left` has what is left.
    """
    for name in cleaning.rules:
        rule, before = RULES[name], pairs.left
        found = rule.find(pairs, cleaning)
        drops, alone = state.repeated(name, found, before) if rule.has_keys else (found, found)
        pairs.left = before & ~drops
        yield name, before & drops, alone


def _sums(words: Sequence[Any], which: Mask) -> tuple[int, ...]:
    return tuple(int(each[which].sum()) for each in words)


def _samples(pairs: PairChunk, which: Mask) -> tuple[tuple[int, str, str], ...]:
    """Return those pairs that have the least hashes."""
    lines = np.flatnonzero(which)
    order = np.argsort(pairs.keys[lines], kind="stable")[:_SAMPLES]
    return tuple(
        (int(pairs.keys[line]), pairs.source.lines[line], pairs.target.lines[line])
        for line in lines[order]
    )
