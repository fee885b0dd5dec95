"""What a run survives: kills at any moment, damaged checkpoints, a full disk, a lost process.

Minutes of real programs; run by hand: python -m pytest -m faults
"""

import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from t2t_jax.system.exit_codes import HUNG
from t2t_jax.training.checkpoint_files import steps_of_run
from tests.programs import wait_until
from tests.trained import bits, checksums, records_of, timeless_log, wait_for_step

pytestmark = pytest.mark.faults

STEPS = 90
# Checkpoints are written every 2 steps, so that many of the kills meet one.
LONG = (f"--training.num-train-steps={STEPS}", "--evaluation.every-steps=45")


@pytest.fixture(scope="module")
def undisturbed(tiny_run, tmp_path_factory):
    """The run directory of a run that nothing happened to."""
    workdir = tmp_path_factory.mktemp("faults") / "undisturbed"
    tiny_run.finish(workdir, *LONG)
    return workdir


def _complete(workdir):
    """Steps of the checkpoints that have their names."""
    return steps_of_run(workdir, "checkpoints")


def _end_with(code, programs):
    """Wait until all programs have ended with a code, and return what each said."""
    ended = [program.communicate(timeout=300) for program in programs]
    assert [program.returncode for program in programs] == [code] * len(programs), ended
    return ended


