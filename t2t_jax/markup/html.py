"""A splitter of text with HTML markup into inline text with its tags, and what is between.

The states are those of the standard's tokenizer (HTML Living Standard, section 13.2.5), as far as
they decide where a tag, a comment or a raw text ends. An unfinished tag or comment reaches to the
end of the text, so that each character is read once, whatever a text holds. Pieces are cut out of
the text as they were written, which a parser that makes a tree could not give back.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape, unescape
from typing import Literal, NamedTuple, TypeAlias

from t2t_jax.markup.tagged import Event

_SPACE = r"\t\n\f\r "
_BEGIN = re.compile(r"<(?:[A-Za-z!?]|/[\s\S])")
_TAG_NAME = re.compile(rf"</?([A-Za-z][^{_SPACE}/>]*)")
_GAP = re.compile(rf"[{_SPACE}/]*")
_ATTRIBUTE = re.compile(rf"=?[^{_SPACE}/>=]*")
_EQUALS = re.compile(rf"[{_SPACE}]*=[{_SPACE}]*")
_VALUE = re.compile(rf"\"[^\"]*\"|'[^']*'|(?![\"'])[^{_SPACE}>]*")
_COMMENT = re.compile(r"<!--(?:-?>|.*?--!?>)", re.DOTALL)
_ZEROS = re.compile("&#0+(?=[0-9])")
_TOO_LARGE = re.compile("&#[0-9]{8,};?")

_RAW = {"script", "style", "textarea", "xmp", "iframe", "noembed", "noframes"}
_VERBATIM = _RAW | {"pre", "code", "kbd", "samp", "svg", "math"}
_WITHOUT_END = {
    *("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source"),
    *("track", "wbr"),
}
_BLOCKS = {
    *("address", "article", "aside", "audio", "base", "blockquote", "body", "br", "canvas"),
    *("caption", "center", "col", "colgroup", "dd", "details", "dialog", "dir", "div", "dl", "dt"),
    *("fieldset", "figcaption", "figure", "footer", "form", "frame", "frameset", "h1", "h2", "h3"),
    *("h4", "h5", "h6", "head", "header", "hgroup", "hr", "html", "iframe", "legend", "li", "link"),
    *("main", "menu", "meta", "nav", "noframes", "noscript", "object", "ol", "optgroup", "option"),
    *("p", "pre", "script", "search", "section", "select", "style", "summary", "table", "tbody"),
    *("td", "template", "textarea", "tfoot", "th", "thead", "title", "tr", "ul", "video", "xmp"),
}
_WORD = re.compile(r"\w")
_SPACES = re.compile(r"\s+")
_PLACEHOLDER = re.compile(
    r"\{\{[^{}]*\}\}|\$?\{[\w.:!-]*\}|%(?:\(\w+\)|\d+\$)?[-+#0]?\d*(?:\.\d+)?[sdifuxXc@]\b|&\w+;"
)

Kind: TypeAlias = Literal["text", "tag", "begin", "kept"]
"""Whether a piece is text to translate, a tag or other markup, the tag that begins an element which
is not translated, or of the rest of such an element."""


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


def pieces(text: str) -> Iterator[tuple[str, Kind]]:
    """Yield the pieces of a text, which together are the text, each with its kind.

    Comments, the contents of `script`, `style`, `pre`, `code` and the like, and elements with
    `translate="no"` are not to be translated. A tag that ends with `/>` has no contents. In a piece
    of text, the only markup is character references.
    """
    place, within = 0, _Kept()
    while found := _BEGIN.search(text, place):
        if found.start() > place:
            yield text[place : found.start()], "kept" if within.names else "text"
        kind: Kind = "kept" if within.names else "tag"
        place = _end(text, found.start(), within)
        is_first = kind == "tag" and bool(within.names)
        yield text[found.start() : place], "begin" if is_first else kind
    if place < len(text):
        yield text[place:], "kept" if within.names else "text"


def parts(text: str) -> Iterator[str | Inline]:
    """Yield the parts of a text: inline text to translate, and what is between.

    A tag of a block, such as a paragraph, a line break or a cell, ends an inline text. All other
    elements are of the text that they stand in.
    """
    run: list[tuple[str, Kind]] = []
    is_outside = False  # in a block that is not translated
    for piece, kind in pieces(text):
        is_outside = is_outside and kind == "kept"
        if is_outside or (kind in ("tag", "begin") and _name(piece) in _BLOCKS):
            is_outside = kind in ("begin", "kept")
            yield from _inline(run)
            run = []
            yield piece
        else:
            run.append((piece, kind))
    yield from _inline(run)


def _name(piece: str) -> str | None:
    """Return the name of a tag in small letters, or None for a comment and the like."""
    found = _TAG_NAME.match(piece)
    return found and found[1].lower()


def _inline(run: Sequence[tuple[str, Kind]]) -> Iterator[str | Inline]:
    """Yield some pieces as an inline text, if there are words in it; else as they are."""
    shown = [characters(piece) if kind == "text" else "" for piece, kind in run]
    if not any(map(_WORD.search, shown)):
        yield "".join(piece for piece, _ in run)
        return
    found = _Run()
    for (piece, kind), text in zip(run, shown, strict=True):
        if kind == "text":
            found.add_text(text)
        elif kind == "tag":
            found.add_tag(piece)
        else:
            found.add_kept(piece, is_new=kind == "begin")
    first, last = shown[0], shown[-1]
    before = first[: len(first) - len(first.lstrip())]
    yield Inline(before, found.text.rstrip(), found.ended(), last[len(last.rstrip()) :])


class _Run:
    """The text and the markup of some pieces, as far as they were added."""

    def __init__(self) -> None:
        self.text = ""
        self._events: list[Event] = []

    def add_text(self, shown: str) -> None:
        """Add text; white space behind white space is left out, but for that behind a tag."""
        shown = _SPACES.sub(" ", shown)
        if shown.startswith(" ") and self.text[-1:] in ("", " "):
            shown = shown[1:]
            if self._events and self.text and self._events[-1].place == len(self.text):
                last = self._events[-1]
                if last.opens is last.closes is None:
                    self._events[-1] = last._replace(markup=last.markup + " ")
        for found in _PLACEHOLDER.finditer(shown):
            begin, end = (len(self.text) + place for place in found.span())
            self._events.append(Event(begin, escape(found[0], quote=False), kept=end))
        self.text += shown

    def add_tag(self, piece: str) -> None:
        """Add a tag, or a comment and the like."""
        name, place = _name(piece), len(self.text)
        if name is None or name in _WITHOUT_END or (piece.endswith("/>") and piece[1] != "/"):
            self._events.append(Event(place, piece))
        elif piece[1] == "/":
            self._events.append(Event(place, piece, closes=name))
        else:
            self._events.append(Event(place, piece, opens=name))

    def add_kept(self, piece: str, is_new: bool) -> None:
        """Add a piece of an element that is not translated; its text stays in that to translate."""
        if is_new:
            self._events.append(Event(len(self.text), ""))
        if not _BEGIN.match(piece):
            shown = _SPACES.sub(" ", characters(piece))
            self.text += shown.lstrip() if self.text[-1:] in ("", " ") else shown
        last = self._events[-1]
        kept = len(self.text) if len(self.text) > last.place else None
        self._events[-1] = last._replace(markup=last.markup + piece, kept=kept)

    def ended(self) -> list[Event]:
        """Return the markup, in places of the text without white space behind it."""
        most, found = len(self.text.rstrip()), []
        for event in self._events:
            alone = event.kept is None and event.opens is event.closes is None
            space = " " if alone and event.place > most else ""
            kept = event.kept and min(event.kept, most)
            markup, place = space + event.markup, min(event.place, most)
            found.append(event._replace(place=place, markup=markup, kept=kept))
        return found


class _Kept:
    """The open elements that are not translated: the outermost one, and those within it."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._count: Counter[str] = Counter()

    def __contains__(self, name: str) -> bool:
        return self._count[name] > 0

    def open(self, name: str) -> None:
        """Enter an element."""
        self.names.append(name)
        self._count[name] += 1

    def close(self, name: str) -> None:
        """Leave an element, and with it the open elements within it."""
        while name in self:
            last = self.names.pop()
            self._count[last] -= 1
            if last == name:
                return


