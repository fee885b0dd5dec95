"""Which exit code an error gives a program."""

import errno

import pytest

from t2t_jax.errors import DivergedError, LostProcessError, UserError
from t2t_jax.system.exit_codes import DIVERGED, FINAL, HUNG, IO_ERROR, STOPPED, exit_code_of


def test_four_codes_end_a_job_for_good():
    assert FINAL == (0, 2, 76, 130)
    assert DIVERGED in FINAL
    assert not {STOPPED, HUNG, IO_ERROR, 1, 129, 134, 137} & {*FINAL}


def _caused_by(error):
    wrapped = UserError("it cannot be written")
    wrapped.__cause__ = error
    return wrapped


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UserError("no such field"), 2),
        (DivergedError("the loss is not finite"), 76),
        (LostProcessError("process 1 is gone"), 75),
        *[(OSError(getattr(errno, name), name), 2) for name in ("ENOENT", "EACCES", "EROFS")],
        *[
            (OSError(getattr(errno, name), name), 74)
            for name in ("ENOSPC", "EIO", "ESTALE", "EDQUOT", "ETIMEDOUT", "EREMOTEIO")
        ],
        (_caused_by(OSError(errno.ESTALE, "Stale file handle")), 74),
        (_caused_by(OSError(errno.EACCES, "Permission denied")), 2),
        (_caused_by(ValueError("RESOURCE_EXHAUSTED: Error writing x [OS error 28: ENOSPC]")), 74),
        (_caused_by(ValueError("Failed to write 4 bytes: ... [os_error_code='28']")), 74),
        (_caused_by(ValueError("NOT_FOUND: Error opening x [OS error 2: ENOENT]")), 2),
        (ZeroDivisionError("division by zero"), None),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_storage_fault_that_may_pass_is_not_a_refusal(error, code):
    assert exit_code_of(error) == code
