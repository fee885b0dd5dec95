"""How long the devices wait for data, by a clock and devices that the test moves."""

import threading

import pytest

from t2t_jax.run import waiting
from t2t_jax.run.waiting import DataWait


@pytest.fixture
def clock(monkeypatch):
    """The time that `DataWait` sees, in a list of one number."""
    now = [0.0]
    monkeypatch.setattr(waiting.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def steps(monkeypatch):
    """Steps by their name: what is to be set when a device is done with one."""
    steps = {name: threading.Event() for name in "ab"}
    monkeypatch.setattr(waiting.jax, "block_until_ready", lambda name: steps[name].wait())
    return steps


def _finish(wait, steps, name):
    """Let a step end, and wait until the thread has noted that."""
    before = wait._done
    steps[name].set()
    while wait._done is before:
        pass


def test_only_the_time_counts_in_which_the_devices_had_nothing_to_do(clock, steps):
    wait = DataWait()

    def batches():
        clock[0] += 3.0  # nothing was launched yet
        yield "a"
        clock[0] += 10.0  # step a is computed all this time
        yield "b"
        clock[0] += 4.0  # step b is computed
        _finish(wait, steps, "b")
        clock[0] += 2.0  # and then the devices wait
        yield "c"
        clock[0] += 1.0
        yield "d"

    for batch in wait.timed(batches()):
        clock[0] += 100.0  # the loop does something else
        if batch in steps:
            wait.launched(batch)
        if batch == "a":
            assert wait.take() == 3.0
        if batch == "b":
            assert wait.take() == 0.0
            _finish(wait, steps, "a")
        if batch == "c":
            assert wait.take() == 2.0
    assert wait.take() == 1.0
    assert wait.take() == 0.0
    wait.close()


def test_a_step_that_failed_is_done(clock, monkeypatch):
    def fail(result):
        raise ValueError(result)

    monkeypatch.setattr(waiting.jax, "block_until_ready", fail)
    wait = DataWait()
    before = wait._done
    wait.launched("a")
    while wait._done is before:
        pass
    clock[0] += 1.0
    assert wait._done[0] == 1
    wait.close()
