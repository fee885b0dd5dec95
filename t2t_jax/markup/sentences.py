"""Documents of whole texts, split into sentences by the rules of their language.

The splitter is sentencex, which knows those of many languages. It is given one line at a time, so
that the translation of a text has as many lines as the text.
"""

from collections.abc import Iterator
from functools import partial
from itertools import accumulate

from t2t_jax.errors import needs_extra
from t2t_jax.markup.document import Document, Part, Splitter, document_of
from t2t_jax.markup.tagged import Tagged

_WINDOW = 2000
"""The most characters of a line that sentencex splits at once: its time can grow with the square of
the number of quotation marks, and it stops all threads meanwhile."""


def segment(language: str, text: str) -> list[str]:
    """Return the sentences of a text, with the white space around them.

    Raises:
      UserError: sentencex is not installed.
    """
    with needs_extra("serve", "the splitting of text into sentences"):
        from sentencex import segment as of_sentencex
    found: list[str] = of_sentencex(language, text)
    return found


def sentence_splitter(language: str) -> Splitter:
    """Return a function that splits a text of one line by the rules of a language."""
    return partial(_sentences, language=language)


def text_document(text: str, language: str, *, by_lines: bool = False) -> Document:
    """Make a document of a plain text: line breaks, and white space around sentences, are kept.

    Args:
      language: the language, by whose rules sentences end.
      by_lines: whether a line is one sentence; the white space around it is not kept then, so that
        its translation is that of `Translator.translate`.
    """
    parts: list[Part] = []
    for number, line in enumerate(text.split("\n")):
        if number:
            parts.append(("\n", False))
        if not by_lines:
            parts += _sentences(line, language)
        elif line.strip():
            parts.append((line, True))
    return document_of(Tagged(part) if is_sentence else part for part, is_sentence in parts)


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
