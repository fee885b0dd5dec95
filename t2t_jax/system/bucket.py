"""Paths in object stores: `s3://bucket/name` and `gs://bucket/name`, beside those of file systems.

`as_path` makes a path from a name. The rest of the program uses both kinds like any `Path`. An
object store differs from a file system:

- A directory is a common prefix of object names. An empty one is an object `.directory`.
- An object is written whole, or not at all, so there is nothing to rename. Each append writes the
  whole object again.
- Readers download an object to this machine first.

fsspec reaches the stores through its packages s3fs and gcsfs. They read the settings, the
credentials and the address of the store from the same sources as the store's tools.
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
_AT_ONCE = 8  # objects that are sent or fetched at the same time
_EMPTY_DIRECTORY = ".directory"
_Name: TypeAlias = str | None  # of an encoding, of its treatment of errors, or of a line's end


def as_path(name: str | os.PathLike[str]) -> Path:
    """Return the path of a file, a directory or an object, by its name.

    A name `s3://bucket/name` or `gs://bucket/name` gives a `BucketPath`, another an ordinary path.
    `system.opening.opened` takes the names of runs on the hub and in archives too.

    Raises:
      UserError: the name is that of a run on the hub, which is read-only, or of an unknown store.
    """
    text = os.fspath(name)
    if text.startswith("hf:/"):
        raise UserError(
            f"{text} is on the hub, where runs are only read; name a directory or a bucket, and "
            "send the run there by t2t-jax publish"
        )
    # An ordinary path that was made of such a name has lost one of the two slashes.
    if match := _SCHEME.match(text):
        scheme, slashes = match.groups()
        store = _STORE_OF_SCHEME.get(scheme.lower())
        if slashes == "//" or (isinstance(name, Path) and store):
            if scheme in _CREDENTIALS:
                return BucketPath(text)
            rest = text[match.end() :].lstrip("/")
            hint = f"; did you mean {store}://{rest}?" if store else ""
            raise UserError(
                f"{scheme}://{rest} is in no known store; name a path without {scheme}://, or "
                f"s3://BUCKET/NAME, gs://BUCKET/NAME, or hf://NAME/MODEL to read a run{hint}"
            )
    return name if isinstance(name, Path) else Path(name)


def on_this_machine(path: Path) -> Path:
    """Return a local path for files beside a path that cannot be in a bucket.

    It is the path itself in a file system; for a bucket, it is a path in the user's state
    directory, the same at every call.
    """
    if not isinstance(path, BucketPath):
        return path
    return user_folder("state") / "buckets" / str(path).replace("://", "/", 1)


@contextmanager
def local_copy(path: Path) -> Iterator[Path]:
    """Return a context with a local file: for an object a copy, which the end removes.

    Raises:
      FileNotFoundError: there is no such object.
    """
    if not isinstance(path, BucketPath):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="t2t_jax-") as folder:
        fetched = Path(folder) / path.name
        fetch_files({fetched: path})
        yield fetched


def content_of(path: Path) -> bytes | None:
    """Return the content of a file or an object; None if there is none."""
    with suppress(FileNotFoundError):
        return path.read_bytes()
    return None


def check_local(path: Path, way_out: str | None = None) -> None:
    """Refuse a path in a bucket; the default way out is that of a directory to be made."""
    if isinstance(path, BucketPath):
        usual = "name a directory of this machine, and copy it into the bucket afterwards"
        raise UserError(f"{path} is in a bucket; {way_out or usual}")


def is_directory(path: Path) -> bool:
    """Return whether there is a directory; False for an invalid name."""
    return path.is_dir() if isinstance(path, BucketPath) else os.path.isdir(path)


class BucketPath(PosixPath):
    """An object of a store, or a directory: a common prefix of several objects.

    It has the methods of `Path` that the program uses on paths of the user. They raise the errors
    of an ordinary path, and a `UserError` if the store, the bucket or the credentials are missing.
    """

    def __str__(self) -> str:
        """Return the original name: `s3://bucket/name`."""
        return super().__str__().replace(":/", "://", 1)

    @property
    def _key(self) -> str:
        return str(self).partition("://")[2]

    @property
    def _store(self) -> Any:
        return _file_system(self.parts[0].rstrip(":"), os.getpid())

    def _request(self, method: str, *arguments: object, **options: object) -> Any:
        """Call a method of the store with the key of this object, and further arguments."""
        with _reaching(self):
            return getattr(self._store, method)(self._key, *arguments, **options)

    def absolute(self) -> "BucketPath":
        """Return the path itself: no name in a store depends on the working directory."""
        return self

    def resolve(self, strict: bool = False) -> "BucketPath":
        """Return the path itself: a store has no links."""
        return self

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Return the kind, the size and the time of change, as an ordinary path has them.

        Raises:
          FileNotFoundError: there is neither an object of this name nor one below it.
        """
        found = self._request("info")
        kind = stat.S_IFDIR if found["type"] == "directory" else stat.S_IFREG
        changed = found.get("LastModified") or found.get("mtime")
        nanoseconds = int(changed.timestamp() * 1e9) if hasattr(changed, "timestamp") else 0
        size, seconds = int(found.get("size") or 0), nanoseconds // 10**9
        fields = (kind | 0o600, 0, 0, 1, 0, 0, size, seconds, seconds, seconds)
        return os.stat_result(fields, {"st_mtime_ns": nanoseconds})

    def checksum(self) -> str:
        """Return the store's hash of the object's content.

        Raises:
          FileNotFoundError: there is no such object.
        """
        found = self._request("info")
        return str(next(found[name] for name in _CHECKSUMS if found.get(name)))

    def exists(self, *, follow_symlinks: bool = True) -> bool:
        """Return whether there is an object of this name, or one below it."""
        # `Path` itself would take a `UserError`, which is a `ValueError`, for a missing file.
        return self._kind() is not None

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Return whether there is an object of this name."""
        return self._kind() == stat.S_IFREG

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Return whether there is an object below this name."""
        return self._kind() == stat.S_IFDIR

    def _kind(self) -> int | None:
        try:
            return stat.S_IFMT(self.stat().st_mode)
        except FileNotFoundError:
            return None

    def iterdir(self) -> Generator["BucketPath", None, None]:
        """Yield the objects and the directories directly below this name.

        Raises:
          FileNotFoundError: there is nothing below this name.
        """
        listed = self._request("ls", detail=False)
        names = sorted({each.rstrip("/").rpartition("/")[2] for each in listed})
        yield from (self / name for name in names)

    def glob(self, pattern: str) -> Generator["BucketPath", None, None]:
        """Yield the objects below this name that match a pattern."""
        # A directory may have a name such as `grid[1]`.
        with _reaching(self):
            found = self._store.glob(f"{glob.escape(self._key)}/{pattern}")
        yield from (BucketPath(f"{self.parts[0]}//{each}") for each in sorted(found))

    def objects(self) -> list["BucketPath"]:
        """Return all objects below this name, at any depth; [] if there are none."""
        found = self._request("find")
        # The consoles of stores make empty objects whose names end in a slash.
        return [BucketPath(f"{self.parts[0]}//{each}") for each in found if each[-1] != "/"]

    def open(  # type: ignore[override]
        self, mode: str = "r", buffering: int = -1, encoding: str | None = None
    ) -> Any:
        """Open the object for reading, or for appending; `write_bytes` writes one.

        A reader gets a complete copy on this machine.

        Raises:
          FileNotFoundError: there is no object of this name to read.
        """
        if mode.startswith("a"):
            raw = _Appended(self)
            if "b" in mode:
                return raw
            return io.TextIOWrapper(io.BufferedWriter(raw), encoding=encoding, line_buffering=True)
        if not mode.startswith("r") or "+" in mode:
            raise io.UnsupportedOperation(f"{self} is written whole, by write_bytes, not by {mode}")
        with local_copy(self) as copy:
            # It stays readable when its name is gone.
            reader = io.BufferedReader(io.FileIO(copy))
        return reader if "b" in mode else io.TextIOWrapper(reader, encoding=encoding)

    def read_bytes(self) -> bytes:
        """Return the content of the object.

        Raises:
          FileNotFoundError: there is no such object.
        """
        return bytes(self._request("cat_file"))

    def read_text(self, encoding: _Name = None, errors: _Name = None, newline: _Name = None) -> str:
        """Return the content of the object as text."""
        return self.read_bytes().decode(encoding or "utf-8", errors or "strict")

    def write_bytes(self, data: Any, mode: str = "overwrite") -> int:
        """Write the object atomically: a reader finds either the old or the new content.

        Args:
          mode: with "create", only one of several writers succeeds.

        Raises:
          FileExistsError: the mode is "create", and the object exists.
        """
        self._request("pipe_file", bytes(data), mode=mode)
        return len(data)

    def write_text(
        self, data: str, encoding: _Name = None, errors: _Name = None, newline: _Name = None
    ) -> int:
        """Write the object atomically, with a text as its content; Orbax calls this."""
        self.write_bytes(data.encode(encoding or "utf-8", errors or "strict"))
        return len(data)

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        """Make an empty directory, which is an object `.directory` below this name."""
        if not self.exists():
            (self / _EMPTY_DIRECTORY).write_bytes(b"")
        elif not exist_ok:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(self))

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove the object."""
        try:
            self._request("rm_file")
        except FileNotFoundError:
            if not missing_ok:
                raise

    def rename(self, target: str | os.PathLike[str]) -> "BucketPath":
        """Copy the object or all below it, then remove the originals; a kill can leave both."""
        new = BucketPath(target)
        moved = self.objects()
        for each in moved:
            each._request("cp_file", new._key + each._key.removeprefix(self._key))
        remove(moved)
        return new


def send_tree(local: Path, target: BucketPath, last: str) -> None:
    """Upload the files below a local directory as objects, `last` after all others."""
    files = [path for path in local.rglob("*") if path.is_file() and path != local / last]
    send_files({path: target / path.relative_to(local) for path in files})
    send_files({local / last: target / last})


def fetch_tree(source: BucketPath, local: Path, folders: Container[str] | None = None) -> None:
    """Download the objects below a name as files below a local directory.

    Args:
      folders: the directories in `source` to download, besides the files there; None is all.

    Raises:
      FileNotFoundError: one of the objects is gone.
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
    """Upload local files as objects, in any order; each object is written atomically.

    Raises:
      FileNotFoundError: one of the files is gone.
    """
    _transfer("put", files, lambda: None)


