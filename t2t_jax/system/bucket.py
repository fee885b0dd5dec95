"""Paths in object stores: `s3://bucket/name` and `gs://bucket/name`.

`as_path` makes a path from a name. The program uses a `BucketPath` like any `Path`. Object stores
differ from file systems:

- A directory is a common prefix of object names. An empty directory is an object `.directory`.
- Writing an object is atomic. Each append uploads the whole object again.
- Opening an object downloads it first.

s3fs and gcsfs use the settings and credentials of the stores' command-line tools.
"""

import errno
import functools
import glob
import io
import logging
import os
import re
import stat
import tempfile
from collections.abc import Callable, Container, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from itertools import islice
from pathlib import Path, PosixPath
from typing import Any, TypeAlias

from t2t_jax.errors import UserError, in_one_line, needs_extra
from t2t_jax.system.folders import user_folder

_STORE_OF_SCHEME = {"s3": "s3", "s3a": "s3", "s3n": "s3", "gs": "gs", "gcs": "gs"}
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*):(//?)", re.IGNORECASE)
_CREDENTIALS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run: aws configure",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS, or run: gcloud auth application-default login",
}
_ADDRESSES = {
    "s3": "check the network, and AWS_ENDPOINT_URL if the store is not Amazon's",
    "gs": "check the network",
}
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_CHECKSUMS = "md5Hash", "crc32c", "ETag", "etag"
_AT_ONCE = 8  # concurrent uploads or downloads
_EMPTY_DIRECTORY = ".directory"
_Name: TypeAlias = str | None  # of an encoding, an error handler or a newline


def as_path(name: str | os.PathLike[str]) -> Path:
    """Make a `BucketPath` from `s3://bucket/name` or `gs://bucket/name`, or else a `Path`.

    `system.opening.resolve_run` also resolves runs on the hub and in archives.

    Raises:
      UserError: the name is on the hub, which is read-only, or in an unknown store.
    """
    text = os.fspath(name)
    if text.startswith("hf:/"):
        raise UserError(
            f"{text} is on the hub, where runs are read-only; name a directory or a bucket, and "
            "upload the run with t2t-jax publish"
        )
    # `Path` collapses the two slashes of such a name into one.
    if match := _SCHEME.match(text):
        scheme, slashes = match.groups()
        store = _STORE_OF_SCHEME.get(scheme.lower())
        if slashes == "//" or (isinstance(name, Path) and store):
            if scheme in _CREDENTIALS:
                return BucketPath(text)
            path = text[match.end() :].lstrip("/")
            hint = f"; did you mean {store}://{path}?" if store else ""
            raise UserError(
                f"{scheme}://{path} is in no known store; name a path without {scheme}://, or "
                f"s3://BUCKET/NAME, gs://BUCKET/NAME, or hf://NAME/MODEL to read a run{hint}"
            )
    return name if isinstance(name, Path) else Path(name)


def on_this_machine(path: Path) -> Path:
    """Map a path in a bucket to a path in the user's state directory; keep any other path."""
    if not isinstance(path, BucketPath):
        return path
    return user_folder("state") / "buckets" / str(path).replace("://", "/", 1)


@contextmanager
def local_copy(path: Path) -> Iterator[Path]:
    """Yield a local path itself, or a temporary local copy of an object in a bucket."""
    if not isinstance(path, BucketPath):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="t2t_jax-") as folder:
        copy = Path(folder) / path.name
        fetch_files({copy: path})
        yield copy


def content_of(path: Path) -> bytes | None:
    """Read a file or an object; None if it is missing."""
    with suppress(FileNotFoundError):
        return path.read_bytes()
    return None


def check_local(path: Path, remedy: str | None = None) -> None:
    """Raise a `UserError` that ends with `remedy` if a path is in a bucket."""
    if isinstance(path, BucketPath):
        default_remedy = "name a directory on this machine, and copy it into the bucket afterwards"
        raise UserError(f"{path} is in a bucket; {remedy or default_remedy}")


def is_directory(path: Path) -> bool:
    """Return whether a path is a directory; False for an invalid name."""
    return path.is_dir() if isinstance(path, BucketPath) else os.path.isdir(path)


