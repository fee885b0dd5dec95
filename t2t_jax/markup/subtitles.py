"""Subtitles, as SubRip and WebVTT have them: cues of some lines each, with times."""

import re
from collections.abc import Iterator, Sequence

from t2t_jax.markup.document import Document, Splitter, html_document

_CUE = re.compile(r"(?m)^(?>[^\n]*-->)[^\n]*\n((?:[^\n]*\S[^\n]*(?:\n|\Z))+)")
_SPACE_OUTSIDE_TAGS = re.compile(r" (?![^<>]*>)")


class Subtitles:
    """The cues of a file, each of which is a document by itself."""

    def __init__(self, text: str, split: Splitter) -> None:
        """Find the cues: the lines behind one with times, up to a blank one."""
        self._text = text
        self._spans = [found.span(1) for found in _CUE.finditer(text)]
        self.documents: list[Document] = [
            html_document(" ".join(self._lines(span)), split) for span in self._spans
        ]

    def _lines(self, span: tuple[int, int]) -> list[str]:
        return self._text[slice(*span)].removesuffix("\n").split("\n")

    def filled(self, translations: Sequence[str]) -> str:
        """Return the file with the translation of each cue, in at most as many lines as it had."""
        return "".join(self._parts(translations))

    def _parts(self, translations: Sequence[str]) -> Iterator[str]:
        place = 0
        for (begin, end), text in zip(self._spans, translations, strict=True):
            yield self._text[place:begin]
            yield "\n".join(in_lines(text, len(self._lines((begin, end)))))
            place = end - self._text[:end].endswith("\n")
        yield self._text[place:]


def in_lines(text: str, most: int) -> list[str]:
    """Return a text in at most so many lines of about the same length, cut at spaces."""
    lines = [""]
    for word in _SPACE_OUTSIDE_TAGS.split(text):
        room = len(text) * len(lines) / most
        if len(lines) < most and lines[-1] and sum(map(len, lines)) + len(word) / 2 > room:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}" if lines[-1] else word
    return lines
