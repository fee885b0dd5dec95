"""Locks that keep two runs out of one directory, in a file system or in a bucket."""

import fcntl
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from t2t_jax.errors import warn
from t2t_jax.system.bucket import BucketPath, content_of
from t2t_jax.system.regular_file import check_regular, regular

LOCK = ".lock"
"""The name of the lock in the directory of a run."""

_BEAT_SECONDS = 20.0
_SILENT_SECONDS = 3 * _BEAT_SECONDS  # of an owner that is taken for dead
_SETTLE_SECONDS = 2.0  # within which two that take over at once see each other
_RELEASE_SECONDS = 3.0

_held: set[str] = set()


@contextmanager
def holding(path: Path, mark: str) -> Iterator[None]:
    """Hold a lock, whose file begins with a mark that other processes can look for.

    The kernel unlocks a file when its process ends, in any way. In a bucket, an object is created
    only if there is none, rewritten while the lock is held, and removed at the end. If its owner
    was killed, the next process takes the lock over: at once if it sees on its machine that the
    owner is gone, and otherwise after a minute without writes.

    Raises:
      BlockingIOError: another process holds the lock.
    """
    with _holding_object(path, mark) if isinstance(path, BucketPath) else _holding_file(path, mark):
        yield


def is_held(path: Path) -> bool:
    """Return whether another process holds a lock; for an object, whether it is still rewritten.

    The check locks a file for a moment, and writes nothing.
    """
    if isinstance(path, BucketPath):
        with suppress(FileNotFoundError):
            return time.time() - path.stat().st_mtime < _SILENT_SECONDS
        return False
    try:
        with regular(path).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:  # also where there is no file, or the filesystem has no locks
        return isinstance(error, BlockingIOError)
    return False


def is_lost(path: BucketPath) -> bool:
    """Return whether another process has taken over a lock that this one held."""
    content = _content_of(path)
    return bool(content) and content.split()[0] not in _held


@contextmanager
def _holding_file(path: Path, mark: str) -> Iterator[None]:
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
        file.write(mark)
        file.flush()
        os.fsync(file.fileno())
        yield


@contextmanager
def _holding_object(path: BucketPath, mark: str) -> Iterator[None]:
    _acquire(path, mark)
    ended = threading.Event()
    beating = threading.Thread(target=_beat, args=(path, mark, ended), daemon=True, name="lock")
    beating.start()
    _held.add(mark)
    try:
        yield
    finally:
        _held.discard(mark)
        ended.set()
        # The store may be gone; others wait a minute then.
        removing = threading.Thread(target=_release, args=(path, mark, beating), daemon=True)
        removing.start()
        removing.join(_RELEASE_SECONDS)


def _release(path: BucketPath, mark: str, beating: threading.Thread) -> None:
    beating.join()
    with suppress(OSError, ValueError):
        if _mark_of(path) == mark:
            path.unlink(missing_ok=True)


def _acquire(path: BucketPath, mark: str) -> None:
    content = f"{mark} {_this_process()} 0".encode()
    while True:
        with suppress(FileExistsError):
            path.write_bytes(content, mode="create")
            return
        if _is_abandoned(path):  # else it is gone by now
            path.write_bytes(content)
            time.sleep(_SETTLE_SECONDS)
            if _mark_of(path) != mark:
                raise BlockingIOError
            return


def _is_abandoned(path: BucketPath) -> bool:
    """Return whether there is a lock whose owner is gone; raise a `BlockingIOError` if it lives."""
    seen = _content_of(path)
    if seen and len(seen.split()) == 1:
        return True  # the file of a directory, from which the run was copied
    machine, _, process = (seen.split()[1:2] or [""])[0].partition("/")
    if seen and machine == _machine():
        number, _, started = process.partition("-")
        is_own = number == str(os.getpid())  # left by a store that failed when it was to be removed
        if _start_of(number) == started and (not is_own or seen.split()[0] in _held):
            raise BlockingIOError
        return True
    if seen:
        warn(
            f"{path} is there: another process trains in this directory, or was killed in it; this "
            f"one waits for {_SILENT_SECONDS:.0f} s to see which"
        )
    latest = time.monotonic() + _SILENT_SECONDS
    while seen and time.monotonic() < latest:
        time.sleep(_SETTLE_SECONDS)
        now = _content_of(path)
        if now and now != seen:
            raise BlockingIOError
        seen = now
    return bool(seen)


def _beat(path: BucketPath, mark: str, ended: threading.Event) -> None:
    """Rewrite a lock repeatedly; end the program like SIGTERM if another process has taken it."""
    count = 0
    while not ended.wait(_BEAT_SECONDS):
        count += 1
        with suppress(OSError, ValueError):  # the store is away for a while
            if _mark_of(path) != mark:
                warn(f"{path} was taken by another process; this one stops")
                os.kill(os.getpid(), signal.SIGTERM)
                return
            path.write_bytes(f"{mark} {_this_process()} {count}".encode())


def _content_of(path: BucketPath) -> str:
    return (content_of(path) or b"").decode()


def _mark_of(path: BucketPath) -> str:
    return (_content_of(path).split() or [""])[0]


def _this_process() -> str:
    """Return this process as MACHINE/NUMBER-START, which identifies it to others."""
    number = str(os.getpid())
    return f"{_machine()}/{number}-{_start_of(number)}"


def _machine() -> str:
    """Return a name that differs between machines, and containers with separate processes."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}:{Path('/proc/self/ns/pid').readlink()}"
    except OSError:  # a system that does not have them: every lock is waited for
        return f"unknown:{os.urandom(8).hex()}"


def _start_of(number: str) -> str:
    """Return the start time of a process, or "" if there is none."""
    try:
        status = Path(f"/proc/{number}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return status.rpartition(")")[2].split()[19]
