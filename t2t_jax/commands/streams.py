"""Lines in and lines out: files, pipes and terminals."""

import contextlib
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Literal

from t2t_jax.atomic_file import writing_whole
from t2t_jax.errors import UserError

_LINES_AT_ONCE = 10_000


@contextlib.contextmanager
def reading(path: Path | None) -> Iterator[Iterator[list[str]]]:
    r"""The lines of a file, or of the standard input, some thousands at a time.

    Only \n ends a line. Somebody who types lines has each one answered.

    Raises:
      UserError: the file cannot be opened, or, later, a line is not UTF-8.
    """
    with _open(path, "rb") if path else sys.stdin.buffer as stream:
        yield _chunks(stream, 1 if stream.isatty() else _LINES_AT_ONCE)


def _chunks(lines: Iterable[bytes], at_once: int) -> Iterator[list[str]]:
    remaining, done = iter(lines), 0
    while chunk := list(islice(remaining, at_once)):
        yield _decode(chunk, first_line=done + 1)
        done += len(chunk)


@contextlib.contextmanager
def writing(path: Path | None) -> Iterator[BinaryIO]:
    """The standard output, or a file that takes its name once it is complete."""
    if path is None:
        yield sys.stdout.buffer
        return
    path = path.resolve()
    if path.exists() and not path.is_file():  # a device or a pipe; nothing to put in its place
        with _open(path, "wb") as file:
            yield file
        return
    with writing_whole(path) as file:
        yield file


def _open(path: Path, mode: Literal["rb", "wb"]) -> BinaryIO:
    try:
        return path.open(mode)
    except OSError as error:
        raise UserError(f"cannot open {path}: {error.strerror}") from error


def _decode(chunk: list[bytes], first_line: int) -> list[str]:
    texts = []
    for number, line in enumerate(chunk, first_line):
        try:
            texts.append(line.removesuffix(b"\n").decode())
        except UnicodeDecodeError as error:
            raise UserError(
                f"line {number} of the input is not UTF-8 (byte {error.start + 1} of the line); "
                "convert it to UTF-8"
            ) from error
    return texts
