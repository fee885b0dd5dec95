"""Documents: texts split into sentences to translate and the text between them, which is kept.

The splitter is sentencex, which knows the rules of many languages. It is given one line at a time,
so that the translation of a text has as many lines as the text.
"""

from collections.abc import Iterator
from functools import partial
from itertools import accumulate

from sentencex import segment

from t2t_jax.markup.document import Document, Part, document_of
from t2t_jax.markup.document import html_document as markup_document
from t2t_jax.markup.tagged import Tagged
from t2t_jax.serving.settings import Split

_WINDOW = 2000
"""The most characters of a line that sentencex splits at once: its time can grow with the square of
the number of quotation marks, and it stops all threads meanwhile."""


def text_document(text: str, language: str, split: Split) -> Document:
    """Make a document of a plain text: line breaks, and white space around sentences, are kept.

    The rules of the text's language say where sentences end. With the split "lines", a line is one
    sentence, and the white space around it is not kept: its translation is that of
    `Translator.translate`.
    """
    parts: list[Part] = []
    for number, line in enumerate(text.split("\n")):
        if number:
            parts.append(("\n", False))
        if split == "sentences":
            parts += _sentences(line, language)
        elif line.strip():
            parts.append((line, True))
    return document_of(Tagged(part) if is_sentence else part for part, is_sentence in parts)


def html_document(text: str, language: str) -> Document:
    """Make a document of a text with the markup of HTML; see `markup.document.html_document`."""
    return markup_document(text, partial(_sentences, language=language))


def _sentences(line: str, language: str) -> Iterator[Part]:
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
