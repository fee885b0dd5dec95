"""Download a file from a server, and resume interrupted transfers.

Pooch and fsspec, which check sums too, restart an interrupted file from its beginning: over a poor
connection, archives of gigabytes would hardly ever arrive. Here the received bytes stay in
NAME.part, and the file takes its name once its size and its sum are right.
"""

import fcntl
import http.client
import os
import re
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote, urlsplit, urlunsplit

from t2t_jax.data.download.catalogue import Archive
from t2t_jax.errors import UserError, in_one_line
from t2t_jax.system import atomic_file, regular_file, sums

Progress = Callable[[int], None]
"""A function that is told how many bytes of a file have arrived so far."""

_CHUNK = 1 << 20
_TIMEOUT = 60.0
_TRANSIENT = (408, 425, 429, 500, 502, 503, 504)
"""The status codes of servers after which it pays to ask again."""
_PATIENCE = (1.0, 4.0, 15.0)
"""The seconds to wait before each further attempt, while no attempt brings new bytes."""
_MOST_REQUESTS = 1000
"""The most requests for a file, however many bytes each of them brings."""
_LARGEST = 1 << 40
"""The most bytes that an archive whose size is not known may have."""
_NUMBER = "[0-9]{1,18}"


class _StoppedError(Exception):
    """The error of an interrupted transfer that can resume."""


def fetch_archive(
    archive: Archive,
    directory: Path,
    mirror: str | None = None,
    progress: Progress = lambda _: None,
    patience: tuple[float, ...] = _PATIENCE,
) -> Path:
    """Download an archive unless it is there already, and return its path.

    Args:
      mirror: an address with the archives under their names, instead of their original servers.
      progress: called with the number of bytes received.
      patience: seconds before each further attempt, while no bytes arrive.
    """
    path, part = directory / archive.name, directory / f"{archive.name}.part"
    regular_file.check_regular(path)
    regular_file.check_regular(part)
    if path.exists():
        _check(archive, path)
        return path
    url = _address(archive, mirror)
    try:
        with part.open("ab") as file:
            _lock(file, part)
            _check_room(archive, file, directory)
            _complete(_Transfer(url, archive, file, progress), patience)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise atomic_file.cannot_write(part, error) from error
    _check(archive, part)
    return part.replace(path)


def _address(archive: Archive, mirror: str | None) -> str:
    url = f"{mirror.rstrip('/')}/{archive.name}" if mirror else archive.url
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise UserError(f"--mirror={mirror} is no address ({error}); check it") from error
    if "://" not in url:
        raise UserError(f"--mirror={mirror} is no address; begin it with https:// or file:///")
    return urlunsplit(parts._replace(path=quote(parts.path, safe="%/:=&~+!$,;'@()*")))


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
    """Refuse a file that differs from the published one, and remove it if it is a new download."""
    size = path.stat().st_size
    kind, _, expected = (archive.digest or "").partition(":")
    if not size:
        wrong = "is empty"
    elif archive.size is not None and size != archive.size:
        wrong = f"has {size:,} bytes, and the published file {archive.size:,}"
    elif kind and (found := sums.digest_of(path, kind)) != expected:
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


def _complete(transfer: "_Transfer", patience: tuple[float, ...]) -> None:
    """Ask the server until all bytes have arrived, or several attempts in a row got none."""
    furthest, in_vain, reason = transfer.arrived, 0, ""
    for _ in range(_MOST_REQUESTS):
        try:
            return transfer.go_on()
        except _StoppedError as stopped:
            reason = str(stopped)
        in_vain = 0 if transfer.arrived > furthest else in_vain + 1
        furthest = max(furthest, transfer.arrived)
        if in_vain > len(patience):
            break
        if in_vain:
            time.sleep(patience[in_vain - 1])
    kept = f"{transfer.arrived:,} bytes are kept: " if transfer.archive.digest else ""
    raise UserError(
        f"{transfer.url} cannot be fetched: {reason}; {kept}run the same command again to go on, "
        "or name another place with --mirror"
    )


