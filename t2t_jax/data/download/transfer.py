"""A file from a server, whatever happens on the way: interrupted transfers go on where they were.

Pooch and fsspec, which check sums too, begin an interrupted file again from its start: of archives
of gigabytes too little would ever arrive over a poor connection. Here the bytes that have arrived
stay in NAME.part, and the file takes its name once its size and its sum are right.
"""

import fcntl
import hashlib
import http.client
import os
import re
import shutil
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from t2t_jax.data.download.catalogue import Archive
from t2t_jax.errors import UserError
from t2t_jax.system.atomic_file import cannot_write

Progress = Callable[[int], None]
"""Is told how many bytes of a file have arrived so far."""

_CHUNK = 1 << 20
_TIMEOUT = 60.0
_TRANSIENT = (408, 425, 429, 500, 502, 503, 504)
"""Answers of servers after which it pays to ask again."""
_BROKEN = (
    urllib.error.URLError,
    http.client.HTTPException,
    TimeoutError,
    ConnectionError,
)
"""What a transfer raises that breaks off."""
_PATIENCE = (1.0, 4.0, 15.0)
"""Seconds before each further attempt, as long as none brings a single byte."""


class _StoppedError(Exception):
    """A transfer that broke off, and may go on."""


def fetch(
    archive: Archive,
    directory: Path,
    mirror: str | None = None,
    progress: Progress = lambda _: None,
    patience: tuple[float, ...] = _PATIENCE,
) -> Path:
    """The path of an archive, which is fetched unless it is there already.

    Args:
      archive: what to fetch, and how to know it.
      directory: the directory to keep it in.
      mirror: a place that has the archives under their names, in place of their own servers.
      progress: is told of the bytes that have arrived.
      patience: seconds before each further attempt, while no bytes arrive.

    Raises:
      UserError: it cannot be had, or is not what was published, or cannot be written. The bytes
        that have arrived are kept, unless they are wrong.
    """
    path = directory / archive.name
    if path.is_file():
        _check(archive, path)
        return path
    url = f"{mirror.rstrip('/')}/{archive.name}" if mirror else archive.url
    if "://" not in url:
        raise UserError(f"--mirror={mirror} is no address; begin it with https:// or file:///")
    part = directory / f"{archive.name}.part"
    try:
        with part.open("ab") as file:
            _lock(file, part)
            _check_room(archive, file, directory)
            _complete(_Transfer(url, archive, file, progress), patience)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise cannot_write(part, error) from error
    _check(archive, part)
    return part.replace(path)


def _lock(file: BinaryIO, part: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise UserError(f"another process is writing {part}; let it finish") from error


def _check_room(archive: Archive, file: BinaryIO, directory: Path) -> None:
    if archive.size is None:
        return
    missing, free = archive.size - file.tell(), shutil.disk_usage(directory).free
    if missing > free:
        raise UserError(
            f"{directory} has room for {free:,} bytes, and {archive.name} needs {missing:,} more; "
            "make room there, or choose another directory"
        )


def _check(archive: Archive, path: Path) -> None:
    """Refuse a file that is not what was published; one that was just fetched is removed."""
    size = path.stat().st_size
    kind, _, expected = (archive.digest or "").partition(":")
    if archive.size is not None and size != archive.size:
        wrong = f"has {size:,} bytes, and the published file {archive.size:,}"
    elif kind and (found := digest_of(path, kind)) != expected:
        wrong = f"is not the published file: its {kind} sum is {found}, and not {expected}"
    else:
        return
    if path.suffix == ".part":
        path.unlink()
        raise UserError(
            f"what was fetched as {archive.name} {wrong}; it was removed: run the same command "
            "again, or name another place with --mirror"
        )
    raise UserError(f"{path} {wrong}; remove it, and the same command fetches it again")


def digest_of(path: Path, kind: str = "sha256") -> str:
    """The sum of a file's content in hexadecimal digits.

    Args:
      path: the file.
      kind: sha256 or md5.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, kind).hexdigest()


def _complete(transfer: "_Transfer", patience: tuple[float, ...]) -> None:
    """Ask until all has arrived, or several attempts in a row have brought nothing."""
    attempts = 0
    while True:
        before = transfer.arrived
        try:
            return transfer.go_on()
        except _StoppedError as stopped:
            attempts = 0 if transfer.arrived > before else attempts + 1
            if attempts > len(patience):
                raise UserError(
                    f"{transfer.url} cannot be fetched: {stopped}; {transfer.arrived:,} bytes are "
                    "kept: run the same command again to go on, or name another place with --mirror"
                ) from stopped
        if attempts:
            time.sleep(patience[attempts - 1])


@dataclass
class _Transfer:
    """A file on its way from a server to the end of a local file."""

    url: str
    archive: Archive
    file: BinaryIO
    progress: Progress

    @property
    def arrived(self) -> int:
        """Bytes that have arrived."""
        return self.file.tell()

    def go_on(self) -> None:
        """Ask for the bytes that are missing, and write them.

        Raises:
          _StoppedError: they broke off.
          UserError: the server has no such file.
        """
        if self.archive.size is not None and self.arrived >= self.archive.size:
            return
        request = urllib.request.Request(self.url, headers={"User-Agent": "t2t-jax"})
        if self.arrived:
            request.add_header("Range", f"bytes={self.arrived}-")
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
                self._take(answer)
        except urllib.error.HTTPError as error:
            error.close()
            self._refused(error)
        except _BROKEN as error:
            raise _StoppedError(_reason(error)) from error

    def _take(self, answer: http.client.HTTPResponse) -> None:
        """Write the body of an answer where it belongs in the file."""
        first, total = _range(answer)
        if first is None or first > self.arrived:
            self._keep(0)
            raise _StoppedError("the server sent other bytes than it was asked for")
        if first < self.arrived:
            self._keep(first)
        while self.arrived <= (self.archive.size or sys.maxsize):  # what follows is wrong
            chunk = answer.read1(_CHUNK)  # what is there, at once: a kill then loses nothing
            if not chunk:
                break
            self.file.write(chunk)
            self.file.flush()
            self.progress(self.arrived)
        expected = total if self.archive.size is None else self.archive.size
        if expected is not None and self.arrived < expected:
            raise _StoppedError(
                f"the connection ended after {self.arrived:,} of {expected:,} bytes"
            )

    def _keep(self, size: int) -> None:
        """Keep so many of the bytes that have arrived."""
        self.file.truncate(size)
        self.file.seek(size)

    def _refused(self, error: urllib.error.HTTPError) -> None:
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            # Nothing follows what has arrived. Where that is not all, it is of another file.
            if self.archive.size is None:
                return
            self._keep(0)
            raise _StoppedError("the server has a shorter file") from error
        reason = f"the server answers {error.code} {error.reason}"
        if error.code in _TRANSIENT:
            raise _StoppedError(reason) from error
        raise UserError(f"{self.url} cannot be fetched: {reason}; name another place with --mirror")


def _range(answer: http.client.HTTPResponse) -> tuple[int | None, int | None]:
    """The place in the file of an answer's first byte, and the size of the whole file.

    None stands for what the server does not say.
    """
    given = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", answer.headers.get("Content-Range", ""))
    if answer.status == http.HTTPStatus.PARTIAL_CONTENT:
        if given is None:
            return None, None
        return int(given[1]), int(given[2]) if given[2].isdigit() else None
    length = answer.headers.get("Content-Length", "")
    return 0, int(length) if length.isdigit() else None


def _reason(error: Exception) -> str:
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    return " ".join(str(reason).split()) or type(error).__name__
