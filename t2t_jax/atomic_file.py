"""Files that are there whole or not at all: the one way in which a file is written."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from t2t_jax.errors import UserError

_unfinished: set[Path] = set()


def write_whole(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file, so that a reader, or a process killed midway, never sees a part of it.

    Raises:
      UserError: it cannot be written; what was there before is still there.
    """
    with writing_whole(path) as file:
        file.write(content)


@contextmanager
def writing_whole(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file to write to, which takes its name once it is complete and on the disk.

    It is written beside its place under a hidden name that holds the number of this process. After
    an error in the `with` block, and when a signal ends the program, that file is removed.

    Raises:
      UserError: the file cannot be written; what was there before is still there.
    """
    path = Path(path)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    _unfinished.add(unfinished)
    try:
        file = _open(unfinished, path)
        try:
            yield file
        except BaseException:
            with suppress(OSError):
                file.close()
            raise
        try:
            _finish(file, unfinished, path)
        except OSError as error:
            raise _cannot_write(path, error) from error
    finally:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
        _unfinished.discard(unfinished)


def remove_unfinished() -> None:
    """Remove the files that are being written, before a signal ends the program."""
    for unfinished in list(_unfinished):
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)


def _open(unfinished: Path, path: Path) -> BinaryIO:
    try:
        return unfinished.open("wb")
    except OSError as error:
        raise _cannot_write(path, error) from error


def _finish(file: BinaryIO, unfinished: Path, path: Path) -> None:
    with file:
        file.flush()
        # Without it, a power failure after the renaming could leave an empty file.
        os.fsync(file.fileno())
    unfinished.replace(path)


def _cannot_write(path: Path, error: OSError) -> UserError:
    reason = error.strerror or str(error)
    if not path.parent.is_dir():
        return UserError(f"cannot write {path}: there is no directory {path.parent}; make it first")
    return UserError(f"cannot write {path}: {reason}; check the place, its permissions and room")
