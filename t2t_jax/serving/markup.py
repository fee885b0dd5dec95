"""A splitter of text with HTML markup into tags, and the text that a reader sees.

The states are those of the standard's tokenizer (HTML Living Standard, section 13.2.5), as far as
they decide where a tag, a comment or a raw text ends. An unfinished tag or comment reaches to the
end of the text, so that each character is read once, whatever a text holds. Pieces are cut out of
the text as they were written, which a parser that makes a tree could not give back.
"""

import re
from collections import Counter
from collections.abc import Iterator
from html import unescape

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


def characters(text: str) -> str:
    """Replace the character references of a text by their characters, such as `&amp;` by `&`."""
    # Python reads no decimal number of thousands of digits; no character's number has over seven.
    return unescape(_TOO_LARGE.sub("\N{REPLACEMENT CHARACTER}", _ZEROS.sub("&#", text)))


def pieces(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the pieces of a text, which together are the text, each with whether to translate it.

    Comments, the contents of `script`, `style`, `pre`, `code` and the like, and elements with
    `translate="no"` are not to be translated. A tag that ends with `/>` has no contents. In a piece
    that is to be translated, the only markup is character references.
    """
    place, within = 0, _Kept()
    while found := _BEGIN.search(text, place):
        if found.start() > place:
            yield text[place : found.start()], not within.names
        place = _end(text, found.start(), within)
        yield text[found.start() : place], False
    if place < len(text):
        yield text[place:], not within.names


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
