"""A training that is stuck ends by itself and says why, and a slow host is named."""

import json
import threading
import time

import numpy as np
import pytest

from t2t_jax.parallel import liveness
from t2t_jax.run import watchdog
from t2t_jax.run.progress import EVALUATION, STEPS, PhaseTimer
from t2t_jax.run.watchdog import Report, SlowHosts, Watchdog, described, those_behind
from t2t_jax.system.exit_codes import EXCLUDED_HOSTS, HUNG
from tests.selection import thorough_after

HOSTS = ("a", "b", "c")
WAITS, WORKS = Report(STEPS, 7, True), Report(STEPS, 7, False)


@pytest.mark.parametrize(
    ("accounts", "behind", "said"),
    [
        ({0: WAITS, 1: Report(STEPS, 4, False), 2: WAITS}, [1], "process 1 on b came last: work"),
        ({0: WAITS, 1: WAITS, 2: WORKS}, [2], "process 2 on c came last: working"),
        ({0: WORKS, 1: Report(STEPS, 9, True), 2: WORKS}, [0, 2], "process 0 on a and 1 more"),
        ({0: WAITS, 2: WAITS}, [1], "process 1 on b did not answer"),
        ({0: WAITS, 1: WAITS, 2: WAITS}, [], "no process is behind the others"),
    ],
)
def test_the_process_that_the_others_wait_for_is_named(accounts, behind, said):
    assert those_behind(accounts, 3) == behind
    assert said in described(accounts, HOSTS)


@pytest.fixture
def one_stuck(tmp_path, monkeypatch):
    """A function that lets one process be stuck in a phase, and returns whether it was ended."""

    def stuck(phase, seconds, *, minutes=0.3 / 60, steps=1, is_program=True):
        ended, codes = threading.Event(), []

        def end(code):
            codes.append(code)
            ended.set()
            one._over.wait()  # as the thread would go on

        monkeypatch.setattr(liveness.os, "_exit", end)
        monkeypatch.setattr(liveness, "remove_unfinished", lambda: None)  # no file after it
        monkeypatch.setattr(watchdog, "begun", lambda: 1.0 if is_program else None)
        progress = PhaseTimer()
        one = Watchdog(tmp_path, progress, minutes)
        one.on_end = lambda reason, code: reasons.append(reason)
        one.__enter__()
        progress.enter(phase)
        progress.launched = progress.done = steps
        ended.wait(seconds)
        one._over.set()
        return codes

    reasons: list[str] = []
    return stuck, reasons


def test_a_program_that_is_stuck_in_a_step_ends_with_its_stacks(one_stuck, tmp_path, capsys):
    stuck, reasons = one_stuck
    assert stuck(STEPS, 30) == [HUNG]
    (reason,) = reasons
    assert reason.endswith("min: the program is stuck in the phase 'steps'")
    assert capsys.readouterr().err.startswith(f"error: {reason}; {tmp_path / 'hangs'} has the ")
    stacks = (tmp_path / "hangs" / "process_0.txt").read_text()
    assert "thread MainThread:" in stacks
    assert "ended.wait(seconds)" in stacks  # where this test is
    assert not (tmp_path / EXCLUDED_HOSTS).exists()


@pytest.mark.parametrize(
    "where",
    thorough_after(
        2,
        [
            {"phase": EVALUATION},
            {"phase": STEPS, "steps": 0},  # the first step may take long
            {"phase": STEPS, "minutes": None},
            {"phase": STEPS, "is_program": False},  # a notebook
        ],
    ),
)
def test_what_may_take_long_is_left_alone(one_stuck, where):
    stuck, reasons = one_stuck
    assert stuck(seconds=1.0, **where) == []
    assert reasons == []


def test_progress_is_no_hang_and_suspended_time_does_not_count(tmp_path, monkeypatch):
    codes: list[int] = []
    monkeypatch.setattr(watchdog, "begun", lambda: 1.0)
    monkeypatch.setattr(liveness.os, "_exit", codes.append)
    clock, leaps = time.monotonic, [0.0]
    monkeypatch.setattr(liveness.time, "monotonic", lambda: clock() + leaps[0])
    progress = PhaseTimer()
    progress.enter(STEPS)
    one = Watchdog(tmp_path, progress, minutes=4 / 60)  # which looks each 0.2 s
    one.__enter__()
    for _ in range(3):
        progress.launched = progress.done = progress.done + 1
        time.sleep(0.3)
        leaps[0] += 3600.0
        time.sleep(0.3)
    one._over.set()
    assert codes == []
    assert not (tmp_path / "hangs").exists()


def test_only_a_host_that_is_slower_beyond_noise_is_named_and_once():
    rng = np.random.default_rng(0)
    noise = rng.uniform(0.02, 0.03, (60, 4))
    alike, spiky, slow = (SlowHosts() for _ in range(3))
    assert [alike.slowest(times, 0.2) for times in noise] == [None] * 60
    late = np.where(np.arange(60)[:, None] % 10 == 3, [0, 0, 5.0, 0], 0)  # now and then
    assert [spiky.slowest(times, 0.2) for times in noise + late] == [None] * 60
    added = noise + np.array([0, 0.1, 0, 0])
    named = [slow.slowest(times, 0.2) for times in [*noise[:20], *added]]
    ((step, (process, behind)),) = [(n, one) for n, one in enumerate(named) if one]
    assert (process, round(behind, 1)) == (1, 0.1)
    assert 20 + 8 <= step < 20 + 10  # 9 of 10 steps
    tolerant = SlowHosts()
    assert not any(tolerant.slowest(times, 2.0) for times in added)  # half of a tenth of a step
    assert tolerant.slowest(None, 2.0) is None


@pytest.mark.thorough
def test_a_process_that_is_asleep_ends_all_and_the_run_goes_on_exactly(tiny_run, tmp_path):
    workdir, of_process_1 = tmp_path / "run", "'--process-id=1' in sys.argv"
    flags = [f"--data.corpus={tiny_run.without_dev['data.corpus']}"]
    flags += ["--training.num-train-steps=24", "--parallel.hang-minutes=0.1"]
    asleep = tiny_run.with_fault(tmp_path, of_process_1, "if step == 5: time.sleep(3600)")
    for program in asleep.start(workdir, *flags, processes=2):
        _, errors = program.communicate(timeout=300)
        assert program.returncode == HUNG, errors
        assert "process 1 on " in errors
        assert "has launched 4 steps since its start" in errors
    stacks = [(workdir / "hangs" / f"process_{n}.txt").read_text() for n in (0, 1)]
    assert ["time.sleep(3600)" in stack for stack in stacks] == [False, True]
    assert len((workdir / EXCLUDED_HOSTS).read_text().splitlines()) == 1
    assert json.loads((workdir / "jobs" / "1.json").read_text())["exit_code"] == HUNG
    slow = tiny_run.with_fault(tmp_path, of_process_1, "time.sleep(0.1)")
    printed = slow.finish(workdir, *flags, processes=2)
    assert "step 5 of 24 begins" in printed
    (warning,) = [x for x in printed.splitlines() if "keeps the other processes" in x]
    assert warning.startswith("warning: process 1 on ")
    tiny_run.finish(tmp_path / "undisturbed", *flags, processes=2)
    assert tiny_run.losses(workdir) == tiny_run.losses(tmp_path / "undisturbed")
