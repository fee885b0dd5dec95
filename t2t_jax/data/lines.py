r"""Lines of text files: UTF-8, plain or gzip. Only \n ends one: str.splitlines knows ten ends more.

A carriage return before it belongs to the end.
"""

import gzip
import hashlib
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from t2t_jax.errors import UserError

_BLOCK_LINES = 1000


@contextmanager
def _open(path: Path) -> Iterator[gzip.GzipFile | io.BufferedReader]:
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            yield file
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} cannot be read: {error}") from error


def survey(path: Path) -> tuple[int, str]:
    """Number of lines, and the hash of the (uncompressed) content, in one pass.

    Raises:
      UserError: the file is missing or damaged.
    """
    digest, count, block = hashlib.sha256(), 0, b"\n"
    with _open(path) as file:
        while following := file.read(1 << 20):
            block = following
            digest.update(block)
            count += block.count(b"\n")
    return count + (not block.endswith(b"\n")), digest.hexdigest()


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a file, without their ends.

    Raises:
      UserError: the file is missing or damaged, or a line is not UTF-8.
    """
    read = 0
    with _open(path) as file:
        while block := b"".join(islice(file, _BLOCK_LINES)):  # decoding line by line is slow
            lines = _decode(block, path, read)
            read += len(lines)
            yield from lines


def _decode(block: bytes, path: Path, lines_before: int) -> list[str]:
    try:
        lines = block.decode().removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        line = lines_before + block.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path} line {line} is not UTF-8; convert the file to UTF-8") from error
    return [line.removesuffix("\r") for line in lines]
