r"""Lines of text files in UTF-8, plain or gzip.

Only a line feed ends a line; str.splitlines would split at ten other characters as well. A carriage
return before the line feed belongs to the end. A byte order mark at the start of a file, which some
editors write, belongs to no line.
"""

import gzip
import hashlib
import io
import zlib
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from t2t_jax.errors import UserError

_BLOCK_LINES = 1000


class Survey(NamedTuple):
    """The facts about a file that one pass over it finds."""

    num_lines: int
    digest: str
    """A hash of the content, uncompressed."""


@contextmanager
def _open(path: Path) -> Iterator[gzip.GzipFile | io.BufferedReader]:
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            yield file
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} cannot be read: {error}") from error


def survey(path: Path) -> Survey:
    """Count the lines of a file and hash its content, in one pass.

    Raises:
      UserError: the file is missing or damaged, or no text with line feeds.
    """
    digest, count, block, has_returns = hashlib.sha256(), 0, b"\n", False
    with _open(path) as file:
        while following := file.read(1 << 20):
            if not count and not has_returns:
                _check_encoding(path, following)
            block = following
            digest.update(block)
            newlines = block.count(b"\n")
            has_returns = has_returns or (not newlines and b"\r" in block.rstrip(b"\r"))
            count += newlines
    _check_ends(path, bool(count), has_returns)
    return Survey(count + (not block.endswith(b"\n")), digest.hexdigest())


def read_lines(path: Path, expected: Survey | None = None) -> Iterator[str]:
    """Yield the lines of a file, without their ends.

    Args:
      path: the file.
      expected: the survey of the file, with which it has to agree.

    Raises:
      UserError: the file is missing or damaged, or a line is not UTF-8, or the file has changed
        since the survey.
    """
    read, digest = 0, hashlib.sha256()
    with _open(path) as file:
        while block := b"".join(islice(file, _BLOCK_LINES)):  # decoding line by line is slow
            if expected is not None:
                digest.update(block)
            if not read:
                _check_encoding(path, block)
                _check_ends(path, b"\n" in block, b"\r" in block.rstrip(b"\r"))
                block = block.removeprefix(BOM_UTF8)
            lines = _decode(block, path, read)
            read += len(lines)
            if expected is not None and read > expected.num_lines:
                raise _changed(path)
            yield from lines
    if expected is not None and digest.hexdigest() != expected.digest:
        raise _changed(path)


def _changed(path: Path) -> UserError:
    return UserError(
        f"{path} has changed while it was read; start again once nothing writes to it any more"
    )


def _check_encoding(path: Path, first_block: bytes) -> None:
    """Refuse a file that begins with the byte order mark of UTF-16, or with many zero bytes."""
    many_zeros = 4 * first_block.count(0) > len(first_block)
    if many_zeros or first_block.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        raise UserError(
            f"{path} is no text in UTF-8, but seems to be UTF-16; convert it by: "
            "iconv -f UTF-16 -t UTF-8"
        )


def _check_ends(path: Path, has_newlines: bool, has_returns: bool) -> None:
    """Refuse a file whose lines end in carriage returns, and which would be one giant line."""
    if has_returns and not has_newlines:
        raise UserError(
            f"{path} ends its lines with carriage returns alone; convert it by: tr '\\r' '\\n'"
        )


def _decode(block: bytes, path: Path, lines_before: int) -> list[str]:
    try:
        lines = block.decode().removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        line = lines_before + block.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path} line {line} is not UTF-8; convert the file to UTF-8") from error
    return [line.removesuffix("\r") for line in lines]
