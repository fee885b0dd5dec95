"""Locks that keep two training runs out of one directory, in a file system or a bucket."""

import fcntl
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from t2t_jax.errors import warn
from t2t_jax.system.bucket import BucketPath, content_of
from t2t_jax.system.regular_file import check_regular, regular

LOCK = ".lock"
"""Name of the lock file in a run directory."""

_HEARTBEAT_SECONDS = 20.0
_TIMEOUT_SECONDS = 3 * _HEARTBEAT_SECONDS  # after which the owner is presumed dead
_SETTLE_SECONDS = 2.0  # in which two processes that take over at once see each other
_RELEASE_SECONDS = 3.0

_held: set[str] = set()


def holding(path: Path, owner: str) -> AbstractContextManager[None]:
    """Hold a lock in a `with` block.

    The kernel releases a file lock when its process ends. In a bucket, the lock is an object, which
    the owner rewrites as a heartbeat. If the owner was killed, another process takes over the lock:
    at once on the same machine, or else after one minute without heartbeat.

    Args:
      owner: a word that identifies the owner, at the start of the lock file.

    Raises:
      BlockingIOError: another process holds the lock.
    """
    return _object_lock(path, owner) if isinstance(path, BucketPath) else _file_lock(path, owner)


def is_held(path: Path) -> bool:
    """Return whether another process holds a lock; in a bucket, whether its heartbeat is recent."""
    if isinstance(path, BucketPath):
        with suppress(FileNotFoundError):
            return time.time() - path.stat().st_mtime < _TIMEOUT_SECONDS
        return False
    try:
        with regular(path).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:  # also if the file is missing, or the filesystem has no locks
        return isinstance(error, BlockingIOError)
    return False


def is_lost(path: BucketPath) -> bool:
    """Return whether another process has taken over a lock of this process."""
    content = _content_of(path)
    return bool(content) and content.split()[0] not in _held


@contextmanager
def _file_lock(path: Path, owner: str) -> Iterator[None]:
    check_regular(path)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError as error:  # some network filesystems have no locks
            warn(
                f"{path.parent} cannot be locked ({error.strerror}): make sure that no other "
                "process trains in it"
            )
        file.truncate(0)
        file.write(owner)
        file.flush()
        os.fsync(file.fileno())
        yield


@contextmanager
def _object_lock(path: BucketPath, owner: str) -> Iterator[None]:
    _acquire(path, owner)
    stop = threading.Event()
    heartbeat = threading.Thread(target=_renew, args=(path, owner, stop), daemon=True, name="lock")
    heartbeat.start()
    _held.add(owner)
    try:
        yield
    finally:
        _held.discard(owner)
        stop.set()
        # If the store is unreachable, the lock expires after a minute.
        releaser = threading.Thread(target=_release, args=(path, owner, heartbeat), daemon=True)
        releaser.start()
        releaser.join(_RELEASE_SECONDS)


def _release(path: BucketPath, owner: str, heartbeat: threading.Thread) -> None:
    heartbeat.join()
    with suppress(OSError, ValueError):
        if _owner_of(path) == owner:
            path.unlink(missing_ok=True)


def _acquire(path: BucketPath, owner: str) -> None:
    content = f"{owner} {_this_process()} 0".encode()
    while True:
        with suppress(FileExistsError):
            path.write_bytes(content, mode="create")
            return
        if _is_abandoned(path):  # otherwise, the lock was removed meanwhile
            path.write_bytes(content)
            time.sleep(_SETTLE_SECONDS)
            if _owner_of(path) != owner:
                raise BlockingIOError
            return


def _is_abandoned(path: BucketPath) -> bool:
    """Return whether a lock exists but its owner is dead; raise `BlockingIOError` if alive."""
    content = _content_of(path)
    if content and len(content.split()) == 1:
        return True  # a lock file, copied with the run from a local directory
    machine, _, process = (content.split()[1:2] or [""])[0].partition("/")
    if content and machine == _machine():
        process_id, _, start_time = process.partition("-")
        is_own = process_id == str(os.getpid())  # this process failed to remove its earlier lock
        if _start_time(process_id) == start_time and (not is_own or content.split()[0] in _held):
            raise BlockingIOError
        return True
    if content:
        warn(
            f"{path} exists: another process trains in this directory, or was killed; waiting "
            f"{_TIMEOUT_SECONDS:.0f} s for its heartbeat"
        )
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while content and time.monotonic() < deadline:
        time.sleep(_SETTLE_SECONDS)
        new_content = _content_of(path)
        if new_content and new_content != content:
            raise BlockingIOError
        content = new_content
    return bool(content)


def _renew(path: BucketPath, owner: str, stop: threading.Event) -> None:
    """Rewrite a lock periodically; send SIGTERM to this process if another one took the lock."""
    num_heartbeats = 0
    while not stop.wait(_HEARTBEAT_SECONDS):
        num_heartbeats += 1
        with suppress(OSError, ValueError):  # the store is temporarily unreachable
            if _owner_of(path) != owner:
                warn(f"another process took the lock {path}; this process stops")
                os.kill(os.getpid(), signal.SIGTERM)
                return
            path.write_bytes(f"{owner} {_this_process()} {num_heartbeats}".encode())


def _content_of(path: BucketPath) -> str:
    return (content_of(path) or b"").decode()


def _owner_of(path: BucketPath) -> str:
    return (_content_of(path).split() or [""])[0]


def _this_process() -> str:
    process_id = str(os.getpid())
    return f"{_machine()}/{process_id}-{_start_time(process_id)}"


def _machine() -> str:
    """Return an id that differs between machines and between PID namespaces."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}:{Path('/proc/self/ns/pid').readlink()}"
    return f"unknown:{os.urandom(8).hex()}"  # not Linux: wait for every lock


def _start_time(process_id: str) -> str:
    """Return the start time of a process, in clock ticks; "" if it does not exist."""
    with suppress(OSError):
        status = Path(f"/proc/{process_id}/stat").read_text(encoding="utf-8", errors="replace")
        return status.rpartition(")")[2].split()[19]
    return ""
