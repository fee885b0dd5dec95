"""Paths of read-only copies of runs."""

from pathlib import Path, PosixPath

from t2t_jax.errors import UserError


class FetchedPath(PosixPath):
    """A file or a directory of a run that nothing changes: in a cache, or in the package."""


def check_own(path: Path) -> None:
    """Refuse to write to a read-only copy."""
    if isinstance(path, FetchedPath):
        raise UserError(
            f"{path} is a read-only copy; make one of your own by t2t-jax publish RUN DIRECTORY"
        )
