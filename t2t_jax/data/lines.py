r"""Lines of text files in UTF-8, plain or packed by gzip or Zstandard.

Only \n ends a line, not the ten more characters at which `str.splitlines` cuts; a carriage return
before the \n belongs to the end. A byte order mark at the start of a file, which some editors
write, belongs to no line. Files of a corpus and the input of a command are decoded in the same way.
"""

import gzip
import hashlib
import io
import zlib
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from t2t_jax.errors import UserError, needs_extra
from t2t_jax.system.regular_file import check_regular

_BLOCK_LINES = 1000
_BLOCK_BYTES = 64 << 20
LONGEST_LINE = 100 << 20
"""The most bytes of a line. A gzip file can be a thousandth of the text that is in it."""


@runtime_checkable
class Lines(Protocol):
    """A file or a stream with lines."""

    def readline(self, size: int = -1, /) -> bytes:
        """Return the next line, or at most `size` bytes of it; no bytes at the end."""


class Survey(NamedTuple):
    """The size and the hash of a file, from one pass over it."""

    num_lines: int
    digest: str
    """SHA-256 of the uncompressed content, in hexadecimal digits."""


DAMAGE = (gzip.BadGzipFile, EOFError, zlib.error)
"""The errors that reading raises for a `.gz` file that is damaged or was never packed by gzip."""


def open_text(path: Path) -> gzip.GzipFile | io.BufferedReader:
    """Open a file as bytes, unpacked if its name ends in `.gz` or `.zst`.

    Raises:
      OSError: the file cannot be opened, or is packed and empty.
      UserError: pyarrow is not installed, which unpacks `.zst`.
    """
    file = path.open("rb")
    if path.suffix in (".gz", ".zst") and not file.peek(1):
        file.close()
        raise gzip.BadGzipFile("it has no bytes, so it is not a whole packed file")
    if path.suffix == ".zst":
        with needs_extra("shards", str(path)):
            import pyarrow
        return io.BufferedReader(pyarrow.CompressedInputStream(pyarrow.PythonFile(file), "zstd"))
    if path.suffix != ".gz":
        return file
    unpacked = gzip.GzipFile(fileobj=file, mode="rb")
    unpacked.myfileobj = file  # type: ignore[assignment]  # `close` closes both
    return unpacked


@contextmanager
def _open(path: Path) -> Iterator[gzip.GzipFile | io.BufferedReader]:
    try:
        with open_text(path) as file:
            yield file
    except (OSError, *DAMAGE) as error:
        raise UserError(f"{path} cannot be read: {error}") from error


def survey(path: Path) -> Survey:
    """Count the lines of a file and hash its content, in one pass."""
    check_regular(path)
    digest, count, block, has_returns = hashlib.sha256(), 0, b"\n", False
    with _open(path) as file:
        for block in iter(partial(file.read, 1 << 20), b""):
            if not count and not has_returns:
                _check_encoding(path, block)
            digest.update(block)
            newlines = block.count(b"\n")
            has_returns = has_returns or (not newlines and b"\r" in block.rstrip(b"\r"))
            count += newlines
    _check_ends(path, bool(count), has_returns)
    return Survey(count + (not block.endswith(b"\n")), digest.hexdigest())


def read_lines(path: Path, expected: Survey | None = None) -> Iterator[str]:
    """Yield the lines of a file, without their ends; the file must agree with a given survey."""
    read, digest = 0, hashlib.sha256()

    def blocks() -> Iterator[bytes]:
        for block in blocks_of(file, path):
            if expected is not None:
                digest.update(block)
            yield block

    with _open(path) as file:
        for lines in decoded(blocks(), path):
            read += len(lines)
            if expected is not None and read > expected.num_lines:
                raise changed(path)
            yield from lines
    if expected is not None and digest.hexdigest() != expected.digest:
        raise changed(path)


def blocks_of(file: Lines, shown: Path | str, num_lines: int = _BLOCK_LINES) -> Iterator[bytes]:
    """Yield the bytes of a file or a stream in blocks of whole lines, at most `num_lines` each."""
    block: list[bytes] = []
    size = 0
    for number, line in enumerate(iter(partial(file.readline, LONGEST_LINE + 1), b""), 1):
        if len(line) > LONGEST_LINE:
            raise UserError(
                f"{shown} line {number:,} is longer than {LONGEST_LINE:,} bytes; is it a text with "
                "a sentence a line?"
            )
        block.append(line)
        size += len(line)
        if len(block) == num_lines or size >= _BLOCK_BYTES:
            yield b"".join(block)  # decoding line by line is slow
            block, size = [], 0
    if block:
        yield b"".join(block)


def decoded(blocks: Iterable[bytes], shown: Path | str) -> Iterator[list[str]]:
    """Yield the lines of a text, without their ends: a list for each block of whole lines."""
    read = 0
    for block in blocks:
        if not read:
            block = checked_beginning(shown, block)
        try:
            lines = block.decode().removesuffix("\n").split("\n")
        except UnicodeDecodeError as error:
            line = read + block.count(b"\n", 0, error.start) + 1
            byte = error.start - block.rfind(b"\n", 0, error.start)
            raise UserError(
                f"{shown} line {line}, byte {byte} is not UTF-8; convert it to UTF-8"
            ) from error
        read += len(lines)
        yield [line.removesuffix("\r") for line in lines]


def checked_beginning(shown: Path | str, block: bytes) -> bytes:
    """Return the first block of a text without a byte order mark."""
    _check_encoding(shown, block)
    _check_ends(shown, b"\n" in block, b"\r" in block.rstrip(b"\r"))
    return block.removeprefix(BOM_UTF8)


def check_aligned(source: Path, num_sources: int, target: Path, num_targets: int) -> None:
    """Refuse a file of sentences whose number of lines differs from the translations'."""
    if num_sources != num_targets:
        raise UserError(
            f"{source} has {num_sources} lines, but {target} has {num_targets}; line n of one must "
            "translate line n of the other"
        )


def changed(path: Path) -> UserError:
    """Return the error for a changed file."""
    return UserError(
        f"{path} has changed while it was read; start again once nothing writes to it any more"
    )


def _check_encoding(shown: Path | str, first_block: bytes) -> None:
    """Refuse a text whose beginning is UTF-16, or has more zero bytes than any text."""
    many_zeros = 4 * first_block.count(0) > len(first_block)
    if many_zeros or first_block.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        raise UserError(
            f"{shown} is no text in UTF-8, but seems to be UTF-16; convert it by: "
            "iconv -f UTF-16 -t UTF-8"
        )


def _check_ends(shown: Path | str, has_newlines: bool, has_returns: bool) -> None:
    """Refuse a text that would be one giant line, as only carriage returns end its lines."""
    if has_returns and not has_newlines:
        raise UserError(
            f"{shown} ends its lines with carriage returns alone; convert it by: tr '\\r' '\\n'"
        )