@pytest.mark.parametrize(
    "fields",
    [[], ["--training.optimizer=muon"], ["--training.ema-decay=0.9"]],
    ids=["adam", "muon", "moving average"],
)
def test_a_run_in_shards_killed_many_times_ends_with_the_same_bits(tiny_run, tmp_path, fields):
    workdir, rng = tmp_path / "run", random.Random(0)
    flags = [*LONG, *fields, *tiny_run.in_shards(tmp_path / "shards")]
    for kills_left in range(10, 0, -1):
        newest = max(_complete(workdir), default=0)
        ahead = max(1, 2 * (STEPS - 5 - newest) // kills_left)
        (program,) = tiny_run.start(workdir, *flags)
        printed = wait_for_step(program, min(newest + rng.randint(1, ahead), STEPS - 1))
        # Nothing is lost but what came after the newest checkpoint.
        assert f"step {newest + 1} of {STEPS} begins" in printed
        time.sleep(rng.uniform(0, 0.06))
        program.kill()
        program.communicate()
    tiny_run.finish(workdir, *flags)
    tiny_run.finish(tmp_path / "undisturbed", *flags)
    assert not any("tmp" in path.name for path in (workdir / "checkpoints").iterdir())
    assert bits(workdir) == bits(tmp_path / "undisturbed")
    assert checksums(workdir) == checksums(tmp_path / "undisturbed")
    assert timeless_log(workdir) == timeless_log(tmp_path / "undisturbed")
    assert list(tiny_run.losses(workdir)) == list(range(1, STEPS + 1))


@pytest.fixture
def disk(tmp_path):
    """A disk of 8 MiB of its own."""
    mount = f"mount -t tmpfs -o size=8m tmpfs {tmp_path} && echo mounted && exec sleep 3600"
    try:
        holder = subprocess.Popen(
            ["unshare", "--mount", "--map-root-user", "sh", "-c", mount],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
    except OSError:
        pytest.skip("there is no unshare")
    if holder.stdout.readline() != "mounted\n":
        pytest.skip("nothing may be mounted here")
    yield Path(f"/proc/{holder.pid}/root{tmp_path}")
    holder.kill()
    holder.communicate()


def _fill(disk):
    """Leave no room, not for a single byte more."""
    with (disk / "ballast").open("wb", buffering=0) as file:
        for size in (2**16, 2**12, 1):
            try:
                while file.write(b"x" * size):
                    pass
            except OSError as error:
                assert error.errno == 28  # noqa: PT017


@pytest.mark.parametrize(("log_every_steps", "processes"), [(1, 1), (1000, 1), (1000, 2)])
def test_a_run_waits_while_the_disk_is_full_and_goes_on_once_there_is_room(
    tiny_run, tmp_path, disk, log_every_steps, processes
):
    """With a line of the log each step, that is what fails; without, a save in the background."""
    workdir, where = disk / "run", {"processes": processes, "devices": processes}
    flags = [*LONG, f"--training.log-every-steps={log_every_steps}"]
    programs = tiny_run.start(workdir, *flags, **where)
    wait_until(lambda: len(_complete(workdir)) == 2)
    _fill(disk)
    warnings = [program.stderr.readline() for program in programs]
    assert any("No space left on device" in warning for warning in warnings)
    assert all("the run tries again in 1 s" in warning for warning in warnings)
    time.sleep(2.0)  # so that the first attempt fails, too
    (disk / "ballast").unlink()
    _end_with(0, programs)
    tiny_run.finish(tmp_path / "undisturbed", *flags, **where)
    assert bits(workdir, average=1) == bits(tmp_path / "undisturbed", average=1)
    assert not any("tmp" in path.name for path in (workdir / "checkpoints").iterdir())


TWO = {"processes": 2, "devices": 2}


def _assert_same_curve(losses, expected, resumed_at):
    """Sums over other parts of a batch are rounded otherwise, and Adam makes much of it in time."""
    assert list(losses) == list(expected)
    got, wanted = np.asarray([*losses.values()]), np.asarray([*expected.values()])
    np.testing.assert_allclose(got[: resumed_at + 10], wanted[: resumed_at + 10], rtol=1e-4)
    np.testing.assert_allclose(got, wanted, rtol=2e-2)


@pytest.mark.parametrize("signalled", [0, 1])
def test_a_signal_to_one_of_two_processes_stops_both_at_the_same_step(
    tiny_run, undisturbed, tmp_path, signalled
):
    workdir = tmp_path / "run"
    programs = tiny_run.start(workdir, *LONG, **TWO)
    wait_for_step(programs[0], 9)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGTERM):
        programs[signalled].send_signal(number)
        time.sleep(0.02)  # of two that wait, the system sends SIGHUP first
    ended = _end_with(128 + signal.SIGTERM, programs)
    assert "run the same command to resume" in ended[0][0]
    assert ended[1][0].count("step ") == 0  # one of them tells
    stopped = max(_complete(workdir))
    said = tiny_run.finish(workdir, *LONG)  # by one process, on one device
    assert f"step {stopped + 1} of {STEPS} begins" in said
    _assert_same_curve(tiny_run.losses(workdir), tiny_run.losses(undisturbed), stopped)


def test_a_signal_ends_an_evaluation_of_two_processes_between_its_batches(tiny_run, tmp_path):
    """It is made up for after the resume, although no checkpoint was due at its step."""
    corpus, workdir = tmp_path / "corpus", tmp_path / "run"
    shutil.copytree(tiny_run.folder / "corpus", corpus)
    for language in ("en", "de"):  # a dev split that takes minutes to score
        shutil.copy(corpus / f"train.{language}", corpus / f"dev.{language}")
    flags = [
        f"--data.corpus=text:{corpus}",
        *("--evaluation.every-steps=7", "--training.num-train-steps=9"),
        *("--decoding.tokens-per-batch=64", "--decoding.max-extra-length=50"),
    ]
    programs = tiny_run.start(workdir, *flags, "--evaluation.num-sentences=400", **TWO)
    wait_until(lambda: 7 in _complete(workdir))
    time.sleep(2.0)
    programs[1].send_signal(signal.SIGTERM)
    ended = _end_with(128 + signal.SIGTERM, programs)
    assert "stopped after step 7" in ended[0][0]
    assert max(_complete(workdir)) == 7
    assert not records_of(workdir, "dev")
    tiny_run.finish(workdir, *flags, "--evaluation.num-sentences=4", **TWO)
    assert [record["step"] for record in records_of(workdir, "dev")] == [7, 9]


@pytest.mark.parametrize("killed", [0, 1])
def test_a_process_that_is_killed_ends_the_other_and_both_go_on_from_the_last_checkpoint(
    tiny_run, undisturbed, tmp_path, killed
):
    workdir = tmp_path / "run"
    programs = tiny_run.start(workdir, *LONG, "--parallel.hang-minutes=1", **TWO)
    wait_for_step(programs[0], 9)
    programs[killed].kill()
    ended = [program.communicate(timeout=150) for program in programs]
    if killed == 0:  # it served the others' messages, without which JAX aborts them
        assert programs[1].returncode == -signal.SIGABRT, ended
    else:  # the connection breaks, or, if process 0 waits for something else, 1 is silent for 30 s
        assert programs[0].returncode == HUNG, ended
        assert ended[0][1].splitlines()[-1].startswith("error: process 0 on ")
    newest = max(_complete(workdir))
    said = tiny_run.finish(workdir, *LONG, **TWO)
    assert f"step {newest + 1} of {STEPS} begins" in said
    _assert_same_curve(tiny_run.losses(workdir), tiny_run.losses(undisturbed), newest)


def test_a_checkpoint_that_one_of_two_processes_cannot_read_is_used_by_none(tiny_run, tmp_path):
    workdir = tmp_path / "run"
    tiny_run.finish(workdir, **TWO)
    before, newest = _complete(workdir)
    files = (workdir / "checkpoints" / str(newest)).rglob("*")
    with max(files, key=lambda path: path.is_file() and path.stat().st_size).open("r+b") as file:
        file.truncate(100)
    programs = tiny_run.start(workdir, **TWO)
    (said, errors), _ = _end_with(0, programs)
    assert f"step {before + 1} of 12 begins" in said
    assert sum(line.startswith("warning: ") for line in errors.splitlines()) == 1
