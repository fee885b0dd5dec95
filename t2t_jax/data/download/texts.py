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
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from t2t_jax.data.download.catalogue import Text
from t2t_jax.data.lines import Lines, blocks_of, decoded
from t2t_jax.errors import UserError

_BLOCK_LINES = 1000
_READ_AT_ONCE = 1 << 16
_MOST_HEADERS = 4 << 20  # bytes of a tar archive that are of no member
_MOST_BETWEEN_TAGS = 1 << 20  # bytes of a translation memory
_DEEPEST = 100
_GZIP = b"\x1f\x8b"
_SEGMENT = re.compile(r"<seg[^>]*>(.*)</seg>")
_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
_DAMAGE = (
    tarfile.TarError,
    gzip.BadGzipFile,
    EOFError,
    zlib.error,
    ElementTree.ParseError,
    RecursionError,  # from a tar archive with headers of headers
    ValueError,  # from other text in the place of a tar header's number
)


def lines_of(text: Text, directory: Path) -> Iterator[str]:
    """Yield the sentences of one side of a part, in order, from a directory with its archive.

    Raises:
      UserError: the archive is damaged, or has no such file, or the file is not UTF-8, or a line of
        it has no end.
    """
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
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"{path} is damaged ({reason}); remove it, and the same command fetches it again"
        ) from error


@contextmanager
def _opened(text: Text, path: Path) -> Iterator[Any]:
    """Open a text as a file of bytes, unpacked."""
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
    """Yield the segments of a language in a translation memory, one for each of its units."""
    units = _Units(text)
    parser = ElementTree.XMLParser(target=units)
    while block := file.read(_READ_AT_ONCE):
        units.grow(len(block))
        parser.feed(block)
        yield from units.taken()
    parser.close()
    yield from units.taken()


class _Units:
    """A target of an XML parser, which keeps a translation memory's segments of one language."""

    def __init__(self, text: Text) -> None:
        self._text = text
        self._found: list[str] = []
        self._segment: list[str] = []  # of the unit that is read, up to a tag in the segment
        self._is_wanted = self._is_open = False
        self._size = self._depth = 0

    def taken(self) -> list[str]:
        """Return the segments that have come since the last call."""
        found, self._found = self._found, []
        return found

    def grow(self, size: int) -> None:
        """Count the input since the last tag, and refuse more than a translation memory has."""
        self._size += size
        if self._size > _MOST_BETWEEN_TAGS or self._depth > _DEEPEST:
            raise UserError(
                f"{self._text.name} has more between two tags, or more tags in tags, than any "
                "translation memory; is it one?"
            )

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        self._is_open, self._size = False, 0
        self._depth += 1
        self.grow(0)
        if tag == "tu":
            self._segment, self._is_wanted = [], False
        elif tag == "tuv":
            self._is_wanted = attributes.get(_LANGUAGE, "") == self._text.language
            self._segment = [] if self._is_wanted else self._segment
        elif tag == "seg" and self._is_wanted:
            self._is_open, self._is_wanted = True, False

    def data(self, data: str) -> None:
        if self._is_open:
            self._segment.append(data)
        self.grow(len(data))

    def end(self, tag: str) -> None:
        self._is_open, self._size = False, 0
        self._depth -= 1
        if tag == "tu":
            self._found.append(" ".join("".join(self._segment).split()))

    def close(self) -> None:
        """Do nothing, as no tree of elements is built."""
