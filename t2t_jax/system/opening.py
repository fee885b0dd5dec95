"""Resolve the name of a run: the demo, a path, a bucket, the hub or an archive."""

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
"""Maximum bytes of a member header, which tarfile reads into memory."""
_COPY_SUMS = ".copy.sha256"
"""Checksum file of an unpacked archive."""
_DAMAGE = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error),
    *(EOFError, OSError, RuntimeError, ValueError),
)


def resolve_run(name: str | os.PathLike[str], *, with_state: bool = False) -> Path:
    """Resolve the name of a run to a path for reading.

    `demo` is the run in the package, unless a file or directory has this name. `local_path`
    resolves other names.

    Args:
      with_state: whether to also download the training state for resuming.
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
    """Resolve a name to a path for reading.

    Download `hf://NAME/MODEL` or `hf://NAME/MODEL@REVISION` from the hub into a cache. Unpack an
    archive of a run (.tar.gz, .tar, .zip) into a cache. `as_path` resolves other names.

    Args:
      with_state: whether to also download the training state for resuming.

    Raises:
      UserError: the archive is damaged or unsafe, or the download fails.
    """
    if isinstance(name, FetchedPath):
        return name
    if address := hub.address(name):
        return hub.fetch(address, with_state=with_state)
    path = as_path(name)
    return _unpack(path) if path.name.endswith(_ARCHIVES) and path.is_file() else path


def check_directory_name(path: Path) -> None:
    """Raise a `UserError` if the name of a new directory ends like an archive name."""
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


def _unpack(archive: Path) -> Path:
    """Unpack the run in an archive; return the archive itself if it contains no run."""
    unpacked_dir = user_folder("cache") / "runs" / digest_of(archive)
    try:
        with archive.open("rb") as file:
            if not _is_whole(unpacked_dir):
                _remove_damaged(unpacked_dir)
                files = (member for member in _members(file) if member.kind == "file")
                sizes = {PurePosixPath(member.name): member.size for member in files}
                root = _root(sizes)
                if root is None:
                    return archive
                _check_room(unpacked_dir, sum(sizes[p] for p in sizes if _is_run_file(p, root)))
                with writing_directory(unpacked_dir) as directory:
                    _extract(_members(file), root, directory)
                    sums = listed_sums(directory, _COPY_SUMS)
                    (directory / _COPY_SUMS).write_text(sums, encoding="utf-8")
    except UserError as error:
        if unpacked_dir.is_dir():  # another process unpacked it meanwhile
            return FetchedPath(unpacked_dir)
        raise UserError(f"{archive} cannot be unpacked: {error}") from error
    except _DAMAGE as error:
        cause = in_one_line(error)
        raise UserError(f"{archive} cannot be unpacked ({cause:.200}); get a new copy") from error
    return FetchedPath(unpacked_dir)


def _is_whole(directory: Path) -> bool:
    """Return whether an unpacked run is complete and unchanged."""
    with suppress(OSError):
        return (directory / _COPY_SUMS).read_bytes() == listed_sums(directory, _COPY_SUMS).encode()
    return False


def _remove_damaged(unpacked_dir: Path) -> None:
    hidden_path = unpacked_dir.with_name(f".{unpacked_dir.name}.{os.getpid()}.old")
    with removed_at_end(hidden_path), suppress(FileNotFoundError):
        unpacked_dir.replace(hidden_path)


def _check_room(unpacked_dir: Path, num_bytes: int) -> None:
    parent = next(path for path in unpacked_dir.absolute().parents if path.exists())
    if (free := shutil.disk_usage(parent).free) < num_bytes:
        raise UserError(
            f"it unpacks to {num_bytes / 2**20:,.0f} MiB, and {parent} has {free / 2**20:,.0f} MiB "
            "free; make room there, or set XDG_CACHE_HOME to a directory on another disk"
        )


def _members(file: IO[bytes]) -> Iterator[_Member]:
    """Yield the members of an archive; raise a `UserError` if it is larger than any run."""
    file.seek(0)
    is_zip = file.read(2) == b"PK"  # a tar file may end with a zip member, so check the start
    num_bytes = name_length = 0
    for index, member in enumerate((_zip_members if is_zip else _tar_members)(file)):
        num_bytes += max(0, member.size)
        name_length += len(member.name)
        if index >= _MOST_MEMBERS or num_bytes > _MOST_BYTES or name_length > _MOST_NAMES:
            raise UserError("it is larger than any run; name an archive of one run")
        yield member


def _zip_members(file: IO[bytes]) -> Iterator[_Member]:
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            # zipfile does not limit the memory of bzip2 and LZMA.
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise UserError(f"{info.filename!r:.80} is not compressed by deflate; use zip -r")
            unix_type = info.external_attr >> 28  # the kind of a Unix file, or 0
            kind = "directory" if info.is_dir() else "file" if unix_type in (0, 0o10) else "other"
            yield _Member(info.filename, info.file_size, kind, partial(archive.open, info))


def _refuse_sparse(member: tarfile.TarInfo, *_: object) -> NoReturn:
    raise UserError(f"{member.name!r:.80} is a sparse file; pack it without --sparse (-S)")


class _TarMember(tarfile.TarInfo):
    """A member with limits that tarfile lacks: on name length and sparse files."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_TarMember":
        header = super().frombuf(buf, encoding, errors)
        if header.size > _MOST_HEADER and header.type not in tarfile.REGULAR_TYPES:
            raise UserError(f"a name or header of a member has {header.size:,} bytes")
        if header.type == tarfile.GNUTYPE_SPARSE:
            _refuse_sparse(header)
        return header

    _proc_gnusparse_10 = _refuse_sparse  # the format whose map is not in a header


