"""A process of several that fails or is silent ends the others at once, and is named."""

import signal
import socket
import time

import pytest

from t2t_jax.system.exit_codes import EXCLUDED_HOSTS, HUNG, REFUSED
from tests.trained import wait_for_step

LONG = "--training.num-train-steps=5000"


@pytest.fixture
def two(tiny_run, tmp_path):
    """A function that starts two processes, of which one raises an error at step 9, or none."""

    def start(failing=None, error=None, *more):
        where = f"'--process-id={failing}' in sys.argv"
        planted = tiny_run.with_fault(tmp_path, where, f"if step == 9: raise {error}")
        return planted.start(tmp_path / "run", flags, *more, LONG, processes=2)

    flags = f"--data.corpus={tiny_run.without_dev['data.corpus']}"
    return start


@pytest.mark.thorough
@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize(
    ("error", "codes"),
    [("ZeroDivisionError('zero')", (1, HUNG)), ("UserError('zero')", (REFUSED, REFUSED))],
)
def test_an_error_of_one_process_ends_both_at_once(two, failing, error, codes):
    programs = two(failing, error)
    wait_for_step(programs[0], 8)
    begun = time.monotonic()
    ended = [program.communicate(timeout=60) for program in programs]
    assert time.monotonic() - begun < 20
    codes = codes if failing == 0 else codes[::-1]
    assert tuple(program.returncode for program in programs) == codes, ended
    place = f"process {failing} on {socket.gethostname()}"
    assert f"error: {place}: " in ended[failing][1]
    other = ended[1 - failing][1].splitlines()
    assert len(other) == 1, other
    assert f": {place} ended: {error[: error.index('(')].replace('UserError', 'zero')}" in other[0]
    assert ("Traceback" in ended[failing][1]) == (1 in codes)


@pytest.mark.thorough
@pytest.mark.parametrize("silent", [0, 1])
def test_a_process_that_is_suspended_is_named_by_the_other(two, tmp_path, silent):
    programs = two(None, None, "--parallel.hang-minutes=0.3")  # silent for 10 s
    wait_for_step(programs[0], 8)
    programs[silent].send_signal(signal.SIGSTOP)
    _, errors = programs[1 - silent].communicate(timeout=60)
    assert programs[1 - silent].returncode == HUNG, errors
    assert f"process {silent} on {socket.gethostname()} has been silent for 10 s" in errors
    assert (tmp_path / "run" / EXCLUDED_HOSTS).read_text() == f"{socket.gethostname()}\n"
    programs[silent].send_signal(signal.SIGCONT)
    programs[silent].communicate(timeout=60)
    assert programs[silent].returncode not in (0, REFUSED)
