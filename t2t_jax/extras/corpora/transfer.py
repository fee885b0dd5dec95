"""Download a file from a server, and resume interrupted downloads.

Received bytes stay in NAME.part. The file takes its name after its content is verified by the
published checksum, or else by the checksum at the end of a gzip file.
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

# Other libraries lose too much on a poor connection: Pooch and fsspec restart a file from its
# beginning, and huggingface_hub 2.4 keeps only whole pieces of 10 MiB. If a server has no range
# requests, huggingface_hub retries forever.

Progress = Callable[[int], None]
"""A function that receives the number of bytes that have arrived so far."""

_CHUNK = 1 << 20
_TIMEOUT = 60.0
_TRANSIENT = (408, 425, 429, 500, 502, 503, 504)
"""The HTTP status codes after which the download retries."""
_PATIENCE = (1.0, 4.0, 15.0)
"""The seconds to wait before each retry while no attempt receives new bytes."""
_MOST_REQUESTS = 1000
"""The maximum number of requests for a file."""


class _StoppedError(Exception):
    """The error of an interrupted download that can resume."""


def fetch_archive(
    archive: Archive,
    directory: Path,
    mirror: str | None = None,
    progress: Progress = lambda _: None,
) -> Path:
    """Download an archive unless the directory has it, and return its path.

    Args:
      mirror: the URL of a directory that holds the archives under their names.
      progress: called with the number of bytes received so far.
    """
    path, part_path = directory / archive.name, directory / f"{archive.name}.part"
    regular_file.check_regular(path)
    regular_file.check_regular(part_path)
    if path.exists():
        if fault := _fault(archive, path):
            raise UserError(f"{path} {fault}; remove it, and the same command fetches it again")
        return path
    url = _address(archive, mirror)
    try:
        with part_path.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _check_room(archive, file, directory)
            _complete(url, archive, file, progress)
            os.fsync(file.fileno())
    except BlockingIOError as error:
        raise UserError(f"another process is writing {part_path}; let it finish") from error
    except OSError as error:
        raise atomic_file.cannot_write(part_path, error) from error
    if fault := _fault(archive, part_path):
        part_path.unlink()
        raise UserError(
            f"the download of {archive.name} {fault}; it was removed: run the same command again, "
            "or name a mirror with --mirror"
        )
    return part_path.replace(path)


def _address(archive: Archive, mirror: str | None) -> str:
    url = f"{mirror.rstrip('/')}/{archive.name}" if mirror else archive.url
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise UserError(f"--mirror={mirror} is not a URL ({error}); check it") from error
    if "://" not in url:
        raise UserError(f"--mirror={mirror} is not a URL; begin it with https:// or file:///")
    return urlunsplit(parts._replace(path=quote(parts.path, safe="%/:=&~+!$,;'@()*")))


def _check_room(archive: Archive, file: BinaryIO, directory: Path) -> None:
    missing_bytes, free_bytes = (archive.size or 0) - file.tell(), shutil.disk_usage(directory).free
    if missing_bytes > free_bytes:
        raise UserError(
            f"{directory} has room for {free_bytes:,} bytes, but {archive.name} needs "
            f"{missing_bytes:,} more; make room there, or choose another directory"
        )


def _fault(archive: Archive, path: Path) -> str | None:
    """Return how a file differs from the published archive, or None if it is correct."""
    num_bytes = path.stat().st_size
    algorithm, _, expected = (archive.digest or "").partition(":")
    if not num_bytes:
        return "is empty"
    if archive.size not in (None, num_bytes):
        return f"has {num_bytes:,} bytes, but the published file {archive.size:,}"
    if algorithm:
        if (digest := sums.digest_of(path, algorithm)) == expected:
            return None
        return f"is not the published file: its {algorithm} sum is {digest}, not {expected}"
    try:
        with gzip.open(path) as content:
            while content.read(_CHUNK):
                pass
    except DAMAGE as error:
        return f"is damaged ({error})"
    return None


def _complete(url: str, archive: Archive, file: BinaryIO, progress: Progress) -> None:
    """Append the missing bytes of `url` to a partial file, and resume after interruptions.

    Raises:
      UserError: several attempts in a row received nothing.
    """
    largest_size, num_failures, reason = file.tell(), 0, ""
    for _ in range(_MOST_REQUESTS):
        if archive.size is not None and file.tell() >= archive.size:
            return
        try:
            for offset, chunk in _request_pieces(url, file.tell(), archive.size):
                file.truncate(offset)
                file.seek(offset)
                file.write(chunk)
                file.flush()
                progress(file.tell())
            return
        except _StoppedError as stopped:
            reason = str(stopped)
        num_failures = 0 if file.tell() > largest_size else num_failures + 1
        largest_size = max(largest_size, file.tell())
        if num_failures > len(_PATIENCE):
            break
        if num_failures:
            time.sleep(_PATIENCE[num_failures - 1])
    note = f"{file.tell():,} bytes are kept: " if file.tell() else ""
    raise UserError(
        f"{url} cannot be fetched: {reason}; {note}run the same command again to resume, or name a "
        "mirror with --mirror"
    )


def _request_pieces(url: str, offset: int, size: int | None) -> Iterator[tuple[int, bytes]]:
    """Request a file from byte `offset` on, and yield the response in pieces.

    Args:
      size: the size of the whole file, if known.

    Yields:
      The offset and the bytes of each piece, which replaces all earlier bytes from its offset on.

    Raises:
      _StoppedError: the download was interrupted.
      UserError: the server has no such file, or the URL is invalid.
    """
    headers = {"User-Agent": "t2t-jax"} | ({"Range": f"bytes={offset}-"} if offset else {})
    try:
        request = urllib.request.Request(url, headers=headers)
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as response:
            if response.status != http.HTTPStatus.PARTIAL_CONTENT:
                offset = 0
            elif not response.headers.get("Content-Range", "").startswith(f"bytes {offset}-"):
                yield 0, b""
                raise _StoppedError("the server sent other bytes than requested")
            length = response.headers.get("Content-Length", "")
            expected = size or (
                offset + int(length) if length.isdecimal() and len(length) < 19 else 0
            )
            while chunk := response.read1(_CHUNK):  # returns at once, so a kill loses few bytes
                yield offset, chunk
                offset += len(chunk)
                if size and offset > size:
                    return
            if offset < expected:
                raise _StoppedError(f"the connection ended after {offset:,} of {expected:,} bytes")
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            yield 0, b""
            raise _StoppedError("the server has a shorter file") from error
        reason = f"the server answers {error.code} {_reason(error)}"
        if error.code in _TRANSIENT:
            raise _StoppedError(reason) from error
        raise UserError(
            f"{url} cannot be fetched: {reason}; name a mirror with --mirror"
        ) from error
    except (ValueError, http.client.InvalidURL) as error:
        raise UserError(
            f"{url} cannot be fetched: the URL, or its redirect, is invalid ({_reason(error)}); "
            "name a mirror with --mirror"
        ) from error
    except (OSError, http.client.HTTPException) as error:
        raise _StoppedError(_reason(error)) from error


def _reason(error: Exception) -> str:
    text = str(getattr(error, "reason", error))
    printable = "".join(letter if letter.isprintable() else " " for letter in text)
    return in_one_line(printable)[:200] or type(error).__name__