def fetch_files(files: Mapping[Path, BucketPath], check: Callable[[], None] = lambda: None) -> None:
    """Download objects as local files, in any order.

    Args:
      check: called every few files; what it raises ends the downloads.

    Raises:
      FileNotFoundError: one of the objects is gone.
    """
    _transfer("get", files, check)


def _transfer(way: str, files: Mapping[Path, BucketPath], check: Callable[[], None]) -> None:
    rest = iter(files.items())
    # A few at a time. fsspec's own batches leave coroutines behind at an error.
    while part := list(islice(rest, _AT_ONCE)):
        check()
        # fsspec takes names in two lists literally, also those with signs of a pattern.
        sides = [str(local) for local, _ in part], [path._key for _, path in part]
        with _reaching(part[0][1]):
            getattr(part[0][1]._store, way)(*sides[:: 1 if way == "put" else -1], batch_size=-1)


def remove(objects: Iterable[BucketPath]) -> None:
    """Remove objects of one bucket; missing ones are ignored."""
    objects = list(objects)
    if objects:
        with _reaching(objects[0]), suppress(FileNotFoundError):
            objects[0]._store.rm([glob.escape(each._key) for each in objects])


class _Appended(io.RawIOBase):
    """An object to append to: each write uploads all of it again."""

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
    """Return the store of a scheme, one for each process, as forks cannot share connections."""
    package, extra = {"s3": ("s3fs", "s3"), "gs": ("gcsfs", "gcs")}[scheme]
    with needs_extra(extra, f"{scheme}://"):
        import_module(package)
        import fsspec
    # Errors are raised as well, and need not be printed with the frames of a thread.
    logging.getLogger(package).setLevel(logging.CRITICAL)
    # What other processes write is to be seen, so no list of objects is kept, by Orbax neither.
    fsspec.config.conf.setdefault("gcs", {})["use_listings_cache"] = False
    settings = {"config_kwargs": {"connect_timeout": 10}} if scheme == "s3" else {}
    return fsspec.filesystem(scheme, use_listings_cache=False, **settings)


