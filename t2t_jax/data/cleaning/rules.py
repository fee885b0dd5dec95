"""The rules that drop pairs of parallel text: each a function of some pairs, and one table.

A rule takes pairs and what the cleaning is set to, and returns which of the pairs it drops. A rule
for repeated text returns a key of each pair instead: all pairs but the first of a key are dropped.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from t2t_jax.data.cleaning.language import Detector, detector_of
from t2t_jax.data.cleaning.limits import CleaningLimits, has_spaces, is_too_long, is_uneven
from t2t_jax.data.cleaning.pairs import (
    BROKEN,
    DIGIT,
    OWN_LETTER,
    SPACE,
    Keys,
    Mask,
    Numbers,
    PairChunk,
    Scores,
    Side,
)
from t2t_jax.errors import UserError, did_you_mean

Scorer: TypeAlias = Callable[[Sequence[str], Sequence[str]], Scores]
"""A function of source and target lines that gives the dual cross-entropy score of each pair."""

SCORED = "cross-entropy"
"""The rule whose function gives scores."""

_MARKUP = re.compile(r"</?[a-z][^<>]*>|&(?:#\d+|#x[0-9a-f]+|[a-z]\w*);", re.IGNORECASE)
_ADDRESS = re.compile(r"(?:https?://|ftp://|www\.)\S+", re.IGNORECASE)
_TWICE_ENCODED = re.compile(r"[ÃÂ][\x80-\xbf]|â(?:€|\x80)")
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:[.,'’\s]\d{3})+(?!\d)")
_DIGITS = re.compile(r"\d+")
_WORD = re.compile(r"\w+")
_ENDS = frozenset(".!?:;…。！？：；।؟")
_CLOSING = " \"'”’“»«)]"


class PairCleaning:
    """The rules by which pairs are dropped, with their limits and with what they need beside."""

    def __init__(
        self,
        languages: tuple[str, str],
        limits: CleaningLimits | None = None,
        rules: Sequence[str] = ("standard",),
        *,
        without: Sequence[str] = (),
        scorer: Scorer | None = None,
    ) -> None:
        """Make what a cleaning needs.

        Args:
          languages: codes of the source and target languages.
          limits: limits of the rules; None is the defaults.
          rules: names of rules, of `RULES`; `standard` stands for all of the standard ones.
          without: names of rules that are left out of them.
          scorer: computes dual cross-entropy scores, for the rule cross-entropy.

        Raises:
          UserError: a rule is unknown, or lacks what it needs, or no rule is left.
        """
        self.languages, self.limits, self.scorer = languages, limits or CleaningLimits(), scorer
        self.rules = _chosen(rules, without)
        """The names of the rules, in the order in which they are applied."""
        self.held_out: tuple[Keys, ...] = ()
        """The `Side.near_keys` of the sources, and of the targets, that training must not have."""
        self._scripts = ("LATIN", "LATIN")
        if "script" in self.rules:
            self._scripts = self.limits.scripts(languages)
        if "language" in self.rules:
            self.detector()
        limited = self.limits.min_score is not None or self.limits.keep_share is not None
        if limited + bool(scorer) + (SCORED in self.rules) not in (0, 3):
            raise UserError(
                "the rule cross-entropy needs two runs, --forward and --backward, and a limit, "
                "--min-score or --keep-share; give all of them, or none"
            )

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process needs, which computes no scores."""
        return {**self.__dict__, "scorer": None}

    def detector(self) -> Detector:
        """Return what detects the language of sentences; it is made once in a process."""
        return detector_of(self.languages, self.limits.other_languages)

    def chunk(self, sources: Sequence[str], targets: Sequence[str]) -> PairChunk:
        """Return pairs with their measures."""
        source, target = (
            Side(lines, script, has_spaces(language))
            for lines, script, language in zip(
                (sources, targets), self._scripts, self.languages, strict=True
            )
        )
        return PairChunk(source, target)