def _end(text: str, begin: int, within: _Kept) -> int:
    """Return the end of the markup that begins at a place; raw text after a tag belongs to it."""
    if text.startswith("<!--", begin):
        comment = _COMMENT.match(text, begin)
        return comment.end() if comment else len(text)
    if text.startswith("<![CDATA[", begin) and ("svg" in within or "math" in within):
        return _after(text, "]]>", begin)
    tag = _TAG_NAME.match(text, begin)
    if tag is None:  # a declaration, an instruction, or what is no tag
        return _after(text, ">", begin)
    end, is_closed, is_kept = _tag_end(text, tag.end())
    name = tag[1].lower()
    if text[begin + 1] == "/":
        within.close(name)
    elif name not in _WITHOUT_END and not is_closed:
        if name in _RAW:
            last = re.compile(rf"</{name}(?=[{_SPACE}/>])", re.IGNORECASE | re.ASCII)
            found = last.search(text, end)
            return found.start() if found else len(text)
        if within.names or is_kept or name in _VERBATIM:
            within.open(name)
    return end


def _tag_end(text: str, place: int) -> tuple[int, bool, bool]:
    """Return the end of a tag, whether the tag ends with `/>`, and if its `translate` is `no`."""
    translate: str | None = None
    while True:
        begin, place = place, _GAP.match(text, place).end()  # type: ignore[union-attr]
        if place == len(text):
            return place, False, False
        if text[place] == ">":
            return place + 1, text[begin:place].endswith("/"), translate == "no"
        name, value = _ATTRIBUTE.match(text, place), None
        assert name is not None
        place = name.end()
        if equals := _EQUALS.match(text, place):
            value = _VALUE.match(text, equals.end())
            if value is None:  # a quote that nothing ends
                return len(text), False, False
            place = value.end()
        if translate is None and name[0].lower() == "translate":
            translate = characters(value[0].strip("\"'")).lower() if value else ""


def _after(text: str, last: str, begin: int) -> int:
    place = text.find(last, begin)
    return len(text) if place < 0 else place + len(last)
