"""Texts as sentences, with all that stands between them: what is translated, and what is kept.

The splitter is sentencex, which knows the rules of many languages. It is given one line at a time,
so that a text of n lines stays one of n lines.
"""

import re
from collections.abc import Sequence
from html import escape, unescape
from html.parser import HTMLParser
from itertools import pairwise
from typing import NamedTuple

from sentencex import segment

from t2t_jax.serving.settings import Split

_VERBATIM = {"script", "style", "pre", "code", "kbd", "samp", "textarea", "svg", "math"}
_WITHOUT_END = {
    *("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source"),
    *("track", "wbr"),
}
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
    document = Document([], [""])
    for number, line in enumerate(text.split("\n")):
        if number:
            document.between[-1] += "\n"
        if split == "sentences":
            _add(document, line, language)
        elif line.strip():
            document.sentences.append(line)
            document.between.append("")
    return document


def html_document(text: str, language: str) -> Document:
    """A text with the markup of HTML as a document: every tag stays where it is.

    The text between two tags is translated by itself. Comments, the contents of `script`, `style`,
    `pre`, `code` and the like, attributes, and elements with `translate="no"` stay as they are.

    Args:
      text: the text.
      language: the code of its language.
    """
    document = Document([], [""], is_html=True)
    for piece, is_text in _Markup(text).pieces():
        if is_text and _WORD.search(piece):
            _add_markup(document, piece, language)
        else:
            document.between[-1] += piece
    return document


def _add(document: Document, line: str, language: str) -> None:
    """Add a line that is split into sentences."""
    for sentence in segment(language, line) if line.strip() else [line]:
        kept = sentence.strip()
        before, _, after = sentence.partition(kept) if kept else (sentence, "", "")
        document.between[-1] += before
        if kept:
            document.sentences.append(kept)
            document.between.append(after)


def _add_markup(document: Document, piece: str, language: str) -> None:
    """Add the text between two tags, in which any white space counts as one space."""
    text = unescape(piece)
    kept = text.strip()
    before, _, after = text.partition(kept)
    document.between[-1] += escape(before, quote=False)
    first = len(document.between)
    _add(document, _SPACES.sub(" ", kept), language)
    document.between[first - 1 :] = [
        document.between[first - 1],
        *(escape(one, quote=False) for one in document.between[first:]),
    ]
    document.between[-1] += escape(after, quote=False)


class _Markup(HTMLParser):
    """Finds where tags and texts begin; what they are is cut out of the text as it was written."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=False)
        self._text = text
        self._lines = [0]
        self._lines += [place + 1 for place, letter in enumerate(text) if letter == "\n"]
        self._marks: list[tuple[int, bool]] = []
        self._kept: list[str] = []  # elements that are kept as they are, of which one is in another
        self.feed(text)
        self.close()

    def pieces(self) -> list[tuple[str, bool]]:
        """The pieces of the text, and whether each is to be translated."""
        found: list[tuple[str, bool]] = []
        marks = [(0, False), *self._marks, (len(self._text), False)]
        for (begin, is_text), (end, _) in pairwise(marks):
            piece = self._text[begin:end]
            if found and found[-1][1] == is_text:
                found[-1] = found[-1][0] + piece, is_text
            else:
                found.append((piece, is_text))
        return found

    def _mark(self, is_text: bool = False) -> None:
        line, column = self.getpos()
        self._marks.append((self._lines[line - 1] + column, is_text and not self._kept))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """A tag, which may begin what is kept as it is."""
        self._mark()
        if tag in _WITHOUT_END:
            return
        if self._kept or tag in _VERBATIM or ("translate", "no") in attrs:
            self._kept.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """A tag that ends what it begins."""
        self._mark()

    def handle_endtag(self, tag: str) -> None:
        """The end of an element; those within it that have no end of their own end too."""
        self._mark()
        if tag in self._kept:
            while self._kept.pop() != tag:
                pass

    def handle_data(self, data: str) -> None:
        """Text."""
        self._mark(is_text=True)

    def handle_entityref(self, name: str) -> None:
        """A part of a text."""
        self._mark(is_text=True)

    def handle_charref(self, name: str) -> None:
        """A part of a text."""
        self._mark(is_text=True)

    def handle_comment(self, data: str) -> None:
        """A comment."""
        self._mark()

    def handle_decl(self, decl: str) -> None:
        """The type of the document."""
        self._mark()

    def handle_pi(self, data: str) -> None:
        """An instruction."""
        self._mark()

    def unknown_decl(self, data: str) -> None:
        """A section of characters."""
        self._mark()