def _chosen(asked: Sequence[str], without: Sequence[str]) -> tuple[str, ...]:
    for name in sorted({*asked, *without} - {*RULES, "standard"}):
        hint = did_you_mean(name, RULES, f"there are {', '.join(RULES)}")
        raise UserError(f"there is no rule {name!r} of cleaning; {hint}")
    standard = [name for name, rule in RULES.items() if rule.is_standard]
    names = {*asked, *(standard if "standard" in asked else ())} - {*without}
    if not names - {"standard"}:
        raise UserError("no rule of cleaning is left; name some with --rules, such as standard")
    return tuple(name for name in RULES if name in names)


def _has_empty_side(pairs: PairChunk, _: PairCleaning) -> Mask:
    """Drop a pair with a side that is empty, or has spaces alone."""
    return (pairs.source.num_words == 0) | (pairs.target.num_words == 0)


def _has_wrong_length(pairs: PairChunk, cleaning: PairCleaning) -> Mask:
    """Drop a pair with too few, or too many, words or characters (Moses' clean-corpus-n)."""
    limits, (source, target) = cleaning.limits, pairs.sides
    drops = is_too_long(source.num_characters, target.num_characters, limits.max_characters)
    words = source.num_words * source.is_spaced, target.num_words * target.is_spaced
    drops |= is_too_long(*words, limits.max_words)
    for side in pairs.sides:
        drops |= side.num_characters < limits.min_characters
        drops |= (side.num_words < limits.min_words) & side.is_spaced
    return drops


def _has_uneven_sides(pairs: PairChunk, cleaning: PairCleaning) -> Mask:
    """Drop a pair of which a side is several times as long (Moses' clean-corpus-n)."""
    limits, (source, target) = cleaning.limits, pairs.sides
    drops = is_uneven(source.width, target.width, limits.max_character_ratio)
    if source.is_spaced and target.is_spaced:
        drops |= is_uneven(source.num_words, target.num_words, limits.max_word_ratio)
    return drops


def _deviates_in_length(pairs: PairChunk, cleaning: PairCleaning) -> Mask:
    """Drop a pair whose lengths a translation hardly has (Gale and Church 1993, section 3.2).

    The difference of the characters is divided by its standard deviation, the square root of 6.8
    times the mean length: short sentences may differ by more than long ones, as a ratio.
    """
    expected = pairs.source.width * cleaning.limits.target_per_source
    spread = np.sqrt(6.8 * np.maximum(1, (expected + pairs.target.width) / 2))
    return np.abs(pairs.target.width - expected) > cleaning.limits.max_deviation * spread


def _has_long_word(pairs: PairChunk, cleaning: PairCleaning) -> Mask:
    """Drop a pair with a very long word (OpusFilter's LongWordFilter, Aulamo et al. 2020)."""
    most = cleaning.limits.max_word_characters
    return _any((side.longest_word > most) & side.is_spaced for side in pairs.sides)


def _is_in_another_script(pairs: PairChunk, cleaning: PairCleaning) -> Mask:
    """Drop a pair with too few letters of its script (OpusFilter's CharacterScoreFilter)."""
    return _any(
        side.count(OWN_LETTER) < cleaning.limits.min_script_share * side.num_letters
        for side in pairs.sides
    )


def _has_few_letters(pairs: PairChunk, cleaning: PairCleaning) -> Mask:
    """Drop a pair that is mostly digits, punctuation or symbols (OpusFilter's AlphabetRatio)."""
    return _any(
        side.num_letters
        < cleaning.limits.min_letter_share * (side.num_characters - side.count(SPACE))
        for side in pairs.sides
    )


def _has_broken_characters(pairs: PairChunk, _: PairCleaning) -> Mask:
    """Drop a pair with characters that no text has, or that were encoded in UTF-8 twice."""
    drops = _any(side.count(BROKEN) > 0 for side in pairs.sides)
    return drops | _any(_found(_TWICE_ENCODED, side) > 0 for side in pairs.sides)


