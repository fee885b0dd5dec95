r"""Lines of UTF-8 text files, plain or compressed by gzip or Zstandard.

Only \n ends a line, not the ten more characters at which `str.splitlines` cuts. A carriage return
before the \n belongs to the line end, and a byte order mark at the start of a file to no line.
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
"""The most bytes of a line. A gzip file can hold a thousand times its size in text."""


@runtime_checkable
class Lines(Protocol):
    """Interface of a binary file or stream that is read line by line."""

    def readline(self, size: int = -1, /) -> bytes:
        """Return the next line, or at most `size` bytes of it; empty at the end."""


class Survey(NamedTuple):
    """The number of lines and the hash of a file."""

    num_lines: int
    digest: str
    """SHA-256 of the uncompressed content, in hexadecimal digits."""


DAMAGE = (gzip.BadGzipFile, EOFError, zlib.error)
"""The errors of reading a `.gz` file that is damaged or not compressed by gzip."""


def open_text(path: Path) -> gzip.GzipFile | io.BufferedReader:
    """Open a file for reading bytes, and decompress it if its name ends in `.gz` or `.zst`.

    Raises:
      OSError: the file cannot be opened, or is compressed and empty.
      UserError: pyarrow, which decompresses `.zst`, is not installed.
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
    text_file = gzip.GzipFile(fileobj=file, mode="rb")
    text_file.myfileobj = file  # type: ignore[assignment]  # `close` closes both
    return text_file


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
    hasher, num_newlines, block, has_lone_returns = hashlib.sha256(), 0, b"\n", False
    with _open(path) as file:
        for block in iter(partial(file.read, 1 << 20), b""):
            if not num_newlines and not has_lone_returns:
                _check_encoding(path, block)
            hasher.update(block)
            block_newlines = block.count(b"\n")
            has_lone_returns |= not block_newlines and b"\r" in block.rstrip(b"\r")
            num_newlines += block_newlines
    _check_ends(path, bool(num_newlines), has_lone_returns)
    return Survey(num_newlines + (not block.endswith(b"\n")), hasher.hexdigest())


def read_lines(path: Path, expected: Survey | None = None) -> Iterator[str]:
    """Yield the lines of a file, without line ends.

    Raises:
      UserError: the number of lines or the hash differs from the expected survey.
    """
    num_read, hasher = 0, hashlib.sha256()

    def blocks() -> Iterator[bytes]:
        for block in blocks_of(file, path):
            if expected is not None:
                hasher.update(block)
            yield block

    with _open(path) as file:
        for lines in decode_lines(blocks(), path):
            num_read += len(lines)
            if expected is not None and num_read > expected.num_lines:
                raise change_error(path)
            yield from lines
    if expected is not None and hasher.hexdigest() != expected.digest:
        raise change_error(path)


def blocks_of(file: Lines, path: Path | str, num_lines: int = _BLOCK_LINES) -> Iterator[bytes]:
    """Yield the bytes of a file or stream in blocks of at most `num_lines` whole lines."""
    block: list[bytes] = []
    num_bytes = 0
    for line_number, line in enumerate(iter(partial(file.readline, LONGEST_LINE + 1), b""), 1):
        if len(line) > LONGEST_LINE:
            raise UserError(
                f"{path} line {line_number:,} is longer than {LONGEST_LINE:,} bytes; write one "
                "sentence per line"
            )
        block.append(line)
        num_bytes += len(line)
        if len(block) == num_lines or num_bytes >= _BLOCK_BYTES:
            yield b"".join(block)  # decoding line by line is slow
            block, num_bytes = [], 0
    if block:
        yield b"".join(block)


def decode_lines(blocks: Iterable[bytes], path: Path | str) -> Iterator[list[str]]:
    """Decode blocks of whole lines: yield a list of lines, without line ends, for each block."""
    num_read = 0
    for block in blocks:
        if not num_read:
            block = check_first_block(path, block)
        try:
            lines = block.decode().removesuffix("\n").split("\n")
        except UnicodeDecodeError as error:
            line_number = num_read + block.count(b"\n", 0, error.start) + 1
            byte = error.start - block.rfind(b"\n", 0, error.start)
            raise UserError(
                f"{path} line {line_number}, byte {byte} is not UTF-8; convert it to UTF-8"
            ) from error
        num_read += len(lines)
        yield [line.removesuffix("\r") for line in lines]


def check_first_block(path: Path | str, block: bytes) -> bytes:
    """Check encoding and line ends of a text by its first block; remove a byte order mark."""
    _check_encoding(path, block)
    _check_ends(path, b"\n" in block, b"\r" in block.rstrip(b"\r"))
    return block.removeprefix(BOM_UTF8)


def check_aligned(source: Path, num_sources: int, target: Path, num_targets: int) -> None:
    """Refuse parallel files with different numbers of lines."""
    if num_sources != num_targets:
        raise UserError(
            f"{source} has {num_sources} lines, but {target} has {num_targets}; line n of one must "
            "translate line n of the other"
        )


def change_error(path: Path) -> UserError:
    """Return the error for a file that changed while it was read."""
    return UserError(f"{path} changed while it was read; start again when no program writes to it")


def _check_encoding(path: Path | str, first_block: bytes) -> None:
    # Latin text in UTF-16 has a zero byte in every character.
    many_zeros = 4 * first_block.count(0) > len(first_block)
    if many_zeros or first_block.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        raise UserError(
            f"{path} is not UTF-8 text, but seems to be UTF-16; convert it with: "
            "iconv -f UTF-16 -t UTF-8"
        )


def _check_ends(path: Path | str, has_newlines: bool, has_lone_returns: bool) -> None:
    """Refuse a text whose lines end only with carriage returns: it would read as one line."""
    if has_lone_returns and not has_newlines:
        raise UserError(
            f"{path} ends its lines only with carriage returns; convert it with: tr '\\r' '\\n'"
        )