class BucketPath(PosixPath):
    """An object in a store, or a directory: a common prefix of objects.

    Methods raise the errors of `Path`, and `OSError(EREMOTEIO)` if a connection fails. They raise a
    `UserError` for a missing bucket, bad credentials and other errors of the library.
    """

    def __str__(self) -> str:
        """Return the name with two slashes: `s3://bucket/name`."""
        return super().__str__().replace(":/", "://", 1)

    @property
    def _key(self) -> str:
        return str(self).partition("://")[2]

    @property
    def _store(self) -> Any:
        return _file_system(self.parts[0].rstrip(":"), os.getpid())

    def _call_store(self, method: str, *arguments: object, **options: object) -> Any:
        with _reaching(self):
            return getattr(self._store, method)(self._key, *arguments, **options)

    def absolute(self) -> "BucketPath":
        """Return the path, which never depends on the working directory."""
        return self

    def resolve(self, strict: bool = False) -> "BucketPath":
        """Return the path, because a store has no symbolic links."""
        return self

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Return the file type, the size and the modification time."""
        info = self._call_store("info")
        file_type = stat.S_IFDIR if info["type"] == "directory" else stat.S_IFREG
        modified = info.get("LastModified") or info.get("mtime")
        nanoseconds = int(modified.timestamp() * 1e9) if hasattr(modified, "timestamp") else 0
        size, seconds = int(info.get("size") or 0), nanoseconds // 10**9
        fields = (file_type | 0o600, 0, 0, 1, 0, 0, size, seconds, seconds, seconds)
        return os.stat_result(fields, {"st_mtime_ns": nanoseconds})

    def checksum(self) -> str:
        """Return the store's hash of the object's content."""
        info = self._call_store("info")
        return str(next(info[name] for name in _CHECKSUMS if info.get(name)))

    def exists(self, *, follow_symlinks: bool = True) -> bool:
        """Return whether there is an object with this name, or below it."""
        # `Path.exists` would mistake a `UserError`, which is a `ValueError`, for a missing file.
        return self._kind() is not None

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Return whether there is an object with this name."""
        return self._kind() == stat.S_IFREG

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Return whether there is an object below this name."""
        return self._kind() == stat.S_IFDIR

    def _kind(self) -> int | None:
        with suppress(FileNotFoundError):
            return stat.S_IFMT(self.stat().st_mode)
        return None

    def iterdir(self) -> Generator["BucketPath", None, None]:
        """Yield the objects and directories directly below this name."""
        keys = self._call_store("ls", detail=False)
        names = sorted({key.rstrip("/").rpartition("/")[2] for key in keys})
        yield from (self / name for name in names)

    def glob(self, pattern: str) -> Generator["BucketPath", None, None]:
        """Yield the objects below this name that match a pattern."""
        # A directory may have a name such as `grid[1]`.
        with _reaching(self):
            keys = self._store.glob(f"{glob.escape(self._key)}/{pattern}")
        yield from (BucketPath(f"{self.parts[0]}//{key}") for key in sorted(keys))

    def objects(self) -> list["BucketPath"]:
        """List all objects below this name, at any depth."""
        keys = self._call_store("find")
        # Web consoles of stores create empty objects whose names end in a slash.
        return [BucketPath(f"{self.parts[0]}//{key}") for key in keys if key[-1] != "/"]

    def open(  # type: ignore[override]
        self, mode: str = "r", buffering: int = -1, encoding: str | None = None
    ) -> Any:
        """Open the object for appending, or a local copy for reading."""
        if mode.startswith("a"):
            raw = _Appended(self)
            if "b" in mode:
                return raw
            return io.TextIOWrapper(io.BufferedWriter(raw), encoding=encoding, line_buffering=True)
        if not mode.startswith("r") or "+" in mode:
            raise io.UnsupportedOperation(f"cannot open {self} with mode {mode}; call write_bytes")
        with local_copy(self) as copy:
            # The open file stays readable after the copy is removed.
            reader = io.BufferedReader(io.FileIO(copy))
        return reader if "b" in mode else io.TextIOWrapper(reader, encoding=encoding)

    def read_bytes(self) -> bytes:
        """Read the content of the object."""
        return bytes(self._call_store("cat_file"))

    def read_text(self, encoding: _Name = None, errors: _Name = None, newline: _Name = None) -> str:
        """Read the content of the object as text."""
        return self.read_bytes().decode(encoding or "utf-8", errors or "strict")

    def write_bytes(self, data: Any, mode: str = "overwrite") -> int:
        """Write the object atomically: a reader sees either the old or the new content.

        Args:
          mode: "create" raises `FileExistsError` if the object exists; "overwrite" replaces it.
        """
        self._call_store("pipe_file", bytes(data), mode=mode)
        return len(data)

    def write_text(
        self, data: str, encoding: _Name = None, errors: _Name = None, newline: _Name = None
    ) -> int:
        """Write text to the object atomically, for Orbax."""
        self.write_bytes(data.encode(encoding or "utf-8", errors or "strict"))
        return len(data)

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        """Make an empty directory: an object `.directory` below this name."""
        if not self.exists():
            (self / _EMPTY_DIRECTORY).write_bytes(b"")
        elif not exist_ok:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(self))

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove the object."""
        try:
            self._call_store("rm_file")
        except FileNotFoundError:
            if not missing_ok:
                raise

    def rename(self, target: str | os.PathLike[str]) -> "BucketPath":
        """Copy the object or all objects below it, then remove the originals."""
        destination = BucketPath(target)
        paths = self.objects()
        for path in paths:
            path._call_store("cp_file", destination._key + path._key.removeprefix(self._key))
        remove(paths)
        return destination


