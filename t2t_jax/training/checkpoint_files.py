"""List and remove checkpoints without Orbax, which imports slowly."""

import shutil
from contextlib import suppress
from pathlib import Path

from t2t_jax.system.bucket import BucketPath, remove
from t2t_jax.system.mirror import PARAMETERS_ONLY, complete_in


def steps_in(directory: Path) -> list[int]:
    """List the steps of the complete checkpoints in a directory, oldest first."""
    if isinstance(directory, BucketPath):
        return sorted(int(name) for name in complete_in(directory) if name.isdecimal())
    return sorted(int(path.name) for path in directory.iterdir() if path.name.isdecimal())


def steps_of_run(run: Path, name: str) -> list[int]:
    """List the steps of the complete checkpoints in a directory of a run, which may be missing."""
    return steps_in(run / name) if (run / name).is_dir() else []


def has_progress(path: Path) -> bool:
    """Return whether a checkpoint has the optimizer state, which resuming needs."""
    return not (path / PARAMETERS_ONLY).exists()


def drop_progress(path: Path) -> None:
    """Remove the optimizer state of a complete checkpoint; only process 0 calls this."""
    with suppress(OSError):  # on failure the checkpoint only stays larger
        if (path / "progress").is_dir():
            # The marker comes first: after a kill in between, the checkpoint is not damaged.
            (path / PARAMETERS_ONLY).write_bytes(b"")
            remove_tree(path / "progress")


def remove_tree(path: Path) -> None:
    """Remove a directory, or all objects of a bucket with its prefix."""
    if isinstance(path, BucketPath):
        remove(path.objects())
    else:
        shutil.rmtree(path, ignore_errors=True)
