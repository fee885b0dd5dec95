"""The text of Markdown: paragraphs, headings, items and cells, with emphasis and links in them.

markdown-it-py says what is what (CommonMark 0.31, with tables and text that is struck out). It does
not say where in the text an inline token stands; that is found by the tokens one after the other,
so that everything else stays as it was written.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

from t2t_jax.errors import needs_extra
from t2t_jax.markup.html import html_parts
from t2t_jax.markup.inline import Inline, InlineText, escaped

_FRONT_MATTER = re.compile(r"---[ \t]*\n.*?\n(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL)
_LINE_END = re.compile(r"\r\n?|\n")  # those of markdown-it-py, which counts lines by them
_DESTINATION = r"<[^<>\n]*>|(?:[^\s()\\]|\\.|\((?:[^\s()\\]|\\.)*\))*"
_TITLE = r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|\((?:[^()\\]|\\.)*\)"
_LINK_END = re.compile(
    rf"\](?:\(\s*(?:{_DESTINATION})(?:\s+(?:{_TITLE}))?\s*\)|\[[^\[\]]*\])?", re.DOTALL
)
_BREAK = re.compile(r"[ \t]*\\?\n[ \t]*")
_AUTOLINK = re.compile(r"<[^<>\s]+>")
_SPECIAL = re.compile(r"[\\`*\[\]<]|(?<!\w)_|_(?!\w)")


_Token: TypeAlias = Any  # one of markdown-it-py, which is imported where it is used


class _Piece(NamedTuple):
    """A piece of an inline text, as it was written, and the token that it is of."""

    text: str
    token: _Token


def markdown_escaped(text: str) -> str:
    """Return a text as Markdown has it: a backslash before what would be markup."""
    return _SPECIAL.sub(r"\\\g<0>", text)


def markdown_parts(text: str) -> Iterator[str | Inline]:
    r"""Yield the parts of a text in Markdown: inline text to translate, and what is between.

    Code, images, addresses, HTML and front matter stay as they are. A line break within a paragraph
    is a space, and a hard one (two spaces or a backslash before it) ends a sentence.

    Raises:
      UserError: markdown-it-py is not installed.
    """
    with needs_extra("serve", "the reading of Markdown"):
        from markdown_it import MarkdownIt
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"]).disable("text_join")
    front = _FRONT_MATTER.match(text)
    place, begin = 0, front.end() if front else 0
    starts = [begin, *(found.end() for found in _LINE_END.finditer(text, begin)), len(text)]
    for token in parser.parse(text[begin:]):
        if token.map is None or token.type not in ("inline", "html_block"):
            continue
        first = starts[token.map[0]]
        if token.type == "html_block":
            end = starts[min(token.map[1], len(starts) - 1)]
            yield text[place:first]
            yield from html_parts(text[first:end])
            place = end
        elif spans := _found(token.content, text, max(first, place), starts):
            yield text[place : spans[0][0]]
            gaps = [text[one[1] : other[0]] for one, other in pairwise(spans)]
            yield from _inline(token, gaps, text[spans[0][0] : spans[-1][1]])
            place = spans[-1][1]
    yield text[place:]


def _found(
    content: str, text: str, place: int, starts: Sequence[int]
) -> list[tuple[int, int]] | None:
    """Return where each line of an inline text stands; None where it is written otherwise."""
    spans: list[tuple[int, int]] = []
    number = bisect_right(starts, place) - 1
    for line in content.split("\n"):
        if number + 1 >= len(starts):
            return None
        begin = text.find(line, max(place, starts[number]), starts[number + 1])
        if begin < 0:
            return None
        place = begin + len(line)
        spans.append((begin, place))
        number += 1
    return spans


def _inline(token: _Token, gaps: Sequence[str], written: str) -> Iterator[str | Inline]:
    """Yield an inline text, which hard line breaks cut; as it was written if it has no words.

    Args:
      gaps: what stands between each line and the next one.
    """
    found, parts = InlineText(str), list[str | Inline]()
    each, line = _pieces(token), 0
    if each is None:  # markup that is nested in a way not known here is text
        found.add_text(token.content)
        each = []
    for text, own in each:
        if own.type in ("softbreak", "hardbreak"):
            gap, line = gaps[line], line + 1
            if own.type == "softbreak":
                found.add_text(" ")
                continue
            parts += [*found.ended(), text.partition("\n")[0] + gap]
            found = InlineText(str)
        else:
            _add(found, text, own)
    parts += found.ended()
    if any(isinstance(part, Inline) for part in parts):
        yield from parts
    else:
        yield written


def _add(found: InlineText, text: str, token: _Token) -> None:
    """Add a piece to an inline text."""
    kind, _, end = token.type.rpartition("_")
    if token.type == "text" or token.info == "entity":
        found.add_text(text)
    elif token.type == "image":
        found.add_markup(text)
    elif token.type == "html_inline":
        found.add_tag(text, re.sub(r"\W.*", "", text.strip("</>")) or None)
    elif token.type in ("code_inline", "text_special", "link_auto"):
        found.add_kept(text, escaped(token.content), is_new=True)
    else:
        found.add_markup(text, **{"opens" if end == "open" else "closes": kind})


def _pieces(inline: _Token) -> list[_Piece] | None:
    """Return the pieces of an inline text in order; None if the tokens are not found in it."""
    content, place, pieces = inline.content, 0, list[_Piece]()
    is_address = False
    for token in inline.children or []:
        if token.info == "auto":
            is_address = token.type == "link_open"
            continue
        end = _end(content, place, token, is_address=is_address)
        if end is None:
            return None
        if is_address:
            token.type = "link_auto"
        pieces.append(_Piece(content[place:end], token))
        place = end
    return pieces if place == len(content) else None


def _end(content: str, place: int, token: _Token, *, is_address: bool) -> int | None:
    """Return the end of the piece of a token, which begins at a place; None if it does not."""
    found: re.Match[str] | None = None
    if is_address:
        found = _AUTOLINK.match(content, place)
    elif token.type in ("softbreak", "hardbreak"):
        found = _BREAK.match(content, place)
    elif token.type == "link_close":
        found = _LINK_END.match(content, place)
    elif token.type == "code_inline":
        run = token.markup
        found = re.compile(rf"(?<!`){run}(?!`)").search(content, place + len(run))
    elif token.type == "image":
        label = _label_end(content, place + 1)
        found = None if label is None else _LINK_END.match(content, label)
    else:
        plain = {"link_open": "["}.get(token.type, token.markup or token.content)
        return place + len(plain) if content.startswith(plain, place) else None
    return found and found.end()


def _label_end(content: str, place: int) -> int | None:
    """Return the place of the bracket that ends the label which begins at a place."""
    depth = 0
    for found in re.compile(r"\\.|[\[\]]", re.DOTALL).finditer(content, place):
        depth += {"[": 1, "]": -1}.get(found[0], 0)
        if not depth and found[0] == "]":
            return found.start()
    return None
