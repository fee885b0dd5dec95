"""The cleaning of some pairs after others: which are kept, and what each rule has dropped."""

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from operator import add
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float64, UInt8

from t2t_jax.data.cleaning.limits import CleaningLimits
from t2t_jax.data.cleaning.pairs import Keys, Mask, PairChunk, Side
from t2t_jax.data.cleaning.rules import RULES, SCORED, PairCleaning
from t2t_jax.data.splits import Chunk

Reasons: TypeAlias = UInt8[np.ndarray, "pairs"]
LeftScores: TypeAlias = Float64[np.ndarray, "left"]
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

    @staticmethod
    def of_alone(alone: Mapping[str, int]) -> "CleanedCounts":
        """Return the pairs that each rule would drop alone as numbers that can be added."""
        return CleanedCounts(dropped={name: Dropped(0, count) for name, count in alone.items()})

    def __add__(self, other: "CleanedCounts") -> "CleanedCounts":
        """Return the numbers of two texts together."""
        dropped = {
            name: self.dropped.get(name, Dropped()) + other.dropped.get(name, Dropped())
            for name in {**self.dropped, **other.dropped}
        }
        read, kept = map(add, self.read, other.read), map(add, self.kept, other.kept)
        return CleanedCounts(tuple(read), tuple(kept), dropped)


class Examined(NamedTuple):
    """What the rules say of some pairs that do not know the pairs before."""

    reasons: Reasons
    """Which rule drops each pair: 1 for the first one of the cleaning, and so on; 0 for none."""
    keys: dict[str, Keys]
    """The keys of the pairs for each rule for repeated text."""
    alone: dict[str, int]
    """The pairs that each rule would drop without the others."""

    @staticmethod
    def joined(parts: Sequence["Examined"]) -> "Examined":
        """Return what the rules say of the pairs of several parts, in order."""
        keys = {
            name: np.concatenate([part.keys[name] for part in parts])
            for name in (parts[0].keys if parts else ())
        }
        alone = Counter[str]()
        for part in parts:
            alone.update(part.alone)
        reasons = np.concatenate([np.zeros(0, np.uint8), *(part.reasons for part in parts)])
        return Examined(reasons, keys, dict(alone))


def examine(chunk: Chunk, cleaning: PairCleaning) -> Examined:
    """Apply the rules that look at a pair by itself; any process can."""
    pairs = cleaning.chunk(*chunk)
    examined = Examined(np.zeros(len(pairs), np.uint8), {}, {})
    for number, name in enumerate(cleaning.rules, start=1):
        rule = RULES[name]
        if rule.finds == "keys":
            examined.keys[name] = rule.find(pairs, cleaning)
        elif rule.finds == "drops":
            drops = rule.find(pairs, cleaning)
            examined.reasons[drops & (examined.reasons == 0)] = number
            examined.alone[name] = int(drops.sum())
    return examined


def drop_repeated(examined: Examined, cleaning: PairCleaning, state: CleaningState) -> None:
    """Apply the rules for repeated text.

    Args:
      examined: what the other rules say, in which `reasons` and `alone` are changed.
      state: the keys of the pairs before, to which those of these are added.
    """
    reasons = examined.reasons
    for name, keys in examined.keys.items():
        drops, alone = state.repeated(name, keys, reasons == 0)
        reasons[drops & (reasons == 0)] = 1 + cleaning.rules.index(name)
        examined.alone[name] = int(alone.sum())


def scores_of_left(chunk: Chunk, reasons: Reasons, cleaning: PairCleaning) -> LeftScores:
    """Return the scores of those pairs that no rule has dropped."""
    left = reasons == 0
    if not left.any():
        return np.zeros(0)
    pairs = cleaning.chunk(*([*compress(lines, left)] for lines in chunk))
    scores: LeftScores = RULES[SCORED].find(pairs, cleaning)
    return scores


def least_score(scores: LeftScores, limits: CleaningLimits) -> float:
    """Return the least score that is kept, of the scores of all pairs that are left."""
    if limits.keep_share is None or not len(scores):
        return limits.min_score or 0.0
    place = max(1, round(limits.keep_share * len(scores))) - 1
    return float(np.sort(scores)[::-1][place])


def drop_improbable(
    examined: Examined, scores: LeftScores, least: float, cleaning: PairCleaning
) -> None:
    """Apply the rule of scores to those pairs that are left, of which the scores are given."""
    drops = np.flatnonzero(examined.reasons == 0)[scores < least]
    examined.reasons[drops] = 1 + cleaning.rules.index(SCORED)
    examined.alone[SCORED] = len(drops)


def kept_and_counted(
    chunk: Chunk, reasons: Reasons, rules: Sequence[str]
) -> tuple[Chunk, CleanedCounts]:
    """Return those pairs of a chunk that no rule drops, in order, and the numbers of the chunk.

    Of `Dropped`, `alone` is left at 0.
    """
    sides, left = [*map(Side, chunk)], reasons == 0
    words = [np.ones(len(reasons), np.int64), *(side.num_words for side in sides)]
    dropped = {name: Dropped() for name in rules}
    lines = np.flatnonzero(reasons)
    pairs = PairChunk(*(Side([side.lines[line] for line in lines]) for side in sides))
    for number in np.unique(reasons[lines]):
        which = np.flatnonzero(reasons[lines] == number)
        first = which[np.argsort(pairs.keys[which], kind="stable")[:_SAMPLES]]
        samples = ((int(pairs.keys[n]), *(side.lines[n] for side in pairs.sides)) for n in first)
        dropped[rules[number - 1]] = Dropped(len(which), 0, tuple(samples))
    source, target = ([*compress(side.lines, left)] for side in sides)
    every = np.ones(len(reasons), bool)
    return (source, target), CleanedCounts(_sums(words, every), _sums(words, left), dropped)


def rules_that_drop(chunk: Chunk, cleaning: PairCleaning, state: CleaningState) -> Examined:
    """Apply all rules to a chunk; see `clean_pairs`."""
    examined = examine(chunk, cleaning)
    drop_repeated(examined, cleaning, state)
    if SCORED in cleaning.rules:
        scores = scores_of_left(chunk, examined.reasons, cleaning)
        drop_improbable(examined, scores, least_score(scores, cleaning.limits), cleaning)
    return examined


def clean_pairs(
    chunk: Chunk, cleaning: PairCleaning, state: CleaningState
) -> tuple[Chunk, CleanedCounts]:
    """Return those pairs of a chunk that the rules keep, in order, and what each rule has dropped.

    Args:
      chunk: source lines, and as many target lines.
      cleaning: the rules with their limits.
      state: the keys of the pairs before, to which those of this chunk are added.
    """
    examined = rules_that_drop(chunk, cleaning, state)
    kept, counts = kept_and_counted(chunk, examined.reasons, cleaning.rules)
    return kept, counts + CleanedCounts.of_alone(examined.alone)


def _sums(words: Sequence[Any], which: Mask) -> tuple[int, ...]:
    return tuple(int(each[which].sum()) for each in words)
