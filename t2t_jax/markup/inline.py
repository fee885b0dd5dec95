"""Inline text with its markup, made of pieces of a text with markup."""

import re
from collections.abc import Callable, Iterator
from html import escape, unescape
from typing import NamedTuple

from t2t_jax.markup.tagged import Event

_WORD = re.compile(r"\w")
_SPACES = re.compile(r"\s+")
_ZEROS = re.compile("&#0+(?=[0-9])")
_TOO_LARGE = re.compile("&#[0-9]{8,};?")
_PLACEHOLDER = re.compile(
    r"\{\{[^{}]*\}\}|\$?\{[\w.:!-]*\}|%(?:\(\w+\)|\d+\$)?[-+#0]?\d*(?:\.\d+)?[sdifuxXc@]\b|&\w+;"
)


class Inline(NamedTuple):
    """Text that a reader sees as one run, with the markup in it."""

    before: str
    """The white space in front of it, as it was written."""
    text: str
    """The text, in which any white space is one space."""
    events: list[Event]
    """The markup, in order."""
    after: str
    """The white space behind it, as it was written."""


def characters(text: str) -> str:
    """Replace the character references of a text by their characters, such as `&amp;` by `&`."""
    # Python reads no decimal number of thousands of digits; no character's number has over seven.
    return unescape(_TOO_LARGE.sub("\N{REPLACEMENT CHARACTER}", _ZEROS.sub("&#", text)))


def escaped(text: str) -> str:
    """Return a text as HTML or XML has it: `&lt;` for `<`, and so on."""
    return escape(text, quote=False)


class InlineText:
    """An inline text as far as its pieces were added, in order."""

    def __init__(self, escape: Callable[[str], str] = escaped) -> None:
        """Begin without pieces; `escape` makes markup of text."""
        self.text, self._escape = "", escape
        self._events: list[Event] = []
        self._pieces: list[str] = []
        self._has_word = False
        self._before, self._after = "", ""

    def add_text(self, piece: str) -> None:
        """Add text to translate, in which there may be character references.

        White space behind white space is left out, but for that behind a tag.
        """
        shown = characters(piece)
        if not self._pieces:
            self._before = shown[: len(shown) - len(shown.lstrip())]
        self._pieces.append(piece)
        self._after = shown[len(shown.rstrip()) :]
        self._has_word = self._has_word or bool(_WORD.search(shown))
        shown = _SPACES.sub(" ", shown)
        if shown.startswith(" ") and self.text[-1:] in ("", " "):
            shown = shown[1:]
            if self._events and self.text and self._events[-1].place == len(self.text):
                last = self._events[-1]
                if last.opens is last.closes is None:
                    self._events[-1] = last._replace(markup=last.markup + " ")
        for found in _PLACEHOLDER.finditer(shown):
            begin, end = (len(self.text) + place for place in found.span())
            self._events.append(Event(begin, self._escape(found[0]), kept=end))
        self.text += shown

    def add_tag(self, piece: str, name: str | None, is_alone: bool = False) -> None:
        """Add a tag with the name of its element, or a comment and the like without one."""
        if name is None or is_alone or (piece.endswith("/>") and piece[1] != "/"):
            self.add_markup(piece)
        elif piece[1] == "/":
            self.add_markup(piece, closes=name)
        else:
            self.add_markup(piece, opens=name)

    def add_markup(
        self, piece: str, *, opens: str | None = None, closes: str | None = None
    ) -> None:
        """Add markup that begins or ends the element of a name, or that stands alone."""
        self._add(piece)
        self._events.append(Event(len(self.text), piece, opens, closes))

    def add_kept(self, piece: str, text: str, is_new: bool) -> None:
        """Add a piece of an element that is not translated; its text stays in that to translate."""
        self._add(piece)
        if is_new:
            self._events.append(Event(len(self.text), ""))
        shown = _SPACES.sub(" ", characters(text))
        self.text += shown.lstrip() if self.text[-1:] in ("", " ") else shown
        last = self._events[-1]
        kept = len(self.text) if len(self.text) > last.place else None
        self._events[-1] = last._replace(markup=last.markup + piece, kept=kept)

    def _add(self, piece: str) -> None:
        self._pieces.append(piece)
        self._after = ""

    def ended(self) -> Iterator[str | Inline]:
        """Yield the text, if there is a word to translate in it; else its pieces as they are."""
        if not self._has_word:
            yield "".join(self._pieces)
            return
        most, events = len(self.text.rstrip()), []
        for event in self._events:
            alone = event.kept is None and event.opens is event.closes is None
            space = " " if alone and event.place > most else ""
            kept = event.kept and min(event.kept, most)
            markup, place = space + event.markup, min(event.place, most)
            events.append(event._replace(place=place, markup=markup, kept=kept))
        yield Inline(self._before, self.text.rstrip(), events, self._after)
