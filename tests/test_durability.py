"""A run that is killed between any two of its durable writes ends as one that never was.

What is made durable, and in what order, is said in `t2t_jax.training.checkpoint`: the state, the
best parameters, the record of the evaluation in the log.
"""

import itertools
import shutil
import signal
from pathlib import Path

import jax
import numpy as np
import pytest

from t2t_jax import UserError, load, train
from t2t_jax.run.log import RunLog
from t2t_jax.training.checkpoint import Checkpoints
from t2t_jax.training.checkpoint_files import steps_in
from tests.programs import run_python
from tests.trained import account

STEPS = 4


class Killed(BaseException):
    """Stands for the end of the process: nothing of the run may catch it."""


def _config(tiny_run, evaluation_steps):
    fields = {
        "training.num_train_steps": STEPS,
        "evaluation.every_steps": evaluation_steps,
        "checkpoint.every_steps": 2,
    }
    return tiny_run.config.replace(fields)


@pytest.fixture
def rising(monkeypatch):
    """Scores that rise with the steps, so that each evaluation finds a new best."""
    save_if_best = Checkpoints.save_if_best

    def rising(checkpoints, state, score, measure):
        del score
        return save_if_best(checkpoints, state, float(state.step), measure)

    monkeypatch.setattr(Checkpoints, "save_if_best", rising)


POINTS = {
    "before a state": (Checkpoints, "save", "before"),
    "before a state is whole": (Checkpoints, "save", "after"),
    "before the best": (Checkpoints, "save_if_best", "before"),
    "between the best and the record of its evaluation": (RunLog, "evaluation", "before"),
    "after the record": (RunLog, "evaluation", "after"),
}


def _dying(method, when):
    """A method that ends the process, before or after it has done its work."""

    def dying(self, *arguments):
        if when == "after":
            method(self, *arguments)
        raise Killed

    return dying


@pytest.mark.thorough
@pytest.mark.parametrize(
    "evaluation_steps",
    [
        pytest.param(2, id="on a checkpoint", marks=pytest.mark.slow),
        pytest.param(3, id="between two"),
    ],
)
@pytest.mark.usefixtures("rising")
def test_a_kill_at_each_point_of_the_protocol_changes_nothing(
    tiny_run, tmp_path, monkeypatch, evaluation_steps
):
    config = _config(tiny_run, evaluation_steps)
    assert train(config, tmp_path / "undisturbed").exit_code == 0
    expected = account(tmp_path / "undisturbed")
    assert expected["steps"] == [(STEPS,), (STEPS,)]
    workdir = tmp_path / "killed"
    for kind, name, when in POINTS.values():
        with monkeypatch.context() as patch:
            patch.setattr(kind, name, _dying(getattr(kind, name), when))
            with pytest.raises(Killed):
                train(config, workdir)
        # Once killed at this point, it goes on from there to the next.
    assert train(config, workdir).exit_code == 0
    assert account(workdir) == expected


@pytest.mark.thorough
@pytest.mark.usefixtures("rising")
def test_a_step_has_a_state_before_it_is_scored(tiny_run, tmp_path, monkeypatch):
    """So a kill during an evaluation loses no step, and the best is never newer than all states."""
    config = _config(tiny_run, 3)  # a checkpoint is due every 2 steps
    with monkeypatch.context() as patch:
        patch.setattr(RunLog, "evaluation", _dying(RunLog.evaluation, "before"))
        with pytest.raises(Killed):
            train(config, tmp_path / "run")
    assert steps_in(tmp_path / "run" / "checkpoints") == [2, 3]
    assert load(tmp_path / "run", step="best").steps == (3,)


@pytest.mark.thorough
def test_a_run_with_a_clock_averages_what_one_without_does_also_after_a_kill(
    tiny_run, tmp_path, monkeypatch
):
    averaged = {"checkpoint.average": 2, "checkpoint.keep": 2}
    config = _config(tiny_run, 100).replace(averaged)
    assert train(config, tmp_path / "without").exit_code == 0
    always = config.replace({"checkpoint.every_minutes": 1e-9})
    workdir = tmp_path / "run"

    def dying(checkpoints, state, *window):
        save(checkpoints, state, *window)
        if int(state.step) == 3:
            checkpoints.wait()
            raise Killed

    save = Checkpoints.save
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", dying)
        with pytest.raises(Killed):
            train(always, workdir)
    assert load(workdir, average=1).steps == (3,)
    assert train(always, workdir).exit_code == 0
    expected, found = load(tmp_path / "without"), load(workdir)
    assert expected.steps == found.steps == (2, 4)
    jax.tree.map(np.testing.assert_array_equal, found.params, expected.params)


