"""The exit codes of programs: the ones that end a job for good, and the ones that restart it."""

import errno
import re
import signal

from t2t_jax.errors import DivergedError, LostProcessError, UserError

REFUSED = 2
"""The code after an error that the user must fix first."""
STOPPED = 128 + signal.SIGTERM
"""The code after SIGTERM, with a checkpoint from which the same command goes on: 143."""
HUNG = 75
"""The code after no step ended in time, as one process did not come to it; see `run.watchdog`.

The other processes end with it, too, after one of them is gone.
`sysexits.h` calls it EX_TEMPFAIL: a failure that may be gone when the program is started again.
"""
IO_ERROR = 74
"""The code after a storage fault that may pass, such as a full disk (EX_IOERR of `sysexits.h`)."""
DIVERGED = 76
"""The code after a loss, a gradient or probabilities that are not finite."""
FINAL = (0, REFUSED, DIVERGED, 128 + signal.SIGINT)
"""The codes that end a job for good; after any other code a scheduler restarts the training."""
EXCLUDED_HOSTS = "hangs/hosts"
"""The file in a run directory with the host of the process that was missing, one line for each time
that a training has ended with `HUNG`."""

_PASSING = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EREMOTEIO),
    *(errno.ENOTCONN, errno.ECONNRESET, errno.ECONNREFUSED, errno.EHOSTDOWN),
    *(errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH),
}


def may_pass(error: BaseException | None) -> bool:
    """Return whether an error, or an error before it, is a storage fault that may pass."""
    while error is not None:
        # TensorStore, which writes the arrays of checkpoints, has the number only in its text.
        code = re.search(r"\[(?:OS error |os_error_code=')(\d+)", str(error))
        number = error.errno if isinstance(error, OSError) else int(code[1]) if code else None
        # At a barrier, another process is late, as by slow storage.
        if number in _PASSING or "DEADLINE_EXCEEDED" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def exit_code_of(error: BaseException) -> int | None:
    """Return the exit code of a program that an error ends; None if the error is unexpected."""
    if isinstance(error, LostProcessError):
        return HUNG
    if isinstance(error, DivergedError):
        return DIVERGED
    if isinstance(error, UserError | OSError | MemoryError):
        return IO_ERROR if may_pass(error) else REFUSED
    return None
