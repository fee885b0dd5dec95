"""The lines of texts within archives, each format read in one pass and without unpacking to disk.

    name of the file     format
    *.sgm, *.xml         a test set of WMT or IWSLT: its segments, <seg id="1"> ... </seg>
    train.tags.*         a training set of IWSLT: its lines but those with tags, such as <url>
    *.tmx.gz             a translation memory: the segments of one language
    *.gz                 plain text, packed by gzip
    others               plain text

Plain text is handed on as it is, but for the ends of its lines. Spaces in segments are made single
ones, as sacreBLEU does.
"""

import gzip
import re
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from t2t_jax.data.download.catalogue import Text
from t2t_jax.data.lines import blocks_of, decoded
from t2t_jax.errors import UserError

_BLOCK_LINES = 1000
_SEGMENT = re.compile(r"<seg[^>]*>(.*)</seg>")
_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
_DAMAGE = (tarfile.ReadError, gzip.BadGzipFile, EOFError, zlib.error, ElementTree.ParseError)


def lines_of(text: Text, directory: Path) -> Iterator[str]:
    """The sentences of one side of a part, in order.

    Args:
      text: which text of which archive.
      directory: the directory that holds the archive.

    Raises:
      UserError: the archive is damaged, or has no such file, or the file is not UTF-8.
    """
    path = directory / text.archive.name
    try:
        with _opened(text, path) as file:
            if text.language:
                yield from _memory_segments(file, text.language)
            else:
                yield from _lines(file, text)
    except _DAMAGE as error:
        raise UserError(
            f"{path} is damaged ({error}); remove it, and the same command fetches it again"
        ) from error


@contextmanager
def _opened(text: Text, path: Path) -> Iterator[Iterable[bytes]]:
    """A text as lines of bytes, unpacked."""
    if not text.member:
        with gzip.open(path) as file:
            yield file
        return
    # As a stream: the archive is unpacked no further than the member, and nothing of it is kept.
    with tarfile.open(path, "r|*") as archive:
        for member in archive:
            if member.name.removeprefix("./") == text.member and member.isfile():
                packed: Any = archive.extractfile(member)
                with gzip.open(packed) if text.member.endswith(".gz") else packed as unpacked:
                    yield unpacked
                return
    raise UserError(f"{path} has no file {text.member}; is it another archive of that name?")


def _lines(file: Iterable[bytes], text: Text) -> Iterator[str]:
    def not_utf8(line: int, byte: int) -> str:
        return f"{text.name} line {line}, byte {byte} is not UTF-8"

    blocks = decoded(blocks_of(file, _BLOCK_LINES), text.name, not_utf8)
    lines = chain.from_iterable(blocks)
    if text.member.endswith((".sgm", ".xml")):
        segments = (_SEGMENT.search(line) for line in lines)
        return (" ".join(found[1].split()) for found in segments if found)
    if "/train.tags." in text.member:
        return (line.strip() for line in lines if not line.lstrip().startswith("<"))
    return lines


def _memory_segments(file: Any, language: str) -> Iterator[str]:
    """The segments of a language in a translation memory, one for each of its units."""
    for _, element in ElementTree.iterparse(file):
        if element.tag != "tu":
            continue
        sides = {side.get(_LANGUAGE, ""): side.findtext("seg") for side in element.iter("tuv")}
        yield " ".join((sides.get(language) or "").split())
        element.clear()
