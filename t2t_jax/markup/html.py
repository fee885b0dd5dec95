"""A splitter of text with HTML markup into inline text with its tags, and what is between.

The states are those of the standard's tokenizer (HTML Living Standard, section 13.2.5), as far as
they decide where a tag, a comment or a raw text ends. An unfinished tag or comment reaches to the
end of the text, so that each character is read once, whatever a text holds. Pieces are cut out of
the text as they were written, which a parser that makes a tree could not give back.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

from t2t_jax.markup.inline import Inline, InlineText, characters

_SPACE = r"\t\n\f\r "
_BEGIN = re.compile(r"<(?:[A-Za-z!?]|/[\s\S])")
_TAG_NAME = re.compile(rf"</?([A-Za-z][^{_SPACE}/>]*)")
_GAP = re.compile(rf"[{_SPACE}/]*")
_ATTRIBUTE = re.compile(rf"=?[^{_SPACE}/>=]*")
_EQUALS = re.compile(rf"[{_SPACE}]*=[{_SPACE}]*")
_VALUE = re.compile(rf"\"[^\"]*\"|'[^']*'|(?![\"'])[^{_SPACE}>]*")
_COMMENT = re.compile(r"<!--(?:-?>|.*?--!?>)", re.DOTALL)

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

Kind: TypeAlias = Literal["text", "tag", "begin", "kept"]
"""Whether a piece is text to translate, a tag or other markup, the tag that begins an element which
is not translated, or of the rest of such an element."""


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


def html_parts(text: str) -> Iterator[str | Inline]:
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
    found = InlineText()
    for piece, kind in run:
        if kind == "text":
            found.add_text(piece)
        elif kind == "tag":
            found.add_tag(piece, _name(piece), is_alone=_name(piece) in _WITHOUT_END)
        else:
            text = "" if _BEGIN.match(piece) else piece
            found.add_kept(piece, text, is_new=kind == "begin")
    yield from found.ended()


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
