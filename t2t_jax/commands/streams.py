"""Lines in and lines out: files, pipes and terminals."""

import contextlib
import io
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from t2t_jax.errors import UserError, way_out_of
from t2t_jax.system.atomic_file import NamedFile, cannot_write, writing_whole
from t2t_jax.system.program import is_closed

_LINES_AT_ONCE = 10_000


@contextlib.contextmanager
def reading(path: Path | None) -> Iterator[Iterator[list[str]]]:
    r"""The lines of a file, or of the standard input, some thousands at a time.

    Only \n ends a line. Somebody who types lines has each one answered.

    Raises:
      UserError: the file cannot be opened, or, later, cannot be read, or a line is not UTF-8.
    """
    if path is None and is_closed("stdin"):
        raise UserError("the standard input is closed; name a file with --input")
    shown = path or "the standard input"
    with _readable(path) if path else sys.stdin.buffer as stream:
        yield _chunks(stream, 1 if stream.isatty() else _LINES_AT_ONCE, shown)


def _chunks(lines: Iterable[bytes], at_once: int, shown: Path | str) -> Iterator[list[str]]:
    remaining, done = iter(lines), 0
    while chunk := _next_chunk(remaining, at_once, shown):
        yield _decode(chunk, first_line=done + 1)
        done += len(chunk)


def _next_chunk(lines: Iterator[bytes], at_once: int, shown: Path | str) -> list[bytes]:
    try:
        return list(islice(lines, at_once))
    except OSError as error:
        raise _cannot_read(shown, error) from error


@contextlib.contextmanager
def writing(path: Path | None) -> Iterator[BinaryIO]:
    """The standard output, or a file that takes its name once it is complete.

    Raises:
      UserError: it cannot be written, which is known before anything is.
    """
    if path is None:
        check_heard("name a file with --output")
        yield sys.stdout.buffer
        return
    path = _behind_links(path)
    if _is_special(path):
        with _writable(path) as file:
            yield file
        return
    with writing_whole(path) as file:
        yield file


def check_heard(way_out: str) -> None:
    """Refuse to do work whose result is printed, where the standard output is closed.

    Raises:
      UserError: it is.
    """
    if is_closed("stdout"):
        raise UserError(f"the standard output is closed, so nobody sees the result; {way_out}")


def _behind_links(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:  # the latter for links in a circle
        raise UserError(f"cannot write {path}: it is a link that leads back to itself") from error


def _is_special(path: Path) -> bool:
    """Whether it is a device, a pipe or the like, which nothing can be put in the place of."""
    try:
        return path.exists() and not path.is_file()
    except OSError as error:  # its name is too long
        raise cannot_write(path, error) from error


def _readable(path: Path) -> BinaryIO:
    try:
        stream = path.open("rb")
    except OSError as error:
        raise _cannot_read(path, error) from error
    return stream


def _cannot_read(shown: Path | str, error: OSError) -> UserError:
    return UserError(f"cannot read {shown}: {error.strerror or error}; {way_out_of(error)}")


def _writable(path: Path) -> BinaryIO:
    try:
        return io.BufferedWriter(NamedFile(path, "wb"))
    except OSError as error:
        raise cannot_write(path, error) from error


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