def _tar_members(file: IO[bytes]) -> Iterator[_Member]:
    file.seek(0)
    # tarfile does not limit the memory of bzip2 and LZMA.
    mode: Literal["r:gz", "r:"] = "r:gz" if file.read(2) == b"\x1f\x8b" else "r:"
    file.seek(0)
    with tarfile.open(fileobj=file, mode=mode, tarinfo=_TarMember) as archive:
        for info in archive:
            if info.issparse():
                _refuse_sparse(info)
            kind = "directory" if info.isdir() else "file" if info.isreg() else "other"
            yield _Member(info.name, info.size, kind, partial(archive.extractfile, info))
            vars(archive)["members"].clear()  # otherwise, tarfile keeps all headers in memory


def _root(files: Iterable[PurePosixPath]) -> PurePosixPath | None:
    """Return the topmost directory of an archive that contains a run; None if there is none."""
    runs = {path.parent for path in files if path.name == hub.RUN_FILES[0]}
    roots = sorted(runs, key=lambda path: (len(path.parts), path))
    if len(roots) > 1 and len(roots[0].parts) == len(roots[1].parts):
        raise UserError(f"it has several runs, {roots[0]} and {roots[1]}; unpack it, and name one")
    return next(iter(roots), None)


def _is_run_file(path: PurePosixPath, root: PurePosixPath) -> bool:
    if not path.is_relative_to(root):
        return False
    name = str(path.relative_to(root))
    return any(fnmatchcase(name, pattern) for pattern in (*hub.RUN_FILES, *hub.STATE_FILES))


def _extract(members: Iterator[_Member], root: PurePosixPath, copy: Path) -> None:
    """Write the files of a run into a directory, and skip other members."""
    for member in members:
        path = PurePosixPath(member.name)
        if not _is_run_file(path, root):
            continue
        if path.is_absolute() or ".." in path.parts:
            raise UserError(f"{member.name!r:.80} points outside of the archive")
        if member.kind == "other":
            raise UserError(f"{member.name!r:.80} is a link or a device")
        if member.kind == "directory":
            continue
        target = copy / path.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as output, member.open() as source:  # type: ignore[union-attr]
            shutil.copyfileobj(source, output)
