"""Check for regular files: reading a named pipe or a device may never end."""

import errno
import os
import stat
from pathlib import Path

from t2t_jax.errors import UserError


def regular(path: Path) -> Path:
    """Return the path if it is a regular file, or a link to one.

    Raises:
      OSError: the file is missing, or is something else, such as a directory or a named pipe.
    """
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is not a regular file, but a pipe or a device", str(path))
    return path


def check_regular(path: Path) -> None:
    """Raise a `UserError` for a directory, a pipe or a device; the file may be missing."""
    try:
        regular(path)
    except ValueError:  # an invalid file name
        return
    except OSError as error:
        if error.errno in (errno.EISDIR, errno.EINVAL):
            raise UserError(
                f"{path} cannot be read: it is a directory, a pipe or a device; put a file there"
            ) from error
