"""Write files, directories and objects atomically: complete, or not at all."""

import io
import os
import secrets
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from t2t_jax.errors import UserError, way_out_of
from t2t_jax.system.bucket import BucketPath, as_path, check_local, send_files
from t2t_jax.system.fetched_path import check_own

_unfinished: set[Path] = set()
_opening = threading.Lock()


class NamedFile(io.FileIO):
    """A file whose write errors include its name."""

    def __init__(self, path: str | os.PathLike[str], mode: str, label: object = None) -> None:
        """Open the file; errors name it by `label`, or else by its path."""
        super().__init__(path, mode)
        self._label = str(path if label is None else label)

    def write(self, data: Any, /) -> int:
        """Write bytes; an `OSError` names the file by its label."""
        try:
            return super().write(data)
        except OSError as error:
            error.filename = error.filename or self._label
            raise


def write_whole(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file atomically: a reader sees either the old or the new content.

    Raises:
      UserError: the file cannot be written; its old content is kept.
    """
    with open_atomic(path) as file:
        file.write(content)


def open_atomic(path: str | os.PathLike[str]) -> AbstractContextManager[BinaryIO]:
    """Open a hidden temporary file, and rename it to `path` at the end of the `with` block.

    An error in the block, or a signal that ends the program, removes the temporary file. For a path
    in a bucket, the file is uploaded at the end.

    Raises:
      UserError: the file cannot be written; its old content is kept.
    """
    path = as_path(path)
    check_own(path)
    return _upload(path) if isinstance(path, BucketPath) else _write_and_rename(path)


@contextmanager
def writing_directory(path: Path) -> Iterator[Path]:
    """Make a hidden temporary directory, and rename it to `path` at the end of the `with` block.

    An error in the block, or a signal that ends the program, removes the directory.

    Raises:
      UserError: `path` cannot be made, is not empty, or is in a bucket.
    """
    check_local(path)
    check_own(path)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UserError(f"{path} exists and is not empty; choose another directory")
    with removed_at_end(_hidden_name(path.absolute())) as temporary_path, errors_named(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with _opening:
            temporary_path.mkdir()
        yield temporary_path
        temporary_path.replace(path)


def check_writable(directory: Path) -> None:
    """Raise a `UserError` if a directory or its first existing parent is not writable.

    Only check that a bucket exists, not its permissions.
    """
    check_own(directory)
    if isinstance(directory, BucketPath):
        directory.exists()  # raises a UserError if there is no such bucket
        return
    parent = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise UserError(
            f"cannot write {directory}: {parent} is not a writable directory; choose another"
        )


def check_file_writable(path: Path) -> None:
    """Raise a `UserError` early if the directory of an output file is missing or not writable."""
    check_writable(path.parent)
    if not isinstance(path, BucketPath) and not path.parent.is_dir():
        raise cannot_write(path, FileNotFoundError())


@contextmanager
def _upload(path: BucketPath) -> Iterator[BinaryIO]:
    """Open a local temporary file, and upload it to a bucket at the end of the block."""
    with (
        tempfile.NamedTemporaryFile(prefix="t2t_jax-", delete=False) as file,
        removed_at_end(Path(file.name)) as temporary_path,
    ):
        yield file  # type: ignore[misc]
        file.flush()
        with errors_named(path):
            send_files({temporary_path: path})


@contextmanager
def _write_and_rename(path: Path) -> Iterator[BinaryIO]:
    """Open a hidden temporary file; at the end, sync it to disk and rename it to `path`."""
    with removed_at_end(_hidden_name(path)) as temporary_path:
        with errors_named(path), _opening:
            file = io.BufferedWriter(NamedFile(temporary_path, "xb", label=path))
        try:
            yield file
        except BaseException as error:
            with suppress(OSError):
                file.close()
            if isinstance(error, OSError) and error.filename == str(path):
                raise cannot_write(path, error) from error
            raise
        with errors_named(path):
            with file:
                file.flush()
                # Without it, a power failure after the renaming could leave an empty file.
                os.fsync(file.fileno())
            temporary_path.replace(path)


@contextmanager
def removed_at_end(path: Path) -> Iterator[Path]:
    """Remove a file or an object at the end of a block or when a signal ends the program."""
    _unfinished.add(path)
    try:
        yield path
    finally:
        _remove(path)
        _unfinished.discard(path)


def remove_unfinished() -> None:
    """Remove all temporary files before a signal ends the program; block new ones."""
    _opening.acquire(timeout=1)  # never released
    for temporary_path in list(_unfinished):
        _remove(temporary_path)


def _remove(temporary_path: Path) -> None:
    with suppress(OSError, UserError):  # UserError: the store is unreachable
        if temporary_path.is_dir():
            shutil.rmtree(temporary_path, ignore_errors=True)
        temporary_path.unlink(missing_ok=True)


def _hidden_name(path: Path) -> Path:
    name = os.fsdecode(os.fsencode(path.name)[:200])
    return path.parent / f".{name}.{os.getpid()}-{secrets.token_hex(4)}.tmp"


@contextmanager
def errors_named(path: Path) -> Iterator[None]:
    """Convert an `OSError` in a block to a `UserError` that names the file and a remedy."""
    try:
        yield
    except OSError as error:
        raise cannot_write(path, error) from error


def cannot_write(path: str | os.PathLike[str], error: OSError) -> UserError:
    """Make the error for a file that cannot be written, with a remedy."""
    path = as_path(path)
    parent = path.parent
    if not isinstance(path, BucketPath) and not os.path.isdir(parent):
        return UserError(f"cannot write {path}: there is no directory {parent}; make it first")
    return UserError(f"cannot write {path}: {error.strerror or error}; {way_out_of(error)}")
