"""Documents: texts split into sentences to translate and the text between them, which is kept.

The splitter is sentencex, which knows the rules of many languages. It is given one line at a time,
so that the translation of a text has as many lines as the text.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from html import escape
from itertools import accumulate
from typing import NamedTuple

from sentencex import segment

from t2t_jax.serving.markup import characters, pieces
from t2t_jax.serving.settings import Split

_WINDOW = 2000
"""The most characters of a line that sentencex splits at once: its time can grow with the square of
the number of quotation marks, and it stops all threads meanwhile."""
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
    draft = _Draft()
    for number, line in enumerate(text.split("\n")):
        if number:
            draft.keep("\n")
        if split == "sentences":
            _add(draft, line, language)
        elif line.strip():
            draft.translate(line)
    return draft.document()


def html_document(text: str, language: str) -> Document:
    """Make a document of a text with the markup of HTML: every tag stays where it is.

    The text between two tags is translated by itself; any white space within it counts as one
    space. Comments, the contents of `script`, `style`, `pre`, `code` and the like, attributes, and
    elements with `translate="no"` stay as they are.
    """
    draft = _Draft()
    for piece, is_text in pieces(text):
        shown = characters(piece) if is_text else ""
        if not _WORD.search(shown):
            draft.keep(piece)
            continue
        kept, write = shown.strip(), partial(escape, quote=False)
        before, _, after = shown.partition(kept)
        draft.keep(write(before))
        _add(draft, _SPACES.sub(" ", kept), language, write)
        draft.keep(write(after))
    return draft.document(is_html=True)


class _Draft:
    """A document to which texts and sentences are added in their order."""

    def __init__(self) -> None:
        self._sentences: list[str] = []
        self._between: list[list[str]] = [[]]

    def keep(self, text: str) -> None:
        """Add a text that is kept as it is."""
        self._between[-1].append(text)

    def translate(self, sentence: str) -> None:
        """Add a sentence to translate."""
        self._sentences.append(sentence)
        self._between.append([])

    def document(self, is_html: bool = False) -> Document:
        """Return the document of all that was added."""
        return Document(self._sentences, ["".join(each) for each in self._between], is_html)


def _add(
    draft: _Draft, line: str, language: str, write: Callable[[str], str] = lambda text: text
) -> None:
    """Split a line into sentences and add them; `write` writes the white space around them."""
    for sentence in _segments(line, language) if line.strip() else [line]:
        kept = sentence.strip()
        before, _, after = sentence.partition(kept) if kept else (sentence, "", "")
        draft.keep(write(before))
        if kept:
            draft.translate(kept)
            draft.keep(write(after))


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
