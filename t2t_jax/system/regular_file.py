"""Files that are read to their end. A named pipe or a device may never come to one."""

import errno
import os
import stat
from pathlib import Path


def regular(path: Path) -> Path:
    """The path itself, if it leads to a regular file, also over links.

    Raises:
      OSError: there is nothing, or something else, such as a directory or a named pipe.
    """
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is no regular file, but a pipe or a device", str(path))
    return path
