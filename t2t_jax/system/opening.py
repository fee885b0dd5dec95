"""Open a run by any name: the demo of the package, a path, a bucket, the hub or an archive."""

import os
import shlex
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Literal, NamedTuple, NoReturn

from t2t_jax.errors import UserError, in_one_line
from t2t_jax.system import hub
from t2t_jax.system.atomic_file import removed_at_end, writing_directory
from t2t_jax.system.bucket import as_path
from t2t_jax.system.fetched_path import FetchedPath
from t2t_jax.system.folders import user_folder
from t2t_jax.system.sums import digest_of, listed_sums

DEMO = "demo"
"""The name of the run that comes with the package."""
_DEMO_DIRECTORY = Path(__file__).parents[1] / "demo"
_ARCHIVES = ".tar.gz", ".tgz", ".tar", ".zip"
_MOST_MEMBERS, _MOST_BYTES, _MOST_NAMES = 100_000, 1 << 38, 1 << 24
_MOST_HEADER = 1 << 16
"""The bytes of the header of a member with its name, which tarfile reads into memory."""
_COPY_SUMS = ".copy.sha256"
"""The file with the hashes of all files of an unpacked copy."""
_DAMAGE = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error),
    *(EOFError, OSError, RuntimeError, ValueError),
)


def opened(name: str | os.PathLike[str], *, with_state: bool = False) -> Path:
    """Return the path of a run for reading.

    "demo" is the run that comes with the package, unless there is a file or directory of this name.
    Any other name is as for `local_path`.

    Args:
      with_state: whether to download also the training state for resuming.
    """
    if os.fspath(name) != DEMO or Path(name).exists():
        return local_path(name, with_state=with_state)
    for file in hub.NEEDED_FILES:
        if not (_DEMO_DIRECTORY / file).is_file():
            raise UserError(
                f"this copy of t2t_jax has no demo: {_DEMO_DIRECTORY / file} is missing; install "
                "it again, or train in 90 minutes: t2t-jax train --config configs/demo.py runs/demo"
            )
    return FetchedPath(_DEMO_DIRECTORY)


def local_path(name: str | os.PathLike[str], *, with_state: bool = False) -> Path:
    """Return a path for reading, downloaded or unpacked if needed.

    A name `hf://NAME/MODEL` or `hf://NAME/MODEL@REVISION` is downloaded from the hub, and an
    archive of a run (.tar.gz, .tar, .zip) is unpacked, each into a cache. Any other name is a file
    or directory, as for `as_path`.

    Args:
      with_state: whether to download also the training state for resuming.

    Raises:
      UserError: the archive is damaged or has unsafe paths, or the hub refuses the download.
    """
    if isinstance(name, FetchedPath):
        return name
    if address := hub.address(name):
        return hub.fetch(address, with_state=with_state)
    path = as_path(name)
    return _unpacked(path) if path.name.endswith(_ARCHIVES) and path.is_file() else path


def check_directory_name(path: Path) -> None:
    """Refuse a name for a new directory that ends like an archive's."""
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
            if not _is_whole(place):
                _remove_damaged(place)
                files = (one for one in _members(file) if one.kind == "file")
                sizes = {PurePosixPath(one.name): one.size for one in files}
                root = _root(sizes)
                if root is None:
                    return archive
                _check_room(place, sum(sizes[path] for path in sizes if _is_of_run(path, root)))
                with writing_directory(place) as directory:
                    _extract(_members(file), root, directory)
                    sums = listed_sums(directory, _COPY_SUMS)
                    (directory / _COPY_SUMS).write_text(sums, encoding="utf-8")
    except UserError as error:
        if place.is_dir():  # as another process has unpacked it meanwhile
            return FetchedPath(place)
        raise UserError(f"{archive} cannot be unpacked: {error}") from error
    except _DAMAGE as error:
        why = in_one_line(error)
        raise UserError(f"{archive} cannot be unpacked ({why:.200}); bring a whole copy") from error
    return FetchedPath(place)


def _is_whole(place: Path) -> bool:
    """Return whether an unpacked run is complete and unchanged."""
    try:
        return (place / _COPY_SUMS).read_bytes() == listed_sums(place, _COPY_SUMS).encode()
    except OSError:
        return False


def _remove_damaged(place: Path) -> None:
    hidden = place.with_name(f".{place.name}.{os.getpid()}.old")
    with removed_at_end(hidden), suppress(FileNotFoundError):
        place.replace(hidden)


