"""The phases of a training and its waits for data, by a clock and devices that the test moves."""

import threading
from contextlib import closing

import pytest

from t2t_jax.run import progress
from t2t_jax.run.progress import CHECKPOINTS, DATA, EVALUATION, START, STEPS, PhaseTimer


@pytest.fixture
def steps(monkeypatch):
    """Steps by their name: what is to be set when a device is done with one."""
    steps = {name: threading.Event() for name in "ab"}
    monkeypatch.setattr(progress.jax, "block_until_ready", lambda name: steps[name].wait())
    return steps


def _finish(one, steps, name):
    """Let a step end, and wait until the thread has noted that."""
    before = one.done
    steps[name].set()
    while one.done == before:
        pass


def test_only_the_time_counts_in_which_the_devices_had_nothing_to_do(clock, steps):
    one, waits = PhaseTimer(), []
    one.enter(STEPS)

    def batches():
        clock[0] += 3.0  # nothing was launched yet
        yield "a"
        clock[0] += 10.0  # step a is computed all this time
        yield "b"
        clock[0] += 4.0  # step b is computed
        _finish(one, steps, "b")
        clock[0] += 2.0  # and then the devices wait
        yield "c"
        clock[0] += 1.0
        yield "d"

    for batch in one.timed(batches()):
        clock[0] += 100.0  # the loop does something else
        if batch in steps:
            one.launch(batch)
        waits.append(one.seconds()[DATA])
        if batch == "b":
            _finish(one, steps, "a")
    assert waits == [3.0, 3.0, 5.0, 6.0]
    assert one.seconds()[STEPS] == 414.0


def test_a_step_that_failed_is_done(clock, monkeypatch):
    def fail(result):
        raise ValueError(result)

    monkeypatch.setattr(progress.jax, "block_until_ready", fail)
    one = PhaseTimer()
    with closing(one.timed(iter("a"))) as batches:
        one.launch(next(batches))
        while not one.done:
            pass
    assert one.done == 1


def test_each_second_is_in_one_phase_and_work_leaves_out_waits(clock, monkeypatch):
    monkeypatch.setattr(progress, "begun", lambda: 1e9 - 7.0)  # imports took a while
    one = PhaseTimer()
    clock[0] += 1.0
    one.enter(STEPS)
    one.take_lap()
    clock[0] += 2.0
    with one.waiting():
        clock[0] += 4.0
        with one.waiting():
            clock[0] += 8.0
    with one.during(EVALUATION):
        clock[0] += 16.0
        with one.during(CHECKPOINTS):
            clock[0] += 32.0
        assert one.phase == EVALUATION
        clock[0] += 64.0
    clock[0] += 128.0
    assert one.take_lap() == (2.0 + 128.0, 254.0)
    found = {phase: seconds for phase, seconds in one.seconds().items() if seconds}
    assert found == {START: 8.0, STEPS: 142.0, EVALUATION: 80.0, CHECKPOINTS: 32.0}


def test_a_wait_for_data_counts_while_it_lasts(clock, monkeypatch):
    monkeypatch.setattr(progress.jax, "block_until_ready", lambda result: None)
    one, seen = PhaseTimer(), []
    one.enter(STEPS)
    clock[0] += 1.0

    def batches():
        clock[0] += 4.0
        seen.append((one.seconds()[DATA], one.seconds()[STEPS]))
        yield "a"

    with closing(one.timed(batches())) as timed:
        next(timed)
        clock[0] += 8.0
        seen.append((one.seconds()[DATA], one.seconds()[STEPS]))
    assert seen == [(4.0, 1.0), (4.0, 9.0)]
