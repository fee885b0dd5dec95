"""Exit codes of programs, and which of them make a scheduler restart a job."""

import errno
import re
import signal

from t2t_jax.errors import DivergedError, LostProcessError, UserError

REFUSED = 2
"""Exit code after an error that the user must fix."""
STOPPED = 128 + signal.SIGTERM
"""Exit code after SIGTERM and a checkpoint, from which the same command resumes: 143."""
HUNG = 75
"""Exit code after a step timeout, or after another process was lost; see `run.watchdog`.

`sysexits.h` calls it EX_TEMPFAIL: a temporary failure, after which a restart may succeed.
"""
IO_ERROR = 74
"""Exit code after a temporary storage fault, such as a full disk (EX_IOERR of `sysexits.h`)."""
DIVERGED = 76
"""Exit code after a loss, a gradient or probabilities that are not finite."""
FINAL = (0, REFUSED, DIVERGED, 128 + signal.SIGINT)
"""Exit codes after which a scheduler does not restart the training run."""
EXCLUDED_HOSTS = "hangs/hosts"
"""File in a run directory: one line per exit with `HUNG`, with the host of the missing process."""

_PASSING = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EREMOTEIO),
    *(errno.ENOTCONN, errno.ECONNRESET, errno.ECONNREFUSED, errno.EHOSTDOWN),
    *(errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH),
}


def may_pass(error: BaseException | None) -> bool:
    """Return whether an error, or an error in its chain, is a temporary storage fault."""
    while error is not None:
        # Errors of TensorStore, which writes checkpoint arrays, have the errno only in their text.
        match = re.search(r"\[(?:OS error |os_error_code=')(\d+)", str(error))
        code = error.errno if isinstance(error, OSError) else int(match[1]) if match else None
        # A barrier timed out: another process is late, for example because of slow storage.
        if code in _PASSING or "DEADLINE_EXCEEDED" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def exit_code_of(error: BaseException) -> int | None:
    """Return the exit code for an error that ends the program; None if it is unexpected."""
    if isinstance(error, LostProcessError):
        return HUNG
    if isinstance(error, DivergedError):
        return DIVERGED
    if isinstance(error, UserError | OSError | MemoryError):
        return IO_ERROR if may_pass(error) else REFUSED
    return None
