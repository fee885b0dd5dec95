"""Readers of the texts within archives, each in one pass and without unpacking to disk.

    name of the file     format
    *.sgm, *.xml         a test set of WMT or IWSLT: its segments, <seg id="1"> ... </seg>
    train.tags.*         a training set of IWSLT: its lines, except those with tags, such as <url>
    *.tmx.gz             a translation memory: the segments of one language
    *.gz                 plain text, packed by gzip
    others               plain text

Plain text is handed on as it is, without the ends of its lines. Runs of spaces in segments become
single spaces, as in sacreBLEU.

The memory is bounded, whatever an archive unpacks to: it holds a line or a unit of a translation
memory, and the bytes between the members of a tar archive.
"""

import gzip
import io
import re
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from t2t_jax.data.lines import DAMAGE, Lines, blocks_of, decoded
from t2t_jax.errors import UserError, in_one_line
from t2t_jax.extras.corpora.catalogue import Text

_MOST_HEADERS = 4 << 20  # bytes of a tar archive that are of no member
_MOST_OF_A_UNIT = 1 << 20  # bytes of a translation memory
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
            yield from (
                _memory_segments(file, text.language) if text.language else _lines(file, text)
            )
    except UserError:
        raise
    except _DAMAGE as error:
        reason = in_one_line(error)[:200]
        raise UserError(
            f"{path} is damaged ({reason}); remove it, and the same command fetches it again"
        ) from error


@contextmanager
def _opened(text: Text, path: Path) -> Iterator[io.BufferedIOBase]:
    with ExitStack() as files:
        whole: io.BufferedIOBase = files.enter_context(path.open("rb"))
        is_packed = whole.read(len(_GZIP)) == _GZIP or not text.member
        whole.seek(0)
        whole = files.enter_context(gzip.open(whole)) if is_packed else whole
        if not text.member:
            yield whole
            return
        # As a stream: the archive is unpacked no further than the member, and none of it is kept.
        bounded = _Bounded(whole, _MOST_HEADERS, "it has more headers than any archive of texts")
        archive: Any = files.enter_context(tarfile.open(fileobj=bounded, mode="r|"))
        while (member := archive.next()) is not None:
            archive.members.clear()
            if member.issparse():
                raise tarfile.ReadError(f"{member.name} is a file with holes")
            bounded.allowed += max(0, member.size)
            if member.name.removeprefix("./") == text.member and member.isfile():
                file = archive.extractfile(member)
                is_packed = text.member.endswith(".gz")
                yield files.enter_context(gzip.open(file)) if is_packed else file
                return
    raise UserError(f"{path} has no file {text.member}; is it another archive of that name?")


class _Bounded(io.RawIOBase):
    """A file of which only some bytes may be read; the reader allows more as it goes on."""

    def __init__(self, file: io.BufferedIOBase, allowed: int, refusal: str) -> None:
        self._file, self.allowed, self._refusal = file, allowed, refusal

    def read(self, size: int = -1) -> bytes:
        found: bytes = self._file.read(size)
        self.allowed -= len(found)
        if self.allowed < 0:
            raise tarfile.ReadError(self._refusal)
        return found


def _lines(file: Lines, text: Text) -> Iterator[str]:
    blocks = blocks_of(file, text.name)
    lines = chain.from_iterable(decoded(blocks, text.name))
    if text.member.endswith((".sgm", ".xml")):
        segments = (_SEGMENT.search(line) for line in lines)
        return (" ".join(found[1].split()) for found in segments if found)
    if "/train.tags." in text.member:
        return (line.strip() for line in lines if not line.lstrip().startswith("<"))
    return lines


def _memory_segments(file: io.BufferedIOBase, language: str) -> Iterator[str]:
    """Yield the text of each unit of a translation memory in a language, or "" if it has none.

    It is that of the unit's last side in the language, up to the first tag within it.
    """
    around: list[ElementTree.Element] = []
    bounded = _Bounded(
        file, _MOST_OF_A_UNIT, "a unit is larger than that of any translation memory"
    )
    for event, element in ElementTree.iterparse(bounded, ("start", "end")):
        if event == "start":
            around.append(element)
            continue
        around.pop()
        if element.tag == "tu":
            sides = [side for side in element.iter("tuv") if side.get(_LANGUAGE) == language]
            yield " ".join((sides[-1].findtext("seg") or "").split()) if sides else ""
            for outer in around[-1:]:
                outer.clear()  # of the units that were read
            bounded.allowed = _MOST_OF_A_UNIT