@contextmanager
def _reaching(path: BucketPath) -> Iterator[None]:
    """Turn the errors of a store's library into file errors, with messages of one line.

    Raises:
      OSError: as for files, with the name of the path.
      UserError: the bucket or the credentials are missing, or the store does not answer.
    """
    scheme, name = path.parts[0].rstrip(":"), str(path)
    try:
        yield
    except (UserError, FileExistsError):
        raise
    except FileNotFoundError as error:
        bucket = "/".join(path.parts[1:2])
        # Of what Google lacks, gcsfs tells the address, which is the bucket's or that of an object.
        in_google = rf"b/{re.escape(bucket)}/o($|\?)"
        if "bucket does not exist" in str(error) or re.search(in_google, str(error)):
            raise UserError(
                f"there is no bucket {scheme}://{bucket}; make it, or check its name"
            ) from error
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name) from error
    except Exception as error:  # of many kinds, from the libraries of the stores
        kind = type(error).__name__
        if isinstance(error, PermissionError) or str(error).startswith("Forbidden"):  # of gcsfs
            raise PermissionError(errno.EACCES, _in_words(error), name) from error
        code = (getattr(error, "code", None) or 0) if kind == "HttpError" else 0  # of Google
        is_of_connection = isinstance(error, OSError) and not kind.startswith("Client")
        if is_of_connection or code == 429 or code >= 500:
            if getattr(error, "errno", None) in _NO_ROOM:  # on this machine, for what is fetched
                raise
            raise OSError(errno.EREMOTEIO, _in_words(error), name) from error
        way_out = (_CREDENTIALS if code == 401 or "Credential" in kind else _ADDRESSES)[scheme]
        raise UserError(f"{name} cannot be reached: {_in_words(error)}; {way_out}") from error


def _in_words(error: Exception) -> str:
    return in_one_line(error)[:200].rstrip(".") or type(error).__name__
