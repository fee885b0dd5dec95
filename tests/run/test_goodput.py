"""What the time of a run went to: by hand-made accounts, and of a run killed three times."""

import subprocess
import sys
import time

import pytest

from t2t_jax.extras.watching.report import goodput_sections
from t2t_jax.run.job import goodput, read_goodput
from tests.programs import ROOT


def _job(begun, first, last, steps, at=(), devices=4, **more):
    """An account of a job that spent 10 s on everything else than steps, in equal parts."""
    others = "start", "compilation", "data", "evaluation", "checkpoints"
    seconds = dict.fromkeys(others, 2.0) | {"steps": float(steps)}
    return {
        "begun": begun,
        "written": begun + steps + 10.0,
        "devices": devices,
        "first_step": first,
        "step": last,
        "seconds": seconds,
        "at": [{"step": step, "steps": spent} for step, spent in at],
        "flops": 1e12,
        "peak": 1e12,
        "ended": None,
        "exit_code": None,
    } | more


def _steps(found):
    return [(job.steps, job.repeated) for job in found.jobs]


def test_steps_that_a_later_job_took_again_are_repeated_and_so_are_their_seconds():
    found = goodput(
        [
            _job(1000.0, 0, 130, 70, [(50, 20.0), (100, 50.0)]),
            _job(1100.0, 100, 180, 40, [(150, 25.0)], devices=8),
            _job(1200.0, 50, 60, 5),  # the checkpoint after step 100 was damaged
            _job(1300.0, 60, 200, 100),  # without a checkpoint between, on 4 devices again
        ]
    )
    assert _steps(found) == [(50, 80), (0, 80), (10, 0), (140, 0)]
    productive, repeated = 20.0 + 0.0 + 5.0 + 100.0, 50.0 + 40.0
    between = 20.0 + 50.0 + 85.0
    parts = {"steps": productive, "repeated": repeated, "between": between}
    others = dict.fromkeys(("start", "compilation", "data", "evaluation", "checkpoints"), 8.0)
    assert {name: spent for name, spent in found.seconds.items() if spent} == others | parts
    assert sum(found.seconds.values()) == 1300.0 + 110.0 - 1000.0
    figures = found.figures(price=3.0, watts=500.0)
    hours = (4 * (80 + 20 + 15 + 85 + 110) + 8 * (50 + 50)) / 3600
    assert figures["device_hours"] == pytest.approx(hours)
    assert figures["cost"] == pytest.approx(3.0 * hours)
    assert sum(part["cost"] for part in figures["buckets"].values()) == pytest.approx(3.0 * hours)
    idle = (4 * (20 + 85) + 8 * 50) / 3600
    assert figures["kwh"] == pytest.approx(0.5 * (hours - idle))
    assert found.mfu == pytest.approx((200 / (4 * 125), 200 / (3600 * hours)))


def test_seconds_without_a_mark_are_interpolated():
    found = goodput([_job(0.0, 10, 110, 50, [(50, 30.0)]), _job(99.0, 80, 80, 0)])
    assert _steps(found) == [(70, 30), (0, 0)]
    assert found.seconds["steps"] == 30.0 + 20.0 * (80 - 50) / (110 - 50)
    assert found.seconds["repeated"] == 10.0


def test_a_clock_that_was_set_back_gives_no_negative_time():
    found = goodput([_job(5000.0, 0, 10, 20), _job(4000.0, 10, 20, 20, written=3000.0)])
    assert found.seconds["between"] == 0.0
    assert min(found.seconds.values()) >= 0.0
    assert sum(found.seconds.values()) == 60.0
    notice = "the system clock was set back between jobs, which counts as no time"
    assert found.summary().endswith(f", {notice}")
    assert f"Note: {notice}." in goodput_sections(found, None, None)[0].notes
    assert "clock" not in goodput([_job(4000.0, 0, 10, 20)]).summary()


def test_without_a_known_peak_there_is_no_mfu():
    jobs = [_job(0.0, 0, 10, 20), _job(50.0, 10, 20, 20, peak=None)]
    assert goodput(jobs).mfu is None
    assert goodput(jobs[:1]).mfu == (10 / 80, 10 / 120)