def _check_room(place: Path, needed: int) -> None:
    parent = next(path for path in place.absolute().parents if path.exists())
    if (free := shutil.disk_usage(parent).free) < needed:
        raise UserError(
            f"it unpacks to {needed / 2**20:,.0f} MiB, and {parent} has {free / 2**20:,.0f} MiB "
            "free; make room there, or set XDG_CACHE_HOME to a directory on another disk"
        )


def _members(file: IO[bytes]) -> Iterator[_Member]:
    """Yield the members of an archive, and refuse one that is far larger than any run."""
    file.seek(0)
    is_zip = file.read(2) == b"PK"  # the end of an archive by tar may be a member that is a zip
    total = names = 0
    for number, member in enumerate((_in_zip if is_zip else _in_tar)(file)):
        total += max(0, member.size)
        names += len(member.name)
        if number >= _MOST_MEMBERS or total > _MOST_BYTES or names > _MOST_NAMES:
            raise UserError("it holds more than any run does; name an archive of one run")
        yield member


def _in_zip(file: IO[bytes]) -> Iterator[_Member]:
    with zipfile.ZipFile(file) as archive:
        for one in archive.infolist():
            # zipfile does not bound the memory for members by bzip2 and LZMA.
            if one.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise UserError(f"{one.filename!r:.80} is not compressed by deflate; use zip -r")
            mode = one.external_attr >> 28  # the kind of a Unix file, or 0
            kind = "directory" if one.is_dir() else "file" if mode in (0, 0o10) else "other"
            yield _Member(one.filename, one.file_size, kind, partial(archive.open, one))


def _refuse_sparse(member: tarfile.TarInfo, *_: object) -> NoReturn:
    raise UserError(f"{member.name!r:.80} is a sparse file; pack it without --sparse (-S)")


class _TarMember(tarfile.TarInfo):
    """A member with bounds that tarfile lacks: on long names and the maps of sparse files."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_TarMember":
        header = super().frombuf(buf, encoding, errors)
        if header.size > _MOST_HEADER and header.type not in tarfile.REGULAR_TYPES:
            raise UserError(f"a name or header of a member has {header.size:,} bytes")
        if header.type == tarfile.GNUTYPE_SPARSE:
            _refuse_sparse(header)
        return header

    _proc_gnusparse_10 = _refuse_sparse  # the format whose map is not in a header


def _in_tar(file: IO[bytes]) -> Iterator[_Member]:
    file.seek(0)
    # tarfile does not bound the memory for bzip2 and LZMA either.
    mode: Literal["r:gz", "r:"] = "r:gz" if file.read(2) == b"\x1f\x8b" else "r:"
    file.seek(0)
    with tarfile.open(fileobj=file, mode=mode, tarinfo=_TarMember) as archive:
        for one in archive:
            if one.issparse():
                _refuse_sparse(one)
            kind = "directory" if one.isdir() else "file" if one.isreg() else "other"
            yield _Member(one.name, one.size, kind, partial(archive.extractfile, one))
            vars(archive)["members"].clear()  # which would keep all headers in memory


def _root(files: Iterable[PurePosixPath]) -> PurePosixPath | None:
    """Return the uppermost directory of an archive that has a run."""
    runs = {path.parent for path in files if path.name == hub.RUN_FILES[0]}
    found = sorted(runs, key=lambda path: (len(path.parts), path))
    if len(found) > 1 and len(found[0].parts) == len(found[1].parts):
        raise UserError(f"it has several runs, {found[0]} and {found[1]}; unpack it, and name one")
    return next(iter(found), None)


def _is_of_run(path: PurePosixPath, root: PurePosixPath) -> bool:
    if not path.is_relative_to(root):
        return False
    name = str(path.relative_to(root))
    return any(fnmatchcase(name, one) for one in (*hub.RUN_FILES, *hub.STATE_FILES))


def _extract(members: Iterator[_Member], root: PurePosixPath, place: Path) -> None:
    """Write the files of a run into a directory, and skip all others of the archive."""
    for member in members:
        path = PurePosixPath(member.name)
        if not _is_of_run(path, root):
            continue
        if path.is_absolute() or ".." in path.parts:
            raise UserError(f"{member.name!r:.80} leads out of it")
        if member.kind == "other":
            raise UserError(f"{member.name!r:.80} is a link or a device")
        if member.kind == "directory":
            continue
        target = place / path.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as written, member.open() as source:  # type: ignore[union-attr]
            shutil.copyfileobj(source, written)
