"""Trainings and grids on a real Slurm cluster of two nodes, which stops them and loses nodes."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

import t2t_jax
from t2t_jax.system.exit_codes import EXCLUDED_HOSTS, HUNG
from tests.cluster.conftest import slurm, wait_for
from tests.programs import ROOT, run_program, run_python

pytestmark = pytest.mark.cluster
FLAGS = "--training.num-train-steps=120", "--checkpoint.every-steps=20"
"""What makes a training long enough to be stopped in the middle."""


def _launch(tiny_run, workdir, *flags, hang_minutes="10", fields=None):
    """Launch a training on the nodes, and return the number of its job."""
    train = ["train", f"--config={tiny_run.folder / 'tiny.py'}", f"--workdir={workdir}", *FLAGS]
    train += [f"--parallel.hang-minutes={hang_minutes}"]
    train += [f"--{name}={value}" for name, value in (fields or tiny_run.without_dev).items()]
    done = run_python("-m", "t2t_jax", "launch", "slurm", *flags, "--", *train)
    assert done.returncode == 0, done.stderr
    return re.search(r"submitted as job (\d+)", done.stdout)[1]


def test_a_job_that_slurm_refuses_is_told_in_a_line(cluster, tiny_run, tmp_path):
    with pytest.raises(AssertionError, match=r"error: sbatch refuses .*slurm\.sh: ") as refusal:
        _launch(tiny_run, tmp_path / "run", "--option", "partition=nowhere")
    assert "invalid partition specified" in str(refusal.value)
    assert slurm("squeue", "--noheader") == ""


def _state(job):
    return slurm("squeue", "--noheader", "--states=all", "--format=%T", f"--jobs={job}").strip()


def _step(workdir):
    """The last step that is in the log."""
    log = workdir / "log.jsonl"
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    return max((json.loads(line)["step"] for line in lines), default=0)


def _goes_on(job):
    """Let a job that was queued again begin at once, which Slurm puts off by two minutes."""
    reason = "squeue", "--noheader", "--format=%T %r", f"--jobs={job}"
    wait_for(lambda: slurm(*reason).strip() == "PENDING BeginTime")

    def has_begun():
        if _state(job) == "PENDING":
            slurm("scontrol", "update", f"JobId={job}", "StartTime=now", "TimeLimit=10")
            time.sleep(1)
        return _state(job) != "PENDING"

    wait_for(has_begun)


def _log_once_completed(job, workdir):
    """Return the log of a job that was queued again, and has gone on to its end."""
    _goes_on(job)
    wait_for(lambda: _state(job) == "COMPLETED")
    return (workdir / f"launch/slurm-{job}.log").read_text()


def _assert_same_parameters(*workdirs):
    params = [t2t_jax.load(workdir, average=1).params for workdir in workdirs]
    jax.tree.map(np.testing.assert_array_equal, *params)


def _assert_same_losses(tiny_run, workdir, uninterrupted):
    losses, expected = tiny_run.losses(workdir), tiny_run.losses(uninterrupted)
    assert losses.keys() == expected.keys()
    np.testing.assert_allclose([*losses.values()], [*expected.values()], atol=1e-5)


@pytest.fixture(scope="module")
def uninterrupted(tiny_run, tmp_path_factory):
    """The same training in two processes that nobody stops."""
    workdir = tmp_path_factory.mktemp("uninterrupted") / "run"
    fields = [f"--{name}={value}" for name, value in tiny_run.without_dev.items()]
    tiny_run.finish(workdir, *FLAGS, *fields, processes=2)
    return workdir


def test_a_job_at_its_time_limit_is_queued_again_and_ends_as_if_it_had_not_been(
    cluster, tiny_run, uninterrupted, tmp_path
):
    workdir = tmp_path / "run"
    job = _launch(tiny_run, workdir, "--hosts=2", "--time=10", "--grace=60")
    wait_for(lambda: _step(workdir) >= 3)
    with cluster.paused() as tasks:
        slurm("scontrol", "update", f"JobId={job}", "TimeLimit=1")
        wait_for(lambda: all(map(_was_told_to_stop, tasks)))  # Slurm looks every half a minute
    log = _log_once_completed(job, workdir)
    assert "stopped after step" in log
    assert "Exited with exit code 143" in log
    _assert_same_parameters(workdir, uninterrupted)


def _was_told_to_stop(task):
    """Whether SIGTERM waits for a process that is paused, or has ended it."""
    try:
        status = Path(f"/proc/{task}/status").read_text()
    except FileNotFoundError:
        return True
    return int(re.search(r"ShdPnd:\s*(\w+)", status)[1], 16) & 1 << signal.SIGTERM - 1


def test_a_node_that_hung_is_named_and_left_out_of_the_next_start(
    cluster, tiny_run, uninterrupted, tmp_path
):
    workdir, flags = tmp_path / "run", ("--hosts=2", "--min-hosts=1")
    hosts = workdir / EXCLUDED_HOSTS
    where = f"os.environ.get('SLURMD_NODENAME') == 'n2' and not Path({str(hosts)!r}).exists()"
    planted = tiny_run.with_fault(tmp_path, where, "if step == 25: time.sleep(3600)")
    job = _launch(planted, workdir, *flags, hang_minutes="0.1", fields=tiny_run.without_dev)
    wait_for(hosts.exists)
    assert hosts.read_text() == "n2\n"
    log = _log_once_completed(job, workdir)
    assert "process 1 on n2 came last" in log
    assert f"Exited with exit code {HUNG}" in log
    assert "of 1 process(es)" in log
    _assert_same_losses(tiny_run, workdir, uninterrupted)


def test_a_job_that_loses_a_node_goes_on_with_the_other(cluster, tiny_run, uninterrupted, tmp_path):
    workdir = tmp_path / "run"
    job = _launch(tiny_run, workdir, "--hosts=2", "--min-hosts=1")
    wait_for(lambda: _step(workdir) >= 25)
    with cluster.paused():
        cluster.lose("n2")
    log = _log_once_completed(job, workdir)
    assert "of 2 process(es)" in log
    assert "of 1 process(es)" in log
    _assert_same_losses(tiny_run, workdir, uninterrupted)


def test_a_job_goes_on_when_one_of_its_tasks_was_killed(cluster, tiny_run, uninterrupted, tmp_path):
    workdir = tmp_path / "run"
    job = _launch(tiny_run, workdir, "--hosts=2")
    wait_for(lambda: _step(workdir) >= 25)
    with cluster.paused() as tasks:
        os.kill(tasks[-1], signal.SIGKILL)
    log = _log_once_completed(job, workdir)
    assert "Exited with exit code 137" in log
    _assert_same_losses(tiny_run, workdir, uninterrupted)


def test_a_task_that_is_refused_ends_the_job_on_all_nodes(cluster, tiny_run, tmp_path):
    (tmp_path / "tiny.py").write_text(
        "import os, runpy\n\n"
        "if os.environ.get('SLURMD_NODENAME') == 'n2':\n    raise SystemExit(2)\n"
        f"get_config = runpy.run_path({str(tiny_run.folder / 'tiny.py')!r})['get_config']\n"
    )
    workdir = tmp_path / "run"
    planted = tiny_run._replace(folder=tmp_path)
    job = _launch(planted, workdir, "--hosts=2", fields=tiny_run.without_dev)
    wait_for(lambda: _state(job) == "FAILED")
    assert "ExitCode=2:0" in slurm("scontrol", "show", "job", job)


def test_a_cancelled_job_does_not_start_again(cluster, tiny_run, tmp_path):
    workdir = tmp_path / "run"
    job = _launch(tiny_run, workdir, "--hosts=2")
    wait_for(lambda: _step(workdir) >= 3)
    slurm("scancel", job)
    wait_for(cluster.is_idle)
    assert _state(job) == "CANCELLED"
    assert 3 <= int(max(path.name for path in (workdir / "checkpoints").iterdir())) < 20


def _sweep(tiny_run, folder, changes, *flags):
    """The command of a grid on the cluster, of the tiny run and variants of it."""
    config = folder / "grid.py"
    config.write_text(
        "import runpy\n\n"
        f"BASE = runpy.run_path({str(tiny_run.folder / 'tiny.py')!r})['get_config']()\n"
        f"VARIANTS = {{name: BASE.replace(one) for name, one in {changes!r}.items()}}\n"
    )
    grid = folder / "grid"
    sweep = [sys.executable, "-m", "t2t_jax", "sweep", f"--config={config}", f"--workdir={grid}"]
    return [*sweep, "--launcher=slurm", "--slurm", "timeout_min=5", "cpus_per_task=1", *flags], grid


def _kill_once_submitted(sweep, grid, num_jobs):
    """Kill the program of a grid when all its jobs are submitted; returns the files of the jobs."""
    first = subprocess.Popen(sweep, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    wait_for(lambda: len(list(grid.glob("*/seed*.job"))) == num_jobs)
    jobs = {file: file.read_text() for file in grid.glob("*/seed*.job")}
    first.kill()
    first.communicate()
    return jobs


def test_a_halved_grid_goes_on_when_its_program_was_killed_and_its_winner_never_paused(
    cluster, tiny_run, tmp_path
):
    low, wide = {"training.learning_rate_factor": 0.001}, {"model.d_ff": 64}
    changes = {"base": {}, "low": low, "wide": wide}
    sweep, grid = _sweep(tiny_run, tmp_path, changes, "--halving=rungs=2,keep=0.5")
    _kill_once_submitted(sweep, grid, num_jobs=3)
    done = run_program(*sweep)
    assert done.returncode == 0, done.stderr
    assert {path.parent.parent.name for path in grid.glob("*/*/rung-6.json")} == {*changes}
    ended = {path.parent.parent.name for path in grid.glob("*/*/result.json")}
    assert ended == {"base", "wide"}
    alone = tmp_path / "alone"
    tiny_run.finish(alone, "--model.d-ff=64")
    _assert_same_parameters(grid / "wide" / "seed0", alone)


def test_a_grid_goes_on_when_the_program_that_submitted_it_was_killed(cluster, tiny_run, tmp_path):
    changes = {"base": {}, "wide": {"model.d_ff": 64}}
    sweep, grid = _sweep(tiny_run, tmp_path, changes)
    jobs = _kill_once_submitted(sweep, grid, num_jobs=2)
    done = run_program(*sweep)
    assert done.returncode == 0, done.stderr
    assert {file: file.read_text() for file in jobs} == jobs, "no job was submitted twice"
    assert "wide" in (grid / "table.md").read_text()
    assert done.stderr == ""
