"""A cache on disk of data made from a corpus, such as its tokens.

An entry is a folder of files, with their BLAKE2 hashes in `digests.json`. Opening an entry checks
all hashes, and makes a damaged entry again. So disk errors and other programs never change the
training data. Entries appear atomically, also if several processes make one at once.
"""

import errno
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np
from jaxtyping import Shaped

from t2t_jax.config import DataConfig
from t2t_jax.errors import UserError, warn
from t2t_jax.system import folders, records, sums
from t2t_jax.system.bucket import BucketPath, as_path, fetch_tree, send_tree

Contents = Mapping[str, bytes | Shaped[np.ndarray, "..."]]
"""The files of an entry by name: bytes, or an array for a file in NumPy's own format."""

_DIGESTS = "digests.json"
_SCHEMA = records.schema({"blake2b": dict})
_UNFINISHED = "unfinished-"
_STALE_AFTER_SECONDS = 24 * 3600.0
_ADVICE = "set data.cache_dir to another directory"


def entry(config: DataConfig, name: str, make: Callable[[], Contents]) -> Path:
    """Return the folder of a cache entry, and make the entry if it is missing or damaged.

    Args:
      name: the name of the entry, which must change whenever its contents would.
      make: a function that returns the files of the entry.
    """
    # Machines can share a cache in a bucket. Each keeps a local copy of its entries, because arrays
    # are mapped from files into memory.
    directory = as_path(config.cache_dir)
    if isinstance(directory, BucketPath):
        make = partial(_shared_contents, directory / name, make)
    folder = cache_root(config) / name
    if folder.exists() and _is_whole(folder, folder):
        return folder
    contents = make()
    try:
        _replace(folder, contents)
    except OSError as error:
        raise _write_error(folder.parent, contents, error) from error
    if fault := _fault(folder):
        raise UserError(f"{folder} was written, but is damaged ({fault}); remove it, or {_ADVICE}")
    return folder


def _shared_contents(remote: BucketPath, make: Callable[[], Contents]) -> Contents:
    """Return the files of a cache entry in a bucket; make and upload them if they are missing."""
    with tempfile.TemporaryDirectory(prefix="t2t_jax-") as folder:
        download, upload = Path(folder) / "download", Path(folder) / "upload"
        with suppress(FileNotFoundError):  # another machine is replacing the entry
            fetch_tree(remote, download)
        if (download / _DIGESTS).exists() and _is_whole(download, remote):
            paths = (path for path in download.iterdir() if path.name != _DIGESTS)
            return {path.name: path.read_bytes() for path in paths}
        contents = make()
        try:
            upload.mkdir()
            _write_all(upload, contents)
            send_tree(upload, remote, last=_DIGESTS)  # an entry without digests is unfinished
        except OSError as error:
            reason = error.strerror or error
            warn(f"{remote} cannot be written ({reason}); only this machine keeps the entry")
    return contents


def cache_root(config: DataConfig) -> Path:
    """Return the cache folder on this machine, and create it if it is missing."""
    # Without `data.cache_dir`, or if it is in a bucket, it is in the user's cache folder.
    root = as_path(os.path.expanduser(config.cache_dir))
    if not config.cache_dir or isinstance(root, BucketPath):
        root = folders.user_folder("cache") / "corpora"
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"cache directory {root} cannot be created ({error.strerror}); set data.cache_dir"
        ) from error
    return root


def _is_whole(folder: Path, path: Path) -> bool:
    """Return whether the cache entry in `folder` is undamaged; if not, warn and name it `path`."""
    fault = _fault(folder)
    if fault:
        warn(f"{path} is damaged ({fault}); it is made again")
    return fault is None


def _fault(folder: Path) -> str | None:
    """Describe the first fault of the cache entry in a folder; return None if it is undamaged."""
    try:
        if non_files := [path.name for path in folder.iterdir() if not path.is_file()]:
            return f"{non_files[0]} is not a file"
        digests = records.parse_object((folder / _DIGESTS).read_bytes(), _SCHEMA)["blake2b"]
        names = {path.name for path in folder.iterdir()} - {_DIGESTS}
        if names != set(digests):
            return f"{_DIGESTS} does not list the files of the folder"
        with ThreadPoolExecutor() as pool:  # hashing releases the GIL
            digest = partial(sums.digest_of, kind="blake2b")
            hashes = list(pool.map(digest, map(folder.joinpath, digests)))
    except OSError as error:
        return error.strerror or str(error)
    except ValueError as error:
        return f"{_DIGESTS}: {error}"
    changed_names = [n for n, hash_ in zip(digests, hashes, strict=True) if hash_ != digests[n]]
    return f"{changed_names[0]} is not what was written" if changed_names else None


def _replace(folder: Path, contents: Contents) -> None:
    """Write a cache entry to a temporary folder, and rename that folder to `folder`."""
    _remove_stale(folder.parent)
    with tempfile.TemporaryDirectory(
        dir=folder.parent, prefix=_UNFINISHED, ignore_cleanup_errors=True
    ) as temporary:
        unfinished_entry = Path(temporary) / "entry"
        unfinished_entry.mkdir()
        _write_all(unfinished_entry, contents)
        with suppress(OSError):  # the temporary folder removes the damaged entry with it
            if folder.exists() and _fault(folder):
                folder.rename(Path(temporary) / "damaged")
        with suppress(OSError):  # another process has written the same entry first
            unfinished_entry.rename(folder)


def _write_all(folder: Path, contents: Contents) -> None:
    digests = {name: _write(folder / name, file) for name, file in contents.items()}
    (folder / _DIGESTS).write_text(json.dumps({"blake2b": digests}))


class _HashingFile:
    """A writable binary file that hashes all bytes written to it."""

    # The hash of the bytes, not of the stored file, reveals wrongly stored bytes.

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.hash = hashlib.blake2b()

    def write(self, data: bytes) -> int:
        self.hash.update(data)
        return self._file.write(data)


def _write(path: Path, content: bytes | np.ndarray) -> str:
    with path.open("wb") as file:
        hashing_file = _HashingFile(file)
        if isinstance(content, bytes):
            hashing_file.write(content)
        else:
            np.lib.format.write_array(hashing_file, content, allow_pickle=False)
    return hashing_file.hash.hexdigest()


def _remove_stale(root: Path) -> None:
    """Remove cache entries that a killed process left unfinished more than a day ago."""
    for path in root.glob(f"{_UNFINISHED}*"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > _STALE_AFTER_SECONDS:
                shutil.rmtree(path)


def _write_error(root: Path, contents: Contents, error: OSError) -> UserError:
    reason = error.strerror or str(error)
    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return UserError(f"cache directory {root} cannot be written ({reason}); {_ADVICE}")
    sizes = [len(file) if isinstance(file, bytes) else file.nbytes for file in contents.values()]
    total_mib, free_mib = sum(sizes) / 2**20, shutil.disk_usage(root).free / 2**20
    return UserError(
        f"cache directory {root} has no room for {total_mib:,.1f} MiB: {free_mib:,.1f} MiB are "
        f"free ({reason}); make room, or {_ADVICE}"
    )
