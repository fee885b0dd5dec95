"""The lock of a run directory, which one training at a time holds and all its processes see."""

import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from t2t_jax.errors import UserError
from t2t_jax.parallel.processes import is_main, of_main, one_without
from t2t_jax.system.lock import holding, is_held

_LOCK = ".lock"
_SECONDS_TO_BE_SEEN = 60.0


@contextmanager
def locked(workdir: Path) -> Iterator[None]:
    """Create the directory if needed, and lock it within a block with `system.lock`.

    Process 0 holds the lock, and other processes check that they see the same directory.

    Raises:
      UserError: another process trains in the directory, or not all processes see the same one.
    """
    if not is_main():
        _check_shared(workdir, of_main(0))
        yield
        return
    workdir.mkdir(parents=True, exist_ok=True)
    mark = secrets.randbelow(2**31)
    with ExitStack() as stack:
        try:
            stack.enter_context(holding(workdir / _LOCK, str(mark)))
        except BlockingIOError as error:
            raise _is_held(workdir) from error
        _check_shared(workdir, of_main(mark))
        yield


def check_free(workdir: Path) -> None:
    """Refuse a directory in which another process trains."""
    if is_held(workdir / _LOCK):
        raise _is_held(workdir)


def _is_held(workdir: Path) -> UserError:
    return UserError(
        f"another process trains in {workdir}; wait for it, or choose another --workdir"
    )


def _check_shared(workdir: Path, mark: int) -> None:
    """Refuse a directory in which not every process finds the mark of process 0."""
    blind = one_without(_finds(workdir / _LOCK, mark))
    if blind is not None:
        raise UserError(
            f"{workdir} is not the same directory on process {blind} as on process 0; put it on a "
            "filesystem that all hosts share"
        )


def _finds(path: Path, mark: int) -> bool:
    """Return whether a file has the mark, or gets it soon: files of another host appear late."""
    latest = time.monotonic() + _SECONDS_TO_BE_SEEN
    while True:
        with suppress(OSError):
            if path.read_text().split()[:1] == [str(mark)]:
                return True
        if time.monotonic() > latest:
            return False
        time.sleep(0.1)