def send_tree(local: Path, target: BucketPath, last: str) -> None:
    """Upload the files below a local directory to `target`, the file `last` after all others."""
    files = [path for path in local.rglob("*") if path.is_file() and path != local / last]
    send_files({path: target / path.relative_to(local) for path in files})
    send_files({local / last: target / last})


def fetch_tree(source: BucketPath, local: Path, folders: Container[str] | None = None) -> None:
    """Download the objects below a name as files below a local directory.

    Args:
      folders: the directories in `source` to download, besides its files; None means all.
    """
    names = {path: str(path).removeprefix(f"{source}/").split("/") for path in source.objects()}
    fetch_files(
        {
            local.joinpath(*parts): path
            for path, parts in names.items()
            if folders is None or len(parts) == 1 or parts[0] in folders
        }
    )


def send_files(files: Mapping[Path, BucketPath]) -> None:
    """Upload local files as objects, in any order; each object is written atomically."""
    _transfer("put", files, lambda: None)


def fetch_files(files: Mapping[Path, BucketPath], check: Callable[[], None] = lambda: None) -> None:
    """Download objects as local files, in any order.

    Args:
      check: a function to call every few files; its errors end the downloads.
    """
    _transfer("get", files, check)


def _transfer(verb: str, files: Mapping[Path, BucketPath], check: Callable[[], None]) -> None:
    pairs = iter(files.items())
    # After an error, batches by fsspec would leave coroutines running.
    while part := list(islice(pairs, _AT_ONCE)):
        check()
        # In two lists, fsspec takes names literally, even with wildcard characters.
        sides = [str(local) for local, _ in part], [path._key for _, path in part]
        with _reaching(part[0][1]):
            getattr(part[0][1]._store, verb)(*sides[:: 1 if verb == "put" else -1], batch_size=-1)


def remove(objects: Iterable[BucketPath]) -> None:
    """Remove objects of one bucket; ignore missing objects."""
    objects = list(objects)
    if objects:
        with _reaching(objects[0]), suppress(FileNotFoundError):
            objects[0]._store.rm([glob.escape(path._key) for path in objects])


class _Appended(io.RawIOBase):
    """An object open for appending: each write uploads the whole object."""

    def __init__(self, path: BucketPath) -> None:
        self._path, self._content = path, content_of(path) or b""

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        self._content += bytes(data)
        self._path.write_bytes(self._content)
        return len(data)


@functools.cache
def _file_system(scheme: str, process: int) -> Any:
    """Connect to a store once per process, because forks cannot share connections."""
    package, extra = {"s3": ("s3fs", "s3"), "gs": ("gcsfs", "gcs")}[scheme]
    with needs_extra(extra, f"{scheme}://"):
        import_module(package)
        import fsspec
    # The library also raises these errors, so do not log them.
    logging.getLogger(package).setLevel(logging.CRITICAL)
    # Do not cache listings, also in Orbax, so that writes of other processes are visible.
    fsspec.config.conf.setdefault("gcs", {})["use_listings_cache"] = False
    settings = {"config_kwargs": {"connect_timeout": 10}} if scheme == "s3" else {}
    return fsspec.filesystem(scheme, use_listings_cache=False, **settings)


@contextmanager
def _reaching(path: BucketPath) -> Iterator[None]:
    """Convert errors of a store library to `OSError` with the path, or to `UserError`."""
    scheme, name = path.parts[0].rstrip(":"), str(path)
    try:
        yield
    except (UserError, FileExistsError):
        raise
    except FileNotFoundError as error:
        bucket = "/".join(path.parts[1:2])
        # For a missing name, the gcsfs error has the URL of the bucket or of the object.
        bucket_url = rf"b/{re.escape(bucket)}/o($|\?)"
        if "bucket does not exist" in str(error) or re.search(bucket_url, str(error)):
            raise UserError(
                f"there is no bucket {scheme}://{bucket}; make it, or check its name"
            ) from error
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name) from error
    except Exception as error:  # each store library raises its own classes
        kind = type(error).__name__
        if isinstance(error, PermissionError) or str(error).startswith("Forbidden"):  # of gcsfs
            raise PermissionError(errno.EACCES, _error_text(error), name) from error
        status = (getattr(error, "code", None) or 0) if kind == "HttpError" else 0  # of Google
        is_connection_error = isinstance(error, OSError) and not kind.startswith("Client")
        if is_connection_error or status == 429 or status >= 500:
            if getattr(error, "errno", None) in _NO_ROOM:  # the local disk is full
                raise
            raise OSError(errno.EREMOTEIO, _error_text(error), name) from error
        remedy = (_CREDENTIALS if status == 401 or "Credential" in kind else _ADDRESSES)[scheme]
        raise UserError(f"{name} cannot be reached: {_error_text(error)}; {remedy}") from error


def _error_text(error: Exception) -> str:
    return in_one_line(error)[:200].rstrip(".") or type(error).__name__
