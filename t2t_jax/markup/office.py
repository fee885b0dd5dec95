"""The text of Office Open XML: paragraphs of runs, each with the format of its letters.

A paragraph is translated as one text. The format of most of its letters is that of the paragraph,
and runs with another one are elements within it, as tags of HTML are. Links, fields and content
controls are elements too, and what is no text, such as an image, stands alone. While the text is a
document, a format is written between private characters, of which `with_runs` makes runs again.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from t2t_jax.markup.inline import Inline, InlineText, escaped
from t2t_jax.markup.xml import PIECE, name_of

_BASE, _BASE_END, _OPEN, _OPEN_END, _CLOSE, _TEXT, _TEXT_END = map(chr, range(0xFDD0, 0xFDD7))
_PRIVATE = re.compile(f"[{_BASE}-{_TEXT_END}]")
_MARKED = re.compile(
    f"{_BASE}[^{_BASE_END}]*{_BASE_END}|{_OPEN}[^{_OPEN_END}]*{_OPEN_END}|{_CLOSE}"
    f"|{_TEXT}[^{_TEXT_END}]*{_TEXT_END}"
)
_NO_FORMAT = re.compile(r"<w:(?:lang|noProof)\b[^<>]*/>|\s(?:lang|altLang|dirty|err)=\"[^\"]*\"")
_FIELD = re.compile(r"fldCharType=\"(begin|separate|end)\"")
_CONTROL = re.compile(r"</?\w+:sdt(?:Content)?[\s/>]")
_PAIRED = {"hyperlink", "ins", "moveTo", "smartTag", "customXml"}
_WORD = re.compile(r"\w")
_DEEPEST = 20


class _Item(NamedTuple):
    """A piece of a paragraph: text with its format, or markup."""

    piece: str
    """The text, or the markup, as it was written."""
    format: str | None = None
    """The format of text, as it was written; None for markup."""
    opens: str | None = None
    """The name of the element that markup begins."""
    closes: str | None = None
    """The name of the element that markup ends."""
    ends_text: bool = False
    """Whether the text ends here, as there are paragraphs within the markup."""


def office_parts(text: str, prefix: str) -> Iterator[str | Inline]:
    """Yield the parts of a text in Office Open XML: inline text to translate, and what is between.

    Args:
      text: the text of a file of a document.
      prefix: the prefix of the names of paragraphs and runs: `w` in texts, `a` in slides.
    """
    yield from _Office(prefix).parts([found[0] for found in PIECE.finditer(_PRIVATE.sub("", text))])


def office_escaped(text: str) -> str:
    """Return a translated text as `with_runs` takes it."""
    return f"{_TEXT}{escaped(_PRIVATE.sub('', text))}{_TEXT_END}" if text else ""


def with_runs(text: str, prefix: str) -> str:
    """Return a text in which each translated text stands in a run with its format."""
    formats = [""]

    def written(found: re.Match[str]) -> str:
        kind, content = found[0][0], found[0][1:-1]
        if kind == _BASE:
            formats[:] = [content]
        elif kind == _OPEN:
            formats.append(content)
        elif kind == _CLOSE:
            formats.pop()
        else:
            return _run(prefix, formats[-1], content)
        return ""

    return _MARKED.sub(written, text)


def _run(prefix: str, form: str, text: str) -> str:
    space = ' xml:space="preserve"' if prefix == "w" else ""
    return f"<{prefix}:r>{form}<{prefix}:t{space}>{text}</{prefix}:t></{prefix}:r>"


class _Office:
    """The elements of one kind of file, by the prefix of their names."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._depth = 0  # of paragraphs within others, such as those of text boxes

    def parts(self, pieces: Sequence[str]) -> Iterator[str | Inline]:
        """Yield the parts of pieces that are in no paragraph."""
        if self._depth > _DEEPEST:
            yield "".join(pieces)
            return
        self._depth += 1
        place = 0
        while place < len(pieces):
            end = self._end(pieces, place) if self._is(pieces[place], "p") else place + 1
            if end > place + 1:
                yield from self._paragraph(pieces[place:end])
            else:
                yield pieces[place]
            place = end
        self._depth -= 1

    def _is(self, piece: str, local: str) -> bool:
        """Return whether a piece is the tag that begins an element."""
        return piece.startswith(f"<{self._prefix}:{local}") and name_of(piece) == (
            f"{self._prefix}:{local}"
        )

    def _end(self, pieces: Sequence[str], begin: int) -> int:
        """Return the place behind the element that begins at a place, or behind a comment there."""
        depth, name = 0, name_of(pieces[begin])
        if name is None:
            return begin + 1
        for place in range(begin, len(pieces)):
            piece = pieces[place]
            if piece[0] != "<" or name_of(piece) != name or piece.endswith("/>"):
                if depth == 0:
                    return begin + 1
                continue
            depth += -1 if piece[1] == "/" else 1
            if depth <= 0:
                return place + 1
        return len(pieces)

    def _paragraph(self, pieces: Sequence[str]) -> Iterator[str | Inline]:
        items = _with_fields(self._items(pieces[1:-1]))
        yield pieces[0]
        group: list[_Item] = []
        for item in items:
            if item.ends_text:
                yield from self._inline(group)
                group = []
                yield from self.parts([found[0] for found in PIECE.finditer(item.piece)])
            else:
                group.append(item)
        yield from self._inline(group)
        yield pieces[-1]

    def _items(self, pieces: Sequence[str]) -> Iterator[_Item]:
        """Yield the items of the pieces within a paragraph."""
        place = 0
        while place < len(pieces):
            piece, name = pieces[place], name_of(pieces[place])
            local = (name or "").rpartition(":")[2]
            end = place + 1
            if name is None or piece.endswith("/>"):
                yield _Item(piece)
            elif local in ("sdt", "sdtContent"):  # what is beside the contents belongs to the tags
                last = (
                    f"<{self._prefix}:sdtContent>" if local == "sdt" else f"</{self._prefix}:sdt>"
                )
                tags = (n for n in range(end, len(pieces)) if _CONTROL.match(pieces[n]))
                if (local == "sdt") != (piece[1] == "/"):  # the outer one of two tags
                    near = next(tags, place)
                    end = near + 1 if pieces[near] == last else end
                tag = "".join(pieces[place:end])
                yield _Item(tag, closes="sdt") if piece[1] == "/" else _Item(tag, opens="sdt")
            elif local in _PAIRED:
                yield _Item(piece, closes=local) if piece[1] == "/" else _Item(piece, opens=local)
            else:
                end = self._end(pieces, place)
                whole = pieces[place:end]
                has_paragraph = any(self._is(one, "p") for one in whole)
                if self._is(piece, "r") and not has_paragraph:
                    yield from self._items_of_run(whole)
                else:
                    yield _Item("".join(whole), ends_text=has_paragraph or local == "pPr")
            place = end

    def _items_of_run(self, pieces: Sequence[str]) -> Iterator[_Item]:
        """Yield the texts of a run, and what else is in it as runs of their own."""
        place, form = 1, ""
        while place < len(pieces) - 1:
            piece = pieces[place]
            end = self._end(pieces, place) if piece[0] == "<" else place + 1
            whole = pieces[place:end]
            if self._is(piece, "rPr"):
                form = "".join(whole)
            elif self._is(piece, "t"):
                yield _Item("".join(whole[1:-1]), form)
            elif piece[0] == "<":
                inner = form + "".join(whole)
                yield _Item(f"<{self._prefix}:r>{inner}</{self._prefix}:r>")
            place = end

    def _inline(self, group: Sequence[_Item]) -> Iterator[str | Inline]:
        """Yield items of a paragraph as an inline text, if there are words in them."""
        letters = Counter[str]()
        for item in group:
            if item.format is not None:
                letters[item.format] += len(item.piece)
        if not any(item.format is not None and _WORD.search(item.piece) for item in group):
            for item in group:
                is_text = item.format is not None
                yield _run(self._prefix, item.format or "", item.piece) if is_text else item.piece
            return
        [(base, _)] = letters.most_common(1)
        yield f"{_BASE}{base}{_BASE_END}"
        found = InlineText(office_escaped)
        for form, items in groupby(group, key=lambda item: item.format):
            if form is None:
                for piece, _, opens, closes, _ in items:
                    found.add_markup(piece, opens=opens, closes=closes)
                continue
            text = "".join(item.piece for item in items)
            is_own = bool(text.strip()) and _NO_FORMAT.sub("", form) != _NO_FORMAT.sub("", base)
            if is_own:
                found.add_markup(f"{_OPEN}{form}{_OPEN_END}", opens="run")
            found.add_text(text)
            if is_own:
                found.add_markup(_CLOSE, closes="run")
        yield from found.ended()


def _with_fields(items: Iterable[_Item]) -> Iterator[_Item]:
    """Yield items, those of the code of a field as one that begins it, up to the field's text."""
    code: list[str] = []
    depth = 0
    for item in items:
        found = _FIELD.search(item.piece) if item.format is None else None
        kind = found[1] if found else None
        depth += kind == "begin"
        if depth:
            code.append(item.piece if item.format is None else "")
            depth -= kind == "end"
            if depth == 0 or (depth == 1 and kind == "separate"):
                yield _Item("".join(code), opens="field" if depth else None)
                code, depth = [], 0
        elif kind == "end":
            yield item._replace(closes="field")
        else:
            yield item
    if code:
        yield _Item("".join(code))
