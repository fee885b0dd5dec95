"""The language pairs of a server, and the detection of the language of a text."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from t2t_jax.data.cleaning.language import detectable
from t2t_jax.serving.service import Service
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
    """The services of a server, by their languages."""

    def __init__(self, services: Sequence[Service]) -> None:
        """Keep the services, one for each language pair, at least one."""
        self.services: Mapping[tuple[str, str], Service] = {
            (one.source, one.target): one for one in services
        }

    @property
    def sources(self) -> list[str]:
        """Return the codes of the source languages."""
        return list(dict.fromkeys(source for source, _ in self.services))

    @property
    def targets(self) -> list[str]:
        """Return the codes of the target languages."""
        return sorted({target for _, target in self.services})

    def described(self) -> list[dict[str, Any]]:
        """Return each source language with its name and the codes of its targets."""
        return [
            {
                "code": source,
                "name": _NAMES.get(source, source),
                "targets": [target for other, target in self.services if other == source],
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
        source, target = source.strip().lower(), target.strip().lower()
        detected = None
        if is_auto(source):
            from_ = [one for one, to in self.services if to == target]
            detected = Detected(from_[0], 1.0) if len(from_) == 1 else self.detect(texts)[0]
            source = detected.language
        found = self.services.get((source, target))
        if found is None:
            pairs = ", ".join(f"{one} to {to}" for one, to in self.services)
            raise RefusedError(
                400, f"{source:.40} to {target:.40} is not served here; there are {pairs}"
            )
        return found, detected

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
            codes = ", ".join(self.sources)
            raise RefusedError(
                501, f"the detector does not know two of {codes}: name the source language"
            )
        return LanguageDetectorBuilder.from_languages(*self._codes).build()

    @cached_property
    def _codes(self) -> Mapping[Any, str]:
        """Return the source languages that the detector knows, with this server's codes of them."""
        return detectable(self.sources)