def _differs_in_markup(pairs: PairChunk, cleaning: PairCleaning) -> Mask:
    """Drop a pair of which one side has more tags and character references than the other."""
    source, target = (_found(_MARKUP, side) for side in pairs.sides)
    return np.abs(source - target) > cleaning.limits.max_markup_difference


def _differs_in_addresses(pairs: PairChunk, cleaning: PairCleaning) -> Mask:
    """Drop a pair that is mostly addresses of the web, or has more of them on one side."""
    source, target = (_found(_ADDRESS, side) for side in pairs.sides)
    drops = source != target
    for line in np.flatnonzero(source + target):
        for side in pairs.sides:
            text = side.lines[line]
            share = sum(map(len, _ADDRESS.findall(text))) / max(1, len(text))
            drops[line] |= share > cleaning.limits.max_url_share
    return drops


def _is_copied(pairs: PairChunk, cleaning: PairCleaning) -> Mask:
    """Drop a pair whose sides share their words: a copy (Khayrallah and Koehn 2018, section 3)."""
    limits = cleaning.limits

    def is_copy(source: str, target: str) -> bool:
        words = set(_WORD.findall(source.lower()))
        if len(words) < limits.min_copied_words:
            return False
        others = set(_WORD.findall(target.lower()))
        return len(words & others) > limits.max_overlap * max(len(words), len(others))

    return _each(is_copy, pairs)


def _differs_in_numbers(pairs: PairChunk, cleaning: PairCleaning) -> Mask:
    """Drop a pair whose numbers differ, in whatever order they are (after OpusCleaner).

    Marks within numbers do not count: 1,000.5 is 1.000,5 or 1000.5. So the runs of digits are
    compared as they are, and again with the marks of thousands taken out.
    """
    drops = pairs.source.count(DIGIT) + pairs.target.count(DIGIT) > 0
    for line in np.flatnonzero(drops):
        both = [side.lines[line] for side in pairs.sides]
        joined = [_THOUSANDS.sub(lambda found: "".join(_DIGITS.findall(found[0])), t) for t in both]
        least = min(_number_difference(*both), _number_difference(*joined))
        drops[line] = least > cleaning.limits.max_number_difference
    return drops


def _number_difference(source: str, target: str) -> int:
    numbers, others = (Counter(map(_plain, _DIGITS.findall(text))) for text in (source, target))
    return max((numbers - others).total(), (others - numbers).total())


def _plain(digits: str) -> str:
    """Return digits of any script as those of ASCII, without zeros before them."""
    if not digits.isascii():
        digits = "".join(str(unicodedata.digit(digit)) for digit in digits)
    return digits.lstrip("0")


def _differs_in_ending(pairs: PairChunk, _: PairCleaning) -> Mask:
    """Drop a pair of which one side alone ends as a sentence does: the other may be cut off."""

    def ends(line: str) -> bool:
        return line.rstrip(_CLOSING)[-1:] in _ENDS

    return _each(lambda source, target: ends(source) != ends(target), pairs)


def _is_in_another_language(pairs: PairChunk, cleaning: PairCleaning) -> Mask:
    """Drop a pair with a side of another language, as the detector of the extra `detect` says."""
    detector, drops = cleaning.detector(), np.zeros(len(pairs), bool)
    for index, side in enumerate(pairs.sides):
        long = np.flatnonzero(side.num_letters >= cleaning.limits.min_detected_letters)
        found = detector.confidences([side.lines[line] for line in long], index)
        drops[long] |= found < cleaning.limits.min_confidence
    return drops


def _is_held_out(pairs: PairChunk, cleaning: PairCleaning) -> Mask:
    """Drop a pair with a side that dev, test or another test set has, but for case and marks."""
    drops = np.zeros(len(pairs), bool)
    for side, keys in zip(pairs.sides, cleaning.held_out, strict=False):
        drops |= np.isin(side.near_keys, keys)
    return drops