# A training that waits at planted places, and is killed in such a wait if that is asked for. It
# says when it begins, and writes each step that it launches into a file, and into another how
# long every batch and every evaluation let it wait by a clock of its own.
_PROGRAM = """
import os, signal, sys, time
from t2t_jax.system.program import run

def main(arguments):
    import jax
    from t2t_jax.commands.train import train_command
    from t2t_jax.data.batching import Batches
    from t2t_jax.run import job, trainer
    from t2t_jax.run.meter import StepMeter
    from t2t_jax.training.checkpoint import Checkpoints

    kill_at, trace, *flags = arguments
    job._INTERVAL = 0.02
    prefetch, add, save = Batches.prefetch, StepMeter.add, Checkpoints.save
    launched = []

    def note(kind, since):
        with open(trace + ".waits", "a") as file:
            file.write(f"{kind} {time.monotonic() - since}\\n")

    def wait(place):
        since = time.monotonic()
        time.sleep(1.0)
        if place == kill_at:
            note(place.split()[0], since)
            os.kill(os.getpid(), signal.SIGKILL)

    def evaluating(*_, **__):
        since = time.monotonic()
        wait("evaluation")
        note("evaluation", since)

    def prefetching(self, start, *rest):
        since = time.monotonic()
        for step, batch in enumerate(prefetch(self, start, *rest), start + 1):
            if step in (2, 7):
                jax.block_until_ready(launched)  # from here on, the devices wait too
                wait(f"data {step}")
            note("data", since)
            yield batch
            since = time.monotonic()

    def adding(self, step, metrics):
        launched.append(metrics)
        with open(trace, "a") as file:
            file.write(f"{step} ")
        add(self, step, metrics)

    def saving(self, state, *window):
        if int(state.step) == 12:
            wait("checkpoint")
        return save(self, state, *window)

    Batches.prefetch, StepMeter.add, Checkpoints.save = prefetching, adding, saving
    trainer.evaluate_split = evaluating
    return train_command(flags).run()

print("begun", flush=True)
run(main)
"""


class _Watch:
    """Starts programs, and takes the times at which they say that they begin and are done."""

    begun, ended = (), ()

    def __call__(self, kill_at, *arguments):
        command = [sys.executable, "-c", _PROGRAM, kill_at, *map(str, arguments)]
        both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        with subprocess.Popen(command, cwd=ROOT, **both) as program:
            for line in program.stdout:
                if line == "begun\n":
                    self.begun += (time.monotonic(),)
                if "steps are done" in line:
                    self.ended += (time.monotonic(),)
        assert program.returncode == (-9 if kill_at else 0), line
        if kill_at:
            self.ended += (time.monotonic(),)


@pytest.mark.thorough
def test_a_run_that_was_killed_three_times_accounts_for_its_time(tiny_run, tmp_path):
    workdir, watch, launched = tmp_path / "run", _Watch(), []
    flags = [f"--config={tiny_run.folder / 'tiny.py'}", f"--workdir={workdir}"]
    flags += ["--checkpoint.every-steps=4", "--evaluation.every-steps=9"]
    for kill_at in ("data 7", "evaluation", "checkpoint", ""):
        time.sleep(1.5 if launched else 0.0)
        watch(kill_at, tmp_path / "steps", *flags)
        launched.append({int(step) for step in (tmp_path / "steps").read_text().split()})
        (tmp_path / "steps").unlink()

    found = read_goodput(workdir)
    again = [len(own & set().union(*launched[n + 1 :])) for n, own in enumerate(launched)]
    assert _steps(found) == [(len(own) - n, n) for own, n in zip(launched, again, strict=True)]
    assert sum(job.steps for job in found.jobs) == 12
    assert sum(again) >= 2 + 3  # the evaluation of step 9 began after its state was saved

    wall = watch.ended[-1] - watch.begun[0]
    between = sum(watch.begun[1:]) - sum(watch.ended[:-1])
    seconds, near = found.seconds, 0.02 * wall
    assert sum(seconds.values()) == pytest.approx(wall, abs=near)
    assert seconds["between"] == pytest.approx(between, abs=near)
    # The planted waits are for the batches of steps 2 and 7, and 7 again, and the evaluations of
    # step 9 three times, and of 12. A slow machine adds to them what the training saw as well.
    waits = [line.split() for line in (tmp_path / "steps.waits").read_text().splitlines()]
    for kind, planted in (("data", 3.0), ("evaluation", 4.0)):
        waited = sum(float(took) for place, took in waits if place == kind)
        assert planted - near < seconds[kind] < waited + near
    assert seconds["checkpoints"] > 2.0 - near  # that of 12 twice, and what writing takes
