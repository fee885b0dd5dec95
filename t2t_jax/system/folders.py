"""Directories for files that belong to a user and not to a run."""

import os
from pathlib import Path
from typing import Literal


def user_folder(kind: Literal["cache", "state"]) -> Path:
    """Return a user directory of the package, by the XDG Base Directory Specification.

    Args:
      kind: "cache" for files that can be recreated, "state" for files that cannot.
    """
    default = {"cache": "~/.cache", "state": "~/.local/state"}[kind]
    override = os.environ.get(f"XDG_{kind.upper()}_HOME", "").strip()
    return Path(override or os.path.expanduser(default)) / "t2t_jax"
