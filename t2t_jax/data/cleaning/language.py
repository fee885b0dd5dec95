"""The detection of the language of sentences, by the package lingua of the extra `detect`."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from jaxtyping import Float64

from t2t_jax.data.cleaning.limits import base_language
from t2t_jax.errors import UserError, needs_extra


def detectable(codes: Sequence[str]) -> Mapping[Any, str]:
    """Return the languages that lingua knows of some codes, each with the first code of it.

    The detector's codes have two or three letters; the region in `pt-br`, say, is ignored.

    Raises:
      ImportError: lingua is not installed.
    """
    from lingua import Language

    known = {
        code.name.lower(): one
        for one in Language.all()
        for code in (one.iso_code_639_1, one.iso_code_639_3)
    }
    found: dict[Any, str] = {}
    for code in codes:
        if language := known.get(base_language(code)):
            found.setdefault(language, code)
    return found


class Detector:
    """A detector of languages that sentences of a pair may be of."""

    def __init__(self, languages: tuple[str, str], others: Sequence[str]) -> None:
        """Make a detector among the two languages of a pair, and others.

        Raises:
          UserError: lingua is not installed, or does not know a language of the pair.
        """
        with needs_extra("detect", "the rule language"):
            from lingua import LanguageDetectorBuilder
        self._languages = [*detectable(languages)]
        if len(self._languages) < 2:
            raise UserError(
                f"the detector of languages does not know both of {' and '.join(languages)}; leave "
                "the rule language out"
            )
        candidates = {**detectable(languages), **detectable(others)}
        self._detector = LanguageDetectorBuilder.from_languages(*candidates).build()

    def confidences(self, lines: Sequence[str], side: int) -> Float64[np.ndarray, "lines"]:
        """Return the confidence, from 0 to 1, that each line is of its language.

        Args:
          side: 0 for sources, 1 for targets.
        """
        language = self._languages[side]
        found = self._detector.compute_language_confidence_in_parallel([*lines], language)
        return np.array(found, np.float64)


@cache
def detector_of(languages: tuple[str, str], others: tuple[str, ...]) -> Detector:
    """Return the detector of some languages; see `Detector`."""
    return Detector(languages, others)
