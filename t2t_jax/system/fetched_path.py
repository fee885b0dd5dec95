"""Paths of read-only copies of runs."""

from pathlib import Path, PosixPath

from t2t_jax.errors import UserError


class FetchedPath(PosixPath):
    """A read-only file or directory of a run, in a cache or in the package."""


def check_own(path: Path) -> None:
    """Raise a `UserError` if a path to write is in a read-only copy of a run."""
    if isinstance(path, FetchedPath):
        raise UserError(
            f"{path} is a read-only copy; make a writable one by t2t-jax publish RUN DIRECTORY"
        )
