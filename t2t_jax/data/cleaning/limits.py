"""The limits of the rules that clean parallel text, and what is known of languages for them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from t2t_jax.errors import UserError

_LANGUAGES_OF_SCRIPTS = {
    "LATIN": "af az bs ca cs cy da de en eo es et eu fi fr ga gl ha hr ht hu id ig is it lb lt lv "
    "mg ms mt nb nl nn no pl pt rm ro sk sl so sq sv sw tl tr uz vi xh yo zu",
    "CYRILLIC": "be bg kk ky mk mn ru sr tg tt uk",
    "ARABIC": "ar ckb fa ps sd ug ur",
    "DEVANAGARI": "hi mr ne sa",
    "HEBREW": "he yi",
    "BENGALI": "as bn",
    "ETHIOPIC": "am ti",
    "CJK IDEOGRAPHIC": "yue zh",
    "CJK IDEOGRAPHIC HIRAGANA KATAKANA": "ja",
    "HANGUL CJK": "ko",
}
_SCRIPTS = {
    language: script
    for script, languages in _LANGUAGES_OF_SCRIPTS.items()
    for language in languages.split()
} | {
    **{"el": "GREEK", "gu": "GUJARATI", "hy": "ARMENIAN", "ka": "GEORGIAN", "km": "KHMER"},
    **{"kn": "KANNADA", "lo": "LAO", "ml": "MALAYALAM", "my": "MYANMAR", "pa": "GURMUKHI"},
    **{"si": "SINHALA", "ta": "TAMIL", "te": "TELUGU", "th": "THAI"},
}
_WITHOUT_SPACES = {"ja", "km", "lo", "my", "th", "yue", "zh"}


@dataclass(frozen=True)
class CleaningLimits:
    """The limits of the rules; docs/cleaning.md says why the defaults are what they are."""

    min_words: int = 1
    """Least words of each side, counted between spaces (rule length)."""
    max_words: int = 150
    """Most words of each side (rule length)."""
    min_characters: int = 1
    """Least characters of each side (rule length)."""
    max_characters: int = 1000
    """Most characters of each side (rule length)."""
    max_word_ratio: float = 3.0
    """Most words of one side for each word of the other (rule ratio)."""
    max_character_ratio: float = 4.0
    """Most characters of one side for each character of the other (rule ratio)."""
    max_deviation: float = 2.5
    """Most standard deviations of the lengths in characters from equal ones (rule deviation)."""
    target_per_source: float = 1.0
    """Characters of the target that are usual for each of the source (rule deviation)."""
    max_word_characters: int = 60
    """Most characters of a word (rule long-word)."""
    source_script: str | None = None
    """Script of the source, as Unicode's names of its letters begin, such as LATIN; None is that of
    its language (rule script)."""
    target_script: str | None = None
    """Script of the target; None is that of its language (rule script)."""
    min_script_share: float = 0.5
    """Least share of the letters of each side that are of its script (rule script)."""
    min_letter_share: float = 0.5
    """Least share of the characters of each side that are letters; digits, punctuation and symbols
    are the others, and spaces do not count (rule letters)."""
    max_markup_difference: int = 0
    """Most tags and character references that one side has more than the other (rule markup)."""
    max_url_share: float = 0.5
    """Most of the characters of a side that are of addresses (rule urls)."""
    max_overlap: float = 0.7
    """Most of the words that both sides share (rule copies)."""
    min_copied_words: int = 3
    """Least words of a copy that is dropped; shorter ones may be names (rule copies)."""
    max_number_difference: int = 0
    """Most numbers that are on one side alone (rule numbers)."""
    min_confidence: float = 0.1
    """Least confidence that a side is of its language (rule language)."""
    min_detected_letters: int = 15
    """Least letters of a side whose language is detected (rule language)."""
    other_languages: tuple[str, ...] = ("de", "en", "es", "fr", "it", "nl", "pl", "pt", "ru", "sv")
    """Languages that a side may be of by mistake (rule language)."""
    min_score: float | None = None
    """Least dual cross-entropy score, from 0 to 1 (rule cross-entropy)."""
    keep_share: float | None = None
    """Share of the pairs that the other rules keep which is kept: those of the highest scores (rule
    cross-entropy)."""

    def __post_init__(self) -> None:
        """Refuse limits that no number can be, and those that contradict one another."""
        for low, high in (("min_words", "max_words"), ("min_characters", "max_characters")):
            if not 0 <= getattr(self, low) <= getattr(self, high):
                raise UserError(
                    f"{low}={getattr(self, low)} and {high}={getattr(self, high)} keep nothing; "
                    f"give {low} from 0 to {high}"
                )
        bounds = {"max_word_ratio": 1, "max_character_ratio": 1, "max_word_characters": 1}
        bounds |= {"max_deviation": 0, "max_markup_difference": 0, "max_number_difference": 0}
        bounds |= {"min_copied_words": 0, "min_detected_letters": 1}
        for name, least in bounds.items():
            if not getattr(self, name) >= least:
                raise UserError(f"{name}={getattr(self, name)} keeps nothing; give {least} or more")
        shares = ("min_script_share", "min_letter_share", "max_url_share", "max_overlap")
        for name in (*shares, "min_confidence", "min_score", "keep_share"):
            if not 0 <= (getattr(self, name) or 0) <= 1:
                raise UserError(f"{name}={getattr(self, name)} is no share; give 0 to 1")
        if not 0 < self.target_per_source < math.inf:
            raise UserError(f"target_per_source={self.target_per_source} is not positive")
        if self.min_score is not None and self.keep_share is not None:
            raise UserError("min_score and keep_share are two limits of one rule; give one of them")

    def scripts(self, languages: Sequence[str]) -> tuple[str, str]:
        """Return the scripts of source and target, each as the beginnings of its letters' names.

        Raises:
          UserError: the script of a language is neither given nor known.
        """
        found = []
        given = {"source_script": self.source_script, "target_script": self.target_script}
        for (name, script), language in zip(given.items(), languages, strict=True):
            script = script or _SCRIPTS.get(base_language(language))
            if script is None:
                raise UserError(
                    f"the script of the language {language} is not known here; name it by "
                    f"{name}, as LATIN, or leave the rule script out"
                )
            found.append(script.upper())
        return found[0], found[1]


def base_language(code: str) -> str:
    """Return the language of a code that may name a region too: `pt` of `pt-BR` or `pt_br`."""
    return code.lower().replace("_", "-").partition("-")[0]


def has_spaces(language: str) -> bool:
    """Return whether a language puts spaces between words, so that words can be counted."""
    return base_language(language) not in _WITHOUT_SPACES


def is_too_long(source: Any, target: Any, most: int) -> Any:
    """Return whether a side is longer than a limit; of two numbers, or of arrays of them."""
    return (source > most) | (target > most)


def is_uneven(source: Any, target: Any, most: float) -> Any:
    """Return whether a side is over `most` times as long as the other; of numbers, or of arrays.

    It is the limit of clean-corpus-n of Moses (Koehn et al. 2007).
    """
    return (source > most * target) | (target > most * source)
