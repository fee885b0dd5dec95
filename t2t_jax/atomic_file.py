"""Files that are there whole or not at all."""

import os
from pathlib import Path


def write_whole(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file, so that a reader, or a process killed midway, never sees a part of it."""
    path = Path(path)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        unfinished.write_bytes(content)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
