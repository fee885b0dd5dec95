"""Read and write lines of files, pipes and terminals."""

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from t2t_jax.data.lines import DAMAGE, Lines, blocks_of, decode_lines, open_text
from t2t_jax.errors import UserError, way_out_of
from t2t_jax.system.atomic_file import NamedFile, errors_named, open_atomic
from t2t_jax.system.bucket import BucketPath
from t2t_jax.system.program import is_closed

_LINES_AT_ONCE = 10_000


@contextlib.contextmanager
def open_input(path: Path | None) -> Iterator[Iterator[list[str]]]:
    """Open a file (plain or `.gz`), or the standard input if `path` is None.

    The context yields an iterator over lists of up to 10,000 decoded lines, or of one line from a
    terminal.
    """
    if path is None and is_closed("stdin"):
        raise UserError("the standard input is closed; name a file with --input")
    display_name = path or "the standard input"
    try:
        binary_file = open_text(path) if path else sys.stdin.buffer
    except OSError as error:
        raise _cannot_read(display_name, error) from error
    with binary_file as stream:
        chunk_size = 1 if stream.isatty() else _LINES_AT_ONCE
        yield decode_lines(_blocks(stream, chunk_size, display_name), display_name)


def _blocks(stream: Lines, chunk_size: int, display_name: Path | str) -> Iterator[bytes]:
    try:
        yield from blocks_of(stream, display_name, chunk_size)
    except DAMAGE as error:
        remedy = "it is damaged or no gzip file; compress it again"
        raise UserError(f"cannot read {display_name}: {error}; {remedy}") from error
    except OSError as error:
        raise _cannot_read(display_name, error) from error


@contextlib.contextmanager
def open_output(path: Path | None) -> Iterator[BinaryIO]:
    """Open a file that is written atomically, or the standard output if `path` is None.

    An output that is not writable raises a `UserError` at once, before any computation.
    """
    if path is None:
        check_stdout_open("name a file with --output")
        yield sys.stdout.buffer
        return
    with errors_named(path):  # its name may be too long, or the working directory removed
        target = path if isinstance(path, BucketPath) else Path(os.path.realpath(path))
        is_special = target.exists() and not target.is_file()
    if circular_link := next(filter(os.path.islink, (target, *target.parents)), None):
        raise UserError(f"cannot write {circular_link}: it is a link that leads back to itself")
    if is_special:  # a device or a pipe, which must not be replaced
        with errors_named(target):
            device_writer = io.BufferedWriter(NamedFile(target, "wb"))
        with device_writer as file:
            yield file
        return
    with open_atomic(target) as file:
        yield file


def check_stdout_open(remedy: str = "print it, or write it to a file") -> None:
    """Raise a `UserError` that ends with `remedy` if the standard output is closed."""
    if is_closed("stdout"):
        raise UserError(f"the standard output is closed, so the result would be lost; {remedy}")


def _cannot_read(display_name: Path | str, error: OSError) -> UserError:
    return UserError(f"cannot read {display_name}: {error.strerror or error}; {way_out_of(error)}")
