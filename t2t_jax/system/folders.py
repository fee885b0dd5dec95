"""The folders in which programs keep what is of a user and of no run."""

import os
from pathlib import Path
from typing import Literal


def user_folder(kind: Literal["cache", "state"]) -> Path:
    """The package's folder of a kind, as the XDG Base Directory Specification has it.

    Args:
      kind: "cache" is for what can be made again, and "state" for what cannot.
    """
    default = {"cache": "~/.cache", "state": "~/.local/state"}[kind]
    given = os.environ.get(f"XDG_{kind.upper()}_HOME", "").strip()
    return Path(given or os.path.expanduser(default)) / "t2t_jax"