def _score(pairs: PairChunk, cleaning: PairCleaning) -> Scores:
    """Drop a pair with a low dual cross-entropy score (Junczys-Dowmunt 2018, equations 1 to 4)."""
    assert cleaning.scorer is not None
    return cleaning.scorer(*(side.lines for side in pairs.sides))


def dual_cross_entropy(forward: Scores, backward: Scores) -> Scores:
    """Return the adequacy of pairs, from 0 to 1, by two models of opposite directions.

    It is exp(-(|H_A - H_B| + (H_A + H_B) / 2)), equations (1) to (4) of Junczys-Dowmunt (2018),
    "Dual Conditional Cross-Entropy Filtering of Noisy Parallel Corpora": high if both models find
    the pair probable, and alike.

    Args:
      forward: H_A, the cross-entropy of each target given its source, in nats a token.
      backward: H_B, the cross-entropy of each source given its target. If one of the two is
        infinite, the score is 0.
    """
    finite = np.isfinite(forward) & np.isfinite(backward)
    forward, backward = np.where(finite, forward, 0.0), np.where(finite, backward, 0.0)
    score = np.exp(-(np.abs(forward - backward) + (forward + backward) / 2))
    return np.where(finite, score, 0.0)


class Rule(NamedTuple):
    """A rule of cleaning."""

    find: Callable[[PairChunk, PairCleaning], Any]
    """A function that returns a value for each pair."""
    is_standard: bool = True
    """Whether the rule is applied where nothing else is asked for."""
    finds: str = "drops"
    """What the values are: whether the pair is dropped (`drops`), `keys`, of which the first pair
    of each is kept, or `scores`, of which the least are dropped. Rules stand in this order."""

    @property
    def about(self) -> str:
        """Return what the rule drops, in a sentence."""
        return (self.find.__doc__ or "").partition("\n")[0]


def _source_key(pairs: PairChunk, _: PairCleaning) -> Keys:
    """Drop a pair whose source was there before."""
    return pairs.source.keys


def _target_key(pairs: PairChunk, _: PairCleaning) -> Keys:
    """Drop a pair whose target was there before."""
    return pairs.target.keys


def _pair_key(pairs: PairChunk, _: PairCleaning) -> Keys:
    """Drop a pair that was there before."""
    return pairs.keys


def _near_key(pairs: PairChunk, _: PairCleaning) -> Keys:
    """Drop a pair that was there before but for case, digits, punctuation and spaces."""
    return pairs.near_keys


RULES: Mapping[str, Rule] = {
    "empty": Rule(_has_empty_side),
    "length": Rule(_has_wrong_length),
    "ratio": Rule(_has_uneven_sides),
    "deviation": Rule(_deviates_in_length),
    "long-word": Rule(_has_long_word),
    "broken": Rule(_has_broken_characters),
    "script": Rule(_is_in_another_script),
    "letters": Rule(_has_few_letters),
    "markup": Rule(_differs_in_markup),
    "urls": Rule(_differs_in_addresses),
    "copies": Rule(_is_copied),
    "numbers": Rule(_differs_in_numbers),
    "ending": Rule(_differs_in_ending, is_standard=False),
    "held-out": Rule(_is_held_out),
    "language": Rule(_is_in_another_language, is_standard=False),
    "same-source": Rule(_source_key, is_standard=False, finds="keys"),
    "same-target": Rule(_target_key, is_standard=False, finds="keys"),
    "duplicates": Rule(_pair_key, finds="keys"),
    "near-duplicates": Rule(_near_key, finds="keys"),
    SCORED: Rule(_score, is_standard=False, finds="scores"),
}
"""The rules by name, in the order in which they are applied."""


def _any(masks: Any) -> Mask:
    return np.logical_or.reduce([*masks])


def _found(pattern: re.Pattern[str], side: Side) -> Numbers:
    return np.array([len(pattern.findall(line)) for line in side.lines], np.int64)


def _each(drops: Callable[[str, str], bool], pairs: PairChunk) -> Mask:
    return np.array([*map(drops, pairs.source.lines, pairs.target.lines)], bool)
