"""Which files a corpus may have: regular ones, as reading a pipe or a device may never end."""

import stat
from pathlib import Path

from t2t_jax.errors import UserError


def check_regular(path: Path) -> None:
    """Refuse what is there and is no regular file, before it is opened.

    Args:
      path: a file, which may be missing: whoever opens it says so.

    Raises:
      UserError: a directory, a named pipe, a socket or a device is there.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):  # missing, or a name that no file can have
        return
    if not stat.S_ISREG(mode):
        raise UserError(
            f"{path} cannot be read: it is a directory, a pipe or a device; put a file in its place"
        )
