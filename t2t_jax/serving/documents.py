"""Documents: texts split into sentences to translate and the text between them, which is kept.

The splitter is sentencex, which knows the rules of many languages. It is given one line at a time,
so that the translation of a text has as many lines as the text.
"""

import re
from collections.abc import Iterator, Sequence
from html import escape
from itertools import accumulate
from typing import NamedTuple, TypeAlias

from sentencex import segment

from t2t_jax.serving.markup import characters, pieces
from t2t_jax.serving.settings import Split

_WINDOW = 2000
"""The most characters of a line that sentencex splits at once: its time can grow with the square of
the number of quotation marks, and it stops all threads meanwhile."""
_Part: TypeAlias = tuple[str, bool]
"""A part of a text, and whether it is a sentence to translate."""
_WORD = re.compile(r"\w")
_SPACES = re.compile(r"\s+")


class Document(NamedTuple):
    """A text in which sentences are to be replaced by their translations."""

    sentences: list[str]
    """The sentences to translate, in the order of the text."""
    between: list[str]
    """The texts before the first sentence, between any two, and after the last; they are kept."""
    is_html: bool = False
    """Whether the text is HTML, so that translations have to be escaped."""

    def filled(self, translations: Sequence[str]) -> str:
        """Return the text with a translation in the place of each sentence."""
        if self.is_html:
            translations = [escape(one, quote=False) for one in translations]
        pairs = zip(translations, self.between[1:], strict=True)
        return self.between[0] + "".join(one + after for one, after in pairs)


def text_document(text: str, language: str, split: Split) -> Document:
    """Make a document of a plain text: line breaks, and white space around sentences, are kept.

    The rules of the text's language say where sentences end. With the split "lines", a line is one
    sentence, and the white space around it is not kept: its translation is that of
    `Translator.translate`.
    """
    parts: list[_Part] = []
    for number, line in enumerate(text.split("\n")):
        if number:
            parts.append(("\n", False))
        if split == "sentences":
            parts += _sentences(line, language)
        elif line.strip():
            parts.append((line, True))
    return _document(parts)


def html_document(text: str, language: str) -> Document:
    """Make a document of a text with the markup of HTML: every tag stays where it is.

    The text between two tags is translated by itself; any white space within it counts as one
    space. Comments, the contents of `script`, `style`, `pre`, `code` and the like, attributes, and
    elements with `translate="no"` stay as they are.
    """
    parts: list[_Part] = []
    for piece, is_text in pieces(text):
        shown = characters(piece) if is_text else ""
        if not _WORD.search(shown):
            parts.append((piece, False))
            continue
        kept = shown.strip()
        before, _, after = shown.partition(kept)
        sentences = _sentences(_SPACES.sub(" ", kept), language)
        parts += [(before, False), *sentences, (after, False)]
    return _document(parts, is_html=True)


def _document(parts: Sequence[_Part], is_html: bool = False) -> Document:
    sentences: list[str] = []
    between: list[list[str]] = [[]]
    for text, is_sentence in parts:
        if is_sentence:
            sentences.append(text)
            between.append([])
        else:
            between[-1].append(text)
    return Document(sentences, ["".join(each) for each in between], is_html)


def _sentences(line: str, language: str) -> Iterator[_Part]:
    """Yield the sentences of a line, and the white space around them."""
    for sentence in _segments(line, language) if line.strip() else [line]:
        kept = sentence.strip()
        before, _, after = sentence.partition(kept) if kept else (sentence, "", "")
        yield before, False
        if kept:
            yield kept, True
            yield after, False


def _segments(line: str, language: str) -> Iterator[str]:
    """Yield the sentences of a line, with the white space around them.

    A long line is read in windows. The sentences that end within a window are found; the window
    then moves to the sentence that goes on beyond it, or by half of the window if that is farther.
    """
    begin = place = 0
    while len(line) - place > _WINDOW:
        found = segment(language, line[place : place + _WINDOW])
        for end in accumulate(map(len, found[:-1]), initial=place):
            if end > place:
                yield line[begin:end]
                begin = end
        place = max(begin, place + _WINDOW // 2)
    first, *others = segment(language, line[place:]) or [line[place:]]
    yield line[begin:place] + first
    yield from others
