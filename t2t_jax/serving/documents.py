"""Texts as sentences, with all that stands between them: what is translated, and what is kept.

The splitter is sentencex, which knows the rules of many languages. It is given one line at a time,
so that a text of n lines stays one of n lines.
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
"""Characters of a line that are looked at together for the ends of sentences. With quotation marks
of some kinds, sentencex takes a time that grows with their square, and stops all threads for it."""
_WORD = re.compile(r"\w")
_SPACES = re.compile(r"\s+")


class Document(NamedTuple):
    """A text in which sentences are to be replaced by their translations."""

    sentences: list[str]
    """What is translated, in the order of the text."""
    between: list[str]
    """What is before the first sentence, between any two, and after the last."""
    is_html: bool = False
    """Whether translations are to be escaped."""

    def filled(self, translations: Sequence[str]) -> str:
        """The text with a translation in the place of each sentence.

        Args:
          translations: one for each sentence.
        """
        if self.is_html:
            translations = [escape(one, quote=False) for one in translations]
        pairs = zip(translations, self.between[1:], strict=True)
        return self.between[0] + "".join(one + after for one, after in pairs)


def text_document(text: str, language: str, split: Split) -> Document:
    """A plain text as a document: line breaks, and white space around sentences, stay.

    Args:
      text: the text.
      language: the code of its language, by whose rules sentences end.
      split: what is translated as one. A line that is translated as one is not split, nor is white
        space around it kept: what comes out is what `Translator.translate` makes of the line.
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
    """A text with the markup of HTML as a document: every tag stays where it is.

    The text between two tags is translated by itself; any white space within it counts as one
    space. Comments, the contents of `script`, `style`, `pre`, `code` and the like, attributes, and
    elements with `translate="no"` stay as they are.

    Args:
      text: the text.
      language: the code of its language.
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
    """A document that is being made, from its first character to the last."""

    def __init__(self) -> None:
        self._sentences: list[str] = []
        self._between: list[list[str]] = [[]]

    def keep(self, text: str) -> None:
        """Add what stays as it is."""
        self._between[-1].append(text)

    def translate(self, sentence: str) -> None:
        """Add a sentence."""
        self._sentences.append(sentence)
        self._between.append([])

    def document(self, is_html: bool = False) -> Document:
        """What was added."""
        return Document(self._sentences, ["".join(each) for each in self._between], is_html)


def _add(
    draft: _Draft, line: str, language: str, write: Callable[[str], str] = lambda text: text
) -> None:
    """Add a line that is split into sentences; what is kept of it is written by `write`."""
    for sentence in _segments(line, language) if line.strip() else [line]:
        kept = sentence.strip()
        before, _, after = sentence.partition(kept) if kept else (sentence, "", "")
        draft.keep(write(before))
        if kept:
            draft.translate(kept)
            draft.keep(write(after))


def _segments(line: str, language: str) -> Iterator[str]:
    """The sentences of a line, with the white space around them.

    Of a long line, those are found that end within a window, which then moves to the one that goes
    on beyond it, or by a half of its length if that is more.
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
