"""Open a run by any name: a path, a bucket, the hub or an archive."""

import lzma
import os
import shlex
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

from t2t_jax.errors import UserError, in_one_line
from t2t_jax.system import hub
from t2t_jax.system.atomic_file import writing_directory
from t2t_jax.system.bucket import as_path
from t2t_jax.system.fetched_path import FetchedPath
from t2t_jax.system.folders import user_folder
from t2t_jax.system.sums import digest_of

_ARCHIVES = ".tar.gz", ".tgz", ".tar", ".zip"
_MOST_MEMBERS, _MOST_BYTES = 100_000, 1 << 38
_DAMAGE = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError),
    *(EOFError, OSError, RuntimeError, ValueError),
)


def opened(name: str | os.PathLike[str], *, with_state: bool = False) -> Path:
    """Return a path for reading, downloaded or unpacked if needed.

    A name `hf://NAME/MODEL` or `hf://NAME/MODEL@REVISION` is downloaded from the hub, and an
    archive of a run (.tar.gz, .tar, .zip) is unpacked, each into a cache. Any other name is a file
    or directory, as for `as_path`.

    Args:
      with_state: whether to download also the training state for resuming.

    Raises:
      UserError: the run cannot be downloaded, or the archive is damaged or unsafe to unpack.
    """
    if isinstance(name, FetchedPath):
        return name
    if address := hub.address(name):
        return hub.fetch(address, with_state=with_state)
    path = as_path(name)
    return _unpacked(path) if path.name.endswith(_ARCHIVES) and path.is_file() else path


def check_directory_name(path: Path) -> None:
    """Refuse a name for a new directory that ends like an archive's.

    Raises:
      UserError: it ends so.
    """
    if path.name.endswith(_ARCHIVES):
        base = path.name.partition(".")[0]
        raise UserError(
            f"{path} would be a directory with the name of an archive; write {base}, and then run: "
            f"{shlex.join(['tar', '-czf', f'{base}.tar.gz', base])}"
        )


class _Member(NamedTuple):
    name: str
    size: int
    kind: str
    """file, directory, or other."""
    open: Callable[[], IO[bytes] | None]


def _unpacked(archive: Path) -> Path:
    """Unpack the run in an archive; return the archive itself if there is no run in it."""
    place = user_folder("cache") / "runs" / digest_of(archive)
    try:
        with archive.open("rb") as file:
            if not place.is_dir():
                root = _root(_members(file))
                if root is None:
                    return archive
                with writing_directory(place) as directory:
                    _extract(_members(file), root, directory)
    except UserError as error:
        if place.is_dir():  # as another process has unpacked it meanwhile
            return FetchedPath(place)
        raise UserError(f"{archive} cannot be unpacked: {error}") from error
    except _DAMAGE as error:
        why = in_one_line(error)
        raise UserError(f"{archive} cannot be unpacked ({why:.200}); bring a whole copy") from error
    return FetchedPath(place)


def _members(file: Any) -> Iterator[_Member]:
    """Yield the members of an archive, and refuse one that is far larger than any run."""
    file.seek(0)
    is_zip = file.read(2) == b"PK"  # the end of an archive by tar may be a member that is a zip
    total = 0
    for number, member in enumerate((_in_zip if is_zip else _in_tar)(file)):
        total += max(0, member.size)
        if number >= _MOST_MEMBERS or total > _MOST_BYTES:
            raise UserError("it holds more than any run does; name an archive of one run")
        yield member


def _in_zip(file: Any) -> Iterator[_Member]:
    with zipfile.ZipFile(file) as archive:
        for one in archive.infolist():
            mode = one.external_attr >> 28  # the kind of a Unix file, or 0
            kind = "directory" if one.is_dir() else "file" if mode in (0, 0o10) else "other"
            yield _Member(one.filename, one.file_size, kind, partial(archive.open, one))


def _in_tar(file: Any) -> Iterator[_Member]:
    file.seek(0)
    with tarfile.open(fileobj=file) as archive:
        for one in archive:
            kind = "directory" if one.isdir() else "file" if one.isreg() else "other"
            yield _Member(one.name, one.size, kind, partial(archive.extractfile, one))


def _root(members: Iterator[_Member]) -> PurePosixPath | None:
    """Return the uppermost directory of an archive that has a run."""
    files = [PurePosixPath(one.name) for one in members if one.kind == "file"]
    runs = {path.parent for path in files if path.name == hub.RUN_FILES[0]}
    found = sorted(runs, key=lambda path: (len(path.parts), path))
    if len(found) > 1 and len(found[0].parts) == len(found[1].parts):
        raise UserError(f"it has several runs, {found[0]} and {found[1]}; unpack it, and name one")
    return next(iter(found), None)


def _extract(members: Iterator[_Member], root: PurePosixPath, place: Path) -> None:
    """Write the files of a run into a directory, and skip all others of the archive."""
    for member in members:
        path = PurePosixPath(member.name)
        if not path.is_relative_to(root):
            continue
        name = path.relative_to(root)
        if not any(fnmatchcase(str(name), one) for one in (*hub.RUN_FILES, *hub.STATE_FILES)):
            continue
        if path.is_absolute() or ".." in path.parts:
            raise UserError(f"{member.name!r:.80} leads out of it")
        if member.kind == "other":
            raise UserError(f"{member.name!r:.80} is a link or a device")
        if member.kind == "directory":
            continue
        target = place / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as written, member.open() as source:  # type: ignore[union-attr]
            shutil.copyfileobj(source, written)
