"""Read texts from archives in one pass, without unpacking to disk and with bounded memory.

    file name            format
    *.sgm, *.xml         test set of WMT or IWSLT: the segments <seg id="1"> ... </seg>
    train.tags.*         training set of IWSLT: the lines without tags such as <url>
    *.tmx.gz             translation memory: the segments of one language
    *.gz                 plain text, compressed with gzip
    other names          plain text

In segments, several spaces become one space, as in sacreBLEU.
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

from t2t_jax.data.lines import DAMAGE, Lines, blocks_of, decode_lines
from t2t_jax.errors import UserError, in_one_line
from t2t_jax.extras.corpora.catalogue import Text

_MAX_HEADERS = 4 << 20  # of a tar archive, outside its members
_MAX_UNIT_BYTES = 1 << 20  # of a translation memory
_GZIP = b"\x1f\x8b"
_SEGMENT = re.compile(r"<seg[^>]*>(.*)</seg>")
_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
_DAMAGE = (
    *DAMAGE,
    tarfile.TarError,
    ElementTree.ParseError,
    RecursionError,  # a tar archive with nested headers
    ValueError,  # a tar header with text instead of a number
)


def lines_of(text: Text, directory: Path) -> Iterator[str]:
    """Yield the sentences of a text in order; `directory` holds its archive."""
    path = directory / text.archive.name
    try:
        with _open(text, path) as file:
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
def _open(text: Text, path: Path) -> Iterator[io.BufferedIOBase]:
    with ExitStack() as stack:
        stream: io.BufferedIOBase = stack.enter_context(path.open("rb"))
        is_gzip = stream.read(len(_GZIP)) == _GZIP or not text.member
        stream.seek(0)
        stream = stack.enter_context(gzip.open(stream)) if is_gzip else stream
        if not text.member:
            yield stream
            return
        # Mode "r|" unpacks the archive as a stream, only as far as the member.
        bounded = _Bounded(stream, _MAX_HEADERS, "it has more headers than any archive of texts")
        archive: Any = stack.enter_context(tarfile.open(fileobj=bounded, mode="r|"))
        while (member := archive.next()) is not None:
            archive.members.clear()  # tarfile would keep all headers in memory
            if member.issparse():
                raise tarfile.ReadError(f"{member.name} is a file with holes")
            bounded.bytes_left += max(0, member.size)
            if member.name.removeprefix("./") == text.member and member.isfile():
                file = archive.extractfile(member)
                is_gzip = text.member.endswith(".gz")
                yield stack.enter_context(gzip.open(file)) if is_gzip else file
                return
    raise UserError(f"{path} has no file {text.member}; is it another archive of that name?")


class _Bounded(io.RawIOBase):
    """A file with a limit on the bytes to read, which the reader can increase."""

    def __init__(self, file: io.BufferedIOBase, bytes_left: int, refusal: str) -> None:
        self._file, self.bytes_left, self._refusal = file, bytes_left, refusal

    def read(self, size: int = -1) -> bytes:
        content: bytes = self._file.read(size)
        self.bytes_left -= len(content)
        if self.bytes_left < 0:
            raise tarfile.ReadError(self._refusal)
        return content


def _lines(file: Lines, text: Text) -> Iterator[str]:
    blocks = blocks_of(file, text.name)
    lines = chain.from_iterable(decode_lines(blocks, text.name))
    if text.member.endswith((".sgm", ".xml")):
        matches = (_SEGMENT.search(line) for line in lines)
        return (" ".join(match[1].split()) for match in matches if match)
    if "/train.tags." in text.member:
        return (line.strip() for line in lines if not line.lstrip().startswith("<"))
    return lines


def _memory_segments(file: io.BufferedIOBase, language: str) -> Iterator[str]:
    """Yield the text of each unit of a translation memory in a language; "" if it has none.

    A unit with several texts in the language yields the last one, up to the first inner tag.
    """
    parents: list[ElementTree.Element] = []
    bounded = _Bounded(
        file, _MAX_UNIT_BYTES, "a unit is larger than that of any translation memory"
    )
    for event, element in ElementTree.iterparse(bounded, ("start", "end")):
        if event == "start":
            parents.append(element)
            continue
        parents.pop()
        if element.tag == "tu":
            variants = [tuv for tuv in element.iter("tuv") if tuv.get(_LANGUAGE) == language]
            yield " ".join((variants[-1].findtext("seg") or "").split()) if variants else ""
            for parent in parents[-1:]:
                parent.clear()  # frees the units that were read
            bounded.bytes_left = _MAX_UNIT_BYTES
