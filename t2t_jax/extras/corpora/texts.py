"""Readers of the texts within archives, each in one pass and without unpacking to disk.

    name of the file     format
    *.sgm, *.xml         a test set of WMT or IWSLT: its segments, <seg id="1"> ... </seg>
    train.tags.*         a training set of IWSLT: its lines, except those with tags, such as <url>
    *.tmx.gz             a translation memory: the segments of one language
    *.gz                 plain text, packed by gzip
    others               plain text

Plain text is handed on as it is, without the ends of its lines. Runs of spaces in segments become
single spaces, as in sacreBLEU.

The memory is bounded, whatever an archive unpacks to: it holds a line or a segment, and the bytes
between the members of a tar archive.
"""

import gzip
import io
import re
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from t2t_jax.data.lines import DAMAGE, Lines, blocks_of, decoded
from t2t_jax.errors import UserError, in_one_line
from t2t_jax.extras.corpora.catalogue import Text

_BLOCK_LINES = 1000
_READ_AT_ONCE = 1 << 16
_MOST_HEADERS = 4 << 20  # bytes of a tar archive that are of no member
_MOST_OF_A_UNIT = 1 << 20  # bytes of a translation memory
_DEEPEST = 100
_GZIP = b"\x1f\x8b"
_SEGMENT = re.compile(r"<seg[^>]*>(.*)</seg>")
_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
_DAMAGE = (
    *DAMAGE,
    tarfile.TarError,
    ElementTree.ParseError,
    RecursionError,  # from a tar archive with headers of headers
    ValueError,  # from other text in the place of a tar header's number
)


def lines_of(text: Text, directory: Path) -> Iterator[str]:
    """Yield the sentences of one side of a part, in order, from a directory with its archive."""
    path = directory / text.archive.name
    try:
        with _opened(text, path) as file:
            if text.language:
                yield from _memory_segments(file, text)
            else:
                yield from _lines(file, text)
    except UserError:
        raise
    except _DAMAGE as error:
        reason = in_one_line(error)[:200]
        raise UserError(
            f"{path} is damaged ({reason}); remove it, and the same command fetches it again"
        ) from error


@contextmanager
def _opened(text: Text, path: Path) -> Iterator[Any]:
    with path.open("rb") as file:
        is_packed = file.read(len(_GZIP)) == _GZIP or not text.member
        file.seek(0)
        with gzip.open(file) if is_packed else file as whole:
            if not text.member:
                yield whole
                return
            with _member(text, path, _Bounded(whole)) as member:
                yield member


class _Bounded(io.RawIOBase):
    """A tar archive that is read no further than its members and some headers of theirs."""

    def __init__(self, file: Any) -> None:
        self._file, self.allowed = file, _MOST_HEADERS

    def read(self, size: int = -1) -> bytes:
        found: bytes = self._file.read(size)
        self.allowed -= len(found)
        if self.allowed < 0:
            raise tarfile.ReadError("it has more headers than any archive of texts")
        return found


@contextmanager
def _member(text: Text, path: Path, file: _Bounded) -> Iterator[Any]:
    # As a stream: the archive is unpacked no further than the member, and nothing of it is kept.
    archive: Any
    with tarfile.open(fileobj=file, mode="r|") as archive:
        while (member := archive.next()) is not None:
            archive.members.clear()
            if member.issparse():
                raise tarfile.ReadError(f"{member.name} is a file with holes")
            file.allowed += max(0, member.size)
            if member.name.removeprefix("./") == text.member and member.isfile():
                packed = archive.extractfile(member)
                with gzip.open(packed) if text.member.endswith(".gz") else packed as unpacked:
                    yield unpacked
                return
    raise UserError(f"{path} has no file {text.member}; is it another archive of that name?")


def _lines(file: Lines, text: Text) -> Iterator[str]:
    def not_utf8(line: int, byte: int) -> str:
        return f"{text.name} line {line}, byte {byte} is not UTF-8"

    blocks = decoded(blocks_of(file, _BLOCK_LINES, text.name), text.name, not_utf8)
    lines = chain.from_iterable(blocks)
    if text.member.endswith((".sgm", ".xml")):
        segments = (_SEGMENT.search(line) for line in lines)
        return (" ".join(found[1].split()) for found in segments if found)
    if "/train.tags." in text.member:
        return (line.strip() for line in lines if not line.lstrip().startswith("<"))
    return lines


def _memory_segments(file: Any, text: Text) -> Iterator[str]:
    """Yield one segment in a language for each unit of a translation memory."""
    opened: list[ElementTree.Element] = []
    size = 0  # of what was read since the last tag outside of a unit
    for read, events in _tags(file):
        size += read
        for event, element in events:
            if event == "start":
                opened.append(element)
            else:
                opened.pop()
            is_outside = all(outer.tag != "tu" for outer in opened)
            if event == "end" and element.tag == "tu":
                yield _segment(element, text.language)
            if event == "end" and is_outside and opened:
                opened[-1].clear()  # of what was read
            size = 0 if is_outside else size
        if size > _MOST_OF_A_UNIT or len(opened) > _DEEPEST:
            raise UserError(
                f"{text.name} has more between two tags, or more tags in tags, than any "
                "translation memory; is it one?"
            )


def _tags(file: Any) -> Iterator[tuple[int, Any]]:
    """Yield the number of bytes that were read, and what began and ended in them."""
    parser: Any = ElementTree.XMLPullParser(("start", "end"))
    while block := file.read(_READ_AT_ONCE):
        parser.feed(block)
        yield len(block), parser.read_events()
    parser.close()
    yield 0, parser.read_events()


def _segment(unit: ElementTree.Element, language: str) -> str:
    """Return the text of a unit's last side in a language, up to the first tag within it."""
    sides = [side for side in unit.iter("tuv") if side.get(_LANGUAGE) == language]
    return " ".join((sides[-1].findtext("seg") or "").split()) if sides else ""