@dataclass
class _Transfer:
    url: str
    archive: Archive
    file: BinaryIO
    progress: Progress
    total: int | None = None
    """The bytes of the whole file, as the server said when it sent its first ones."""
    version: str | None = None
    """The server's name for the version of the file that has arrived so far."""

    @property
    def arrived(self) -> int:
        return self.file.tell()

    def go_on(self) -> None:
        """Ask for the missing bytes, and write them.

        Raises:
          _StoppedError: the transfer was interrupted.
          UserError: the server has no such file, or its address is not valid.
          OSError: the bytes cannot be written.
        """
        if self.archive.size is not None and self.arrived >= self.archive.size:
            return
        if self.archive.digest is None and self.version is None:
            self._keep(0)  # nothing would tell whether what follows is of the same file
        request = urllib.request.Request(self.url, headers={"User-Agent": "t2t-jax"})
        if self.arrived:
            request.add_header("Range", f"bytes={self.arrived}-")
        try:
            answer = urllib.request.build_opener(_Moved).open(request, timeout=_TIMEOUT)
        except urllib.error.HTTPError as error:
            error.close()
            return self._refused(error)
        except (ValueError, http.client.InvalidURL) as error:
            raise self._given_up(f"its address leads to one that is none, {error}") from error
        except (OSError, http.client.HTTPException) as error:
            raise _StoppedError(_reason(error)) from error
        with answer:
            self._take(answer)

    def _take(self, answer: Any) -> None:
        first, total = _range(answer)
        version = answer.headers.get("ETag") or answer.headers.get("Last-Modified")
        is_other = self.archive.digest is None and version != self.version
        if first is None or first > self.arrived or (first and is_other):
            self._keep(0)
            raise _StoppedError("the server sent other bytes than it was asked for")
        if first < self.arrived:
            self._keep(first)
        if not first:
            self.total, self.version = total, version
        self._write(answer)
        expected = self.archive.size or self.total
        if expected is not None and self.arrived < expected:
            raise _StoppedError(
                f"the connection ended after {self.arrived:,} of {expected:,} bytes"
            )
        is_chunked = getattr(answer, "chunked", False)  # which has an end of its own
        if expected is None and self.archive.digest is None and not is_chunked:
            raise self._given_up("the server does not say how long the file is")

    def _write(self, answer: Any) -> None:
        """Write the body of an answer to its end, or to the maximum size of the file."""
        while self.arrived <= (self.archive.size or _LARGEST):  # what follows is wrong
            try:
                chunk = answer.read1(_CHUNK)  # what is there, at once: a kill then loses nothing
            except (OSError, ValueError, http.client.HTTPException) as error:
                raise _StoppedError(_reason(error)) from error
            if not chunk:
                return
            self.file.write(chunk)
            self.file.flush()
            self.progress(self.arrived)

    def _keep(self, size: int) -> None:
        self.file.truncate(size)
        self.file.seek(size)

    def _refused(self, error: urllib.error.HTTPError) -> None:
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            # Nothing follows what has arrived. Where that is not all, it is of another file.
            given = re.fullmatch(rf"bytes \*/({_NUMBER})", error.headers.get("Content-Range", ""))
            total = self.archive.size or (int(given[1]) if given else self.total)
            if self.arrived and total in (None, self.arrived):
                return
            self._keep(0)
            raise _StoppedError("the server has a shorter file") from error
        reason = f"the server answers {error.code} {error.reason}"
        if error.code in _TRANSIENT:
            raise _StoppedError(_reason(reason)) from error
        raise self._given_up(reason)

    def _given_up(self, reason: str) -> UserError:
        return UserError(
            f"{self.url} cannot be fetched: {_reason(reason)}; name another place with --mirror"
        )


class _Moved(urllib.request.HTTPRedirectHandler):
    """A handler that follows redirects, and closes one without a target."""

    def http_error_302(self, req: Any, fp: Any, code: Any, msg: Any, headers: Any) -> Any:
        try:
            return super().http_error_302(req, fp, code, msg, headers)
        except ValueError:
            fp.close()
            raise

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


def _range(answer: Any) -> tuple[int | None, int | None]:
    """Return the position of an answer's first byte in the file, and the size of the whole file.

    None means that the server gives no valid number.
    """
    if answer.status == http.HTTPStatus.PARTIAL_CONTENT:
        given = answer.headers.get("Content-Range", "")
        found = re.fullmatch(rf"bytes ({_NUMBER})-{_NUMBER}/(?:({_NUMBER})|\*)", given)
        if found is None:
            return None, None
        return int(found[1]), int(found[2]) if found[2] else None
    length = ", ".join(answer.headers.get_all("Content-Length", []))
    return 0, int(length) if re.fullmatch(_NUMBER, length) else None


def _reason(reason: object) -> str:
    if isinstance(reason, urllib.error.URLError):
        reason = reason.reason
    shown = "".join(letter if letter.isprintable() else " " for letter in str(reason))
    return in_one_line(shown)[:200] or type(reason).__name__
