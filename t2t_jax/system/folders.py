"""The folders for files that belong to a user and not to a run."""

import os
from pathlib import Path
from typing import Literal


def user_folder(kind: Literal["cache", "state"]) -> Path:
    """Return the package's folder of a kind, by the XDG Base Directory Specification.

    Args:
      kind: "cache" is for files that can be made again, and "state" for files that cannot.
    """
    default = {"cache": "~/.cache", "state": "~/.local/state"}[kind]
    given = os.environ.get(f"XDG_{kind.upper()}_HOME", "").strip()
    return Path(given or os.path.expanduser(default)) / "t2t_jax"
