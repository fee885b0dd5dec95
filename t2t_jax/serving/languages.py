"""The language pairs of a server, and the detection of the language of a text."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

from t2t_jax.data.cleaning.language import detectable
from t2t_jax.data.cleaning.limits import base_language
from t2t_jax.data.vocabularies.framed import language_code, some_of
from t2t_jax.errors import UserError
from t2t_jax.serving.service import ServedModel, Service
from t2t_jax.serving.settings import RefusedError

_NAMES = {
    "ar": "Arabic", "bg": "Bulgarian", "ca": "Catalan", "cs": "Czech", "da": "Danish",
    "de": "German", "el": "Greek", "en": "English", "eo": "Esperanto", "es": "Spanish",
    "et": "Estonian", "fa": "Persian", "fi": "Finnish", "fr": "French", "ga": "Irish",
    "gu": "Gujarati", "he": "Hebrew", "hi": "Hindi", "hr": "Croatian", "hu": "Hungarian",
    "id": "Indonesian", "is": "Icelandic", "it": "Italian", "ja": "Japanese", "kk": "Kazakh",
    "ko": "Korean", "lt": "Lithuanian", "lv": "Latvian", "nb": "Norwegian Bokmål", "nl": "Dutch",
    "pl": "Polish", "pt": "Portuguese", "ro": "Romanian", "ru": "Russian", "sk": "Slovak",
    "sl": "Slovenian", "sq": "Albanian", "sr": "Serbian", "sv": "Swedish", "th": "Thai",
    "tr": "Turkish", "uk": "Ukrainian", "vi": "Vietnamese", "zh": "Chinese",
}  # fmt: skip


class Detected(NamedTuple):
    """The language that a text seems to be written in."""

    language: str
    """The code of the language."""
    confidence: float
    """The confidence of the detection, from 0 to 1."""


def is_auto(source: str) -> bool:
    """Return whether the source language `auto` is given, which the server detects."""
    return source.strip().lower() == "auto"


class Languages:
    """The models of a server, by their languages."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        """Keep the models, at least one; the first that has a pair of languages translates it."""
        self.models = models
        self._known = [one.languages for one in models]

    @property
    def sources(self) -> list[str]:
        """Return the codes of the source languages."""
        return list(dict.fromkeys(chain.from_iterable(known.sources for known in self._known)))

    @property
    def targets(self) -> list[str]:
        """Return the codes of the target languages."""
        return sorted({*chain.from_iterable(known.targets for known in self._known)})

    def _targets_of(self, source: str) -> list[str]:
        """Return the codes of the languages that a language is translated into."""
        every = [known.targets for known in self._known if source in known.sources]
        return [one for one in dict.fromkeys(chain.from_iterable(every)) if one != source]

    def described(self) -> list[dict[str, Any]]:
        """Return each source language with its name and the codes of its targets."""
        return [
            {
                "code": source,
                "name": _NAMES.get(base_language(source), source),
                "targets": self._targets_of(source),
            }
            for source in self.sources
        ]

    def service(
        self, source: str, target: str, texts: Sequence[str]
    ) -> tuple[Service, Detected | None]:
        """Return the service of a language pair, and the source language if it was detected.

        The source may be `auto`: then the language of the texts is detected. A pair that is not
        served is refused.

        Raises:
          RefusedError: there is no such pair, or no detector.
        """
        target, detected = _code(target, self.targets), None
        if is_auto(source):
            from_ = [one for one in self.sources if target in self._targets_of(one)]
            detected = Detected(from_[0], 1.0) if len(from_) == 1 else self.detect(texts)[0]
            source = detected.language
        source = _code(source, self.sources)
        if target not in (there := self._targets_of(source)):
            raise RefusedError(
                400,
                f"{source} to {target} is not served here; from {source} there are "
                f"{some_of(there)}",
            )
        models = zip(self.models, self._known, strict=True)
        has = (one for one, known in models if source in known.sources and target in known.targets)
        return Service(next(has), source, target), detected

    def detect(self, texts: Sequence[str]) -> list[Detected]:
        """Detect the language of texts among the source languages, the most probable one first.

        The first 2,000 characters are read.

        Raises:
          RefusedError: no detector is installed, or it knows too few of these languages.
        """
        if len(self.sources) == 1:
            return [Detected(self.sources[0], 1.0)]
        found = self._detector.compute_language_confidence_values("\n".join(texts)[:2000])
        codes = self._codes
        return [Detected(codes[one.language], round(one.value, 4)) for one in found]

    @cached_property
    def _detector(self) -> Any:
        """Make the detector among the source languages of this server, or refuse the request."""
        try:
            from lingua import LanguageDetectorBuilder
        except ImportError:
            raise RefusedError(
                501,
                "no detector of languages is installed: name the source language, or have "
                "the server installed with the extra detect",
            ) from None
        if len(self._codes) < 2:
            codes = some_of(self.sources)
            raise RefusedError(
                501, f"the detector does not know two of {codes}: name the source language"
            )
        return LanguageDetectorBuilder.from_languages(*self._codes).build()

    @cached_property
    def _codes(self) -> Mapping[Any, str]:
        """Return the source languages that the detector knows, with this server's codes of them."""
        return detectable(self.sources)


def _code(name: str, codes: Sequence[str]) -> str:
    """Return the code of a language that a request names, or refuse the request."""
    try:
        return language_code(name.strip(), codes)
    except UserError as error:
        raise RefusedError(400, str(error)) from error
