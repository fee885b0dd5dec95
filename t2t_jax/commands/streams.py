"""Readers and writers of lines, for files, pipes and terminals."""

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from t2t_jax.data.lines import DAMAGE, Lines, blocks_of, decoded, open_text
from t2t_jax.errors import UserError, way_out_of
from t2t_jax.system.atomic_file import NamedFile, errors_named, writing_whole
from t2t_jax.system.bucket import BucketPath
from t2t_jax.system.program import is_closed

_LINES_AT_ONCE = 10_000


@contextlib.contextmanager
def reading(path: Path | None) -> Iterator[Iterator[list[str]]]:
    """Open a file, or the standard input, and yield its lines some thousands at a time.

    They are decoded as `t2t_jax.data.lines` says. A terminal gives its lines one at a time, so that
    each is answered. A file is unpacked if its name ends in `.gz`.
    """
    if path is None and is_closed("stdin"):
        raise UserError("the standard input is closed; name a file with --input")
    shown = path or "the standard input"
    try:
        opened = open_text(path) if path else sys.stdin.buffer
    except OSError as error:
        raise _cannot_read(shown, error) from error
    with opened as stream:
        at_once = 1 if stream.isatty() else _LINES_AT_ONCE
        yield decoded(_blocks(stream, at_once, shown), shown)


def _blocks(stream: Lines, at_once: int, shown: Path | str) -> Iterator[bytes]:
    try:
        yield from blocks_of(stream, shown, at_once)
    except DAMAGE as error:
        way_out = "it is damaged, or no gzip file: pack it again"
        raise UserError(f"cannot read {shown}: {error}; {way_out}") from error
    except OSError as error:
        raise _cannot_read(shown, error) from error


@contextlib.contextmanager
def writing(path: Path | None) -> Iterator[BinaryIO]:
    """Open the standard output, or a file that gets its name once it is complete.

    An output that cannot be written is refused before anything is computed.
    """
    if path is None:
        check_heard("name a file with --output")
        yield sys.stdout.buffer
        return
    with errors_named(path):  # its name may be too long, and the working directory be gone
        target = path if isinstance(path, BucketPath) else Path(os.path.realpath(path))
        is_special = target.exists() and not target.is_file()
    if loop := next(filter(os.path.islink, (target, *target.parents)), None):
        raise UserError(f"cannot write {loop}: it is a link that leads back to itself")
    if is_special:  # a device, a pipe or the like, which must not be replaced
        with errors_named(target):
            special = io.BufferedWriter(NamedFile(target, "wb"))
        with special as file:
            yield file
        return
    with writing_whole(target) as file:
        yield file


def check_heard(way_out: str = "print it, or write it to a file") -> None:
    """Refuse to print a result while the standard output is closed; `way_out` says what to do."""
    if is_closed("stdout"):
        raise UserError(f"the standard output is closed, so nobody sees the result; {way_out}")


def _cannot_read(shown: Path | str, error: OSError) -> UserError:
    return UserError(f"cannot read {shown}: {error.strerror or error}; {way_out_of(error)}")