def _lost(workdir, *names):
    for name in names:
        path = workdir / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()


LOSSES = {
    "the directory of checkpoints": (["checkpoints"], "log.jsonl has step 800"),
    "it and the log": (["checkpoints", "log.jsonl"], "there is .*best"),
    "what was in it": (["checkpoints/800", "best"], "log.jsonl has step 800"),
    "it and the best": (["checkpoints", "best"], "log.jsonl has step 800"),
}


@pytest.fixture
def golden(tmp_path):
    """A run of a released version, with a best checkpoint and a record of its checkpoint."""
    shutil.copytree(Path(__file__).parent / "goldens/runs/0.2.0", tmp_path / "golden")
    workdir = tmp_path / "golden" / "run"
    shutil.copytree(workdir / "checkpoints" / "800", workdir / "best" / "800")
    with (workdir / "log.jsonl").open("a") as file:
        file.write('{"step": 800, "of": "checkpoint", "time": 0.0}\n')
    fields = {
        "data.corpus": f"text:{tmp_path / 'golden' / 'corpus'}",
        "data.cache_dir": str(tmp_path / "cache"),
    }
    return load(workdir).config.replace(fields), workdir


@pytest.mark.parametrize(("lost", "told"), LOSSES.values(), ids=LOSSES.keys())
def test_a_run_whose_checkpoints_are_lost_does_not_begin_at_step_1(golden, lost, told):
    config, workdir = golden
    _lost(workdir, *lost)
    before = {path: path.read_bytes() for path in workdir.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match=rf"{told}.*bring that directory back.*begin again at step"):
        train(config, workdir)
    after = {path: path.read_bytes() for path in workdir.rglob("*") if path.is_file()}
    assert after == before


_PROGRAM = '''
"""Train, and be killed at the n-th write of a file below the run directory.

Writes are: files that are opened to be written, moved or removed, directories that are made or
removed, and both sides of a line of the log.
"""
import os, signal, sys

from t2t_jax.config import Config
from t2t_jax.run.log import RunLog
from t2t_jax.run.trainer import train
from t2t_jax.training.checkpoint import Checkpoints

workdir, kill_at = sys.argv[1], int(sys.argv[2])
config, writes = Config.from_json(sys.stdin.read()), 0
events = {"os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree", "t2t_jax.log"}

save_if_best, record = Checkpoints.save_if_best, RunLog._record
Checkpoints.save_if_best = lambda self, state, score, measure: save_if_best(
    self, state, float(state.step), measure
)

def recorded(self, *arguments):
    sys.audit("t2t_jax.log", workdir)
    record(self, *arguments)
    sys.audit("t2t_jax.log", workdir)

RunLog._record = recorded

def audit(event, arguments):
    global writes
    if not arguments or not str(arguments[0]).startswith(workdir):
        return
    if event in events or (event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
        writes += 1
        if writes == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(audit)
sys.exit(train(config, workdir).exit_code)
'''


@pytest.mark.faults
@pytest.mark.parametrize(
    ("evaluation_steps", "first"), [(2, 1), (3, 2)], ids=["on a checkpoint", "between two"]
)
@pytest.mark.usefixtures("rising")
def test_a_kill_at_every_write_of_a_run_changes_nothing(
    tiny_run, tmp_path, evaluation_steps, first
):
    """At every second one; the two cases share them out."""
    config = _config(tiny_run, evaluation_steps)
    assert train(config, tmp_path / "undisturbed").exit_code == 0
    expected = account(tmp_path / "undisturbed")
    for number in itertools.count(first, 2):
        workdir = tmp_path / f"killed_{number}"
        done = run_python("-c", _PROGRAM, workdir, number, stdin=config.to_json())
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert train(config, workdir).exit_code == 0
        assert account(workdir) == expected, number
        shutil.rmtree(workdir)
    assert number > 100
