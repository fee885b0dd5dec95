"""Download a file from a server, and resume interrupted transfers.

Pooch and fsspec, which check sums too, restart an interrupted file from its beginning. The download
of huggingface_hub (2.4) keeps whole pieces of 10 MiB only, and asks a server without ranges again
for ever. Over a poor connection, archives would hardly ever arrive. Here the received bytes stay in
NAME.part, and the file takes its name once its content is right: by the published sum, or else by
the checksum at the end of a gzip file. What a server says about a file is never trusted.
"""

import fcntl
import gzip
import http.client
import os
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote, urlsplit, urlunsplit

from t2t_jax.data.lines import DAMAGE
from t2t_jax.errors import UserError, in_one_line
from t2t_jax.extras.corpora.catalogue import Archive
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


class _StoppedError(Exception):
    """The error of an interrupted transfer that can resume."""


def fetch_archive(
    archive: Archive,
    directory: Path,
    mirror: str | None = None,
    progress: Progress = lambda _: None,
) -> Path:
    """Download an archive unless it is there already, and return its path.

    Args:
      mirror: an address with the archives under their names, instead of their original servers.
      progress: called with the number of bytes received.
    """
    path, part = directory / archive.name, directory / f"{archive.name}.part"
    regular_file.check_regular(path)
    regular_file.check_regular(part)
    if path.exists():
        if fault := _fault(archive, path):
            raise UserError(f"{path} {fault}; remove it, and the same command fetches it again")
        return path
    url = _address(archive, mirror)
    try:
        with part.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _check_room(archive, file, directory)
            _complete(url, archive, file, progress)
            os.fsync(file.fileno())
    except BlockingIOError as error:
        raise UserError(f"another process is writing {part}; let it finish") from error
    except OSError as error:
        raise atomic_file.cannot_write(part, error) from error
    if fault := _fault(archive, part):
        part.unlink()
        raise UserError(
            f"what was fetched as {archive.name} {fault}; it was removed: run the same command "
            "again, or name another place with --mirror"
        )
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


def _check_room(archive: Archive, file: BinaryIO, directory: Path) -> None:
    missing, free = (archive.size or 0) - file.tell(), shutil.disk_usage(directory).free
    if missing > free:
        raise UserError(
            f"{directory} has room for {free:,} bytes, and {archive.name} needs {missing:,} more; "
            "make room there, or choose another directory"
        )


def _fault(archive: Archive, path: Path) -> str | None:
    """Return how a file differs from the published one; None if it does not."""
    size = path.stat().st_size
    kind, _, expected = (archive.digest or "").partition(":")
    if not size:
        return "is empty"
    if archive.size not in (None, size):
        return f"has {size:,} bytes, and the published file {archive.size:,}"
    if kind:
        if (found := sums.digest_of(path, kind)) == expected:
            return None
        return f"is not the published file: its {kind} sum is {found}, and not {expected}"
    try:
        with gzip.open(path) as content:
            while content.read(_CHUNK):
                pass
    except DAMAGE as error:
        return f"is damaged ({error})"
    return None


def _complete(url: str, archive: Archive, file: BinaryIO, progress: Progress) -> None:
    """Ask the server until all bytes have arrived, or several attempts in a row got none."""
    furthest, in_vain, reason = file.tell(), 0, ""
    for _ in range(_MOST_REQUESTS):
        if archive.size is not None and file.tell() >= archive.size:
            return
        try:
            for first, chunk in _received(url, file.tell(), archive.size):
                file.truncate(first)
                file.seek(first)
                file.write(chunk)
                file.flush()
                progress(file.tell())
            return
        except _StoppedError as stopped:
            reason = str(stopped)
        in_vain = 0 if file.tell() > furthest else in_vain + 1
        furthest = max(furthest, file.tell())
        if in_vain > len(_PATIENCE):
            break
        if in_vain:
            time.sleep(_PATIENCE[in_vain - 1])
    kept = f"{file.tell():,} bytes are kept: " if file.tell() else ""
    raise UserError(
        f"{url} cannot be fetched: {reason}; {kept}run the same command again to go on, or name "
        "another place with --mirror"
    )


def _received(url: str, first: int, size: int | None) -> Iterator[tuple[int, bytes]]:
    """Ask for the bytes of a file from `first` on, and yield the answer in pieces.

    Yields:
      The position of each piece, from which on earlier bytes are void; and its bytes.

    Raises:
      _StoppedError: the transfer was interrupted.
      UserError: the server has no such file, or its address is not valid.
    """
    headers = {"User-Agent": "t2t-jax"} | ({"Range": f"bytes={first}-"} if first else {})
    try:
        request = urllib.request.Request(url, headers=headers)
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
            if answer.status != http.HTTPStatus.PARTIAL_CONTENT:
                first = 0
            elif not answer.headers.get("Content-Range", "").startswith(f"bytes {first}-"):
                yield 0, b""
                raise _StoppedError("the server sent other bytes than it was asked for")
            length = answer.headers.get("Content-Length", "")
            expected = size or (
                first + int(length) if length.isdecimal() and len(length) < 19 else 0
            )
            while chunk := answer.read1(_CHUNK):  # what is there: a kill then loses nothing
                yield first, chunk
                first += len(chunk)
                if size and first > size:
                    return
            if first < expected:
                raise _StoppedError(f"the connection ended after {first:,} of {expected:,} bytes")
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            yield 0, b""
            raise _StoppedError("the server has a shorter file") from error
        reason = f"the server answers {error.code} {_reason(error)}"
        if error.code in _TRANSIENT:
            raise _StoppedError(reason) from error
        raise UserError(
            f"{url} cannot be fetched: {reason}; name another place with --mirror"
        ) from error
    except (ValueError, http.client.InvalidURL) as error:
        raise UserError(
            f"{url} cannot be fetched: its address leads to one that is none, {_reason(error)}; "
            "name another place with --mirror"
        ) from error
    except (OSError, http.client.HTTPException) as error:
        raise _StoppedError(_reason(error)) from error


def _reason(error: Exception) -> str:
    text = str(getattr(error, "reason", error))
    shown = "".join(letter if letter.isprintable() else " " for letter in text)
    return in_one_line(shown)[:200] or type(error).__name__
