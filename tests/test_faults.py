"""What a run survives: kills at any moment, damaged checkpoints, a full disk, a lost process.

Minutes of real programs; run by hand: python -m pytest -m faults
"""

import random
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from t2t_jax.run.loading import load
from t2t_jax.system.exit_codes import HUNG

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
    names = (path.name for path in (workdir / "checkpoints").glob("*"))
    return sorted(int(name) for name in names if name.isdigit())


def _wait_for_step(program, step):
    """Read what a program says up to the line of a step; returns the step that it began with."""
    begun = None
    for line in program.stdout:
        begins = re.match(r"step ([\d,]+) of .* begins", line)
        begun = int(begins[1].replace(",", "")) if begins else begun
        if re.match(rf"step {step:,}  loss", line):
            return begun
    pytest.fail(f"the run ended before step {step}: {program.stderr.read()}")


def _assert_same_parameters(one, other):
    first, second = (jax.tree.leaves(load(workdir, average=1).params) for workdir in (one, other))
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(("kills", "in_shards"), [(30, False), (10, True)])
def test_a_run_killed_many_times_ends_with_the_same_bits(
    tiny_run, undisturbed, tmp_path, kills, in_shards
):
    workdir, rng = tmp_path / "run", random.Random(0)
    flags = LONG
    if in_shards:
        flags, undisturbed = (*LONG, *tiny_run.in_shards(tmp_path / "shards")), tmp_path / "stayed"
        tiny_run.finish(undisturbed, *flags)
    cut_saves = 0
    for kills_left in range(kills, 0, -1):
        newest = max(_complete(workdir), default=0)
        ahead = max(1, 2 * (STEPS - 5 - newest) // kills_left)
        (program,) = tiny_run.start(workdir, *flags)
        begun = _wait_for_step(program, min(newest + rng.randint(1, ahead), STEPS - 1))
        assert begun == newest + 1  # nothing is lost but what came after the newest checkpoint
        time.sleep(rng.uniform(0, 0.06))
        program.kill()
        program.communicate()
        cut_saves += any("tmp" in path.name for path in (workdir / "checkpoints").iterdir())
    assert cut_saves > 0 or in_shards
    tiny_run.finish(workdir, *flags)
    assert not any("tmp" in path.name for path in (workdir / "checkpoints").iterdir())
    _assert_same_parameters(workdir, undisturbed)
    losses = tiny_run.losses(workdir)
    assert losses == tiny_run.losses(undisturbed)
    assert list(losses) == list(range(1, STEPS + 1))


def _largest_file(folder):
    return max(folder.rglob("*"), key=lambda path: path.stat().st_size if path.is_file() else 0)


def _truncate(checkpoint):
    with _largest_file(checkpoint).open("r+b") as file:
        file.truncate(100)


def _lose_a_file(checkpoint):
    _largest_file(checkpoint).unlink()


def _lose_an_item(checkpoint):
    shutil.rmtree(checkpoint / "params")


def _turn_a_bit(checkpoint):
    """In the values, whose checksum is ours.

    TensorStore finds one in its own tables. One in the names and sizes of arrays (JSON) is found
    where it is read. One in `origin` may make the checkpoint another run's, which is refused.
    """
    file = _largest_file(checkpoint / "progress")
    content = bytearray(file.read_bytes())
    content[len(content) // 3] ^= 4
    file.write_bytes(content)


@pytest.mark.parametrize("damage", [_truncate, _lose_a_file, _lose_an_item, _turn_a_bit])
def test_a_run_goes_on_from_the_checkpoint_before_a_damaged_one(
    tiny_run, undisturbed, tmp_path, damage
):
    workdir = tmp_path / "run"
    (program,) = tiny_run.start(workdir, *LONG)
    _wait_for_step(program, 20)
    program.terminate()
    program.communicate()
    assert program.returncode == 128 + signal.SIGTERM
    *_, before, newest = _complete(workdir)
    damage(workdir / "checkpoints" / str(newest))
    (program,) = tiny_run.start(workdir, *LONG)
    said, errors = program.communicate()
    assert program.returncode == 0, errors
    assert f"step {before + 1} of {STEPS} begins" in said
    warning, *rest = errors.splitlines()
    assert not rest, errors
    assert warning.startswith(f"warning: checkpoint {workdir}/checkpoints/{newest} cannot be read")
    assert (workdir / "damaged" / str(newest)).is_dir()
    _assert_same_parameters(workdir, undisturbed)
    assert tiny_run.losses(workdir) == tiny_run.losses(undisturbed)


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


@pytest.mark.parametrize("log_every_steps", [1, 1000])
def test_a_full_disk_ends_the_run_in_one_line_and_room_lets_it_go_on(
    tiny_run, undisturbed, disk, log_every_steps
):
    """With a line of the log each step, that is what fails; without, a save in the background."""
    workdir = disk / "run"
    flags = [*LONG, f"--training.log-every-steps={log_every_steps}"]
    (program,) = tiny_run.start(workdir, *flags)
    while len(_complete(workdir)) < 2:
        time.sleep(0.01)
    _fill(disk)
    said, errors = program.communicate()
    assert program.returncode == 2, said + errors
    (line,) = errors.splitlines()
    assert line.startswith("error: ")
    assert "No space left on device" in line
    assert "make room, and the same command goes on from" in line
    newest = max(_complete(workdir))
    assert newest < STEPS
    (disk / "ballast").unlink()
    said = tiny_run.finish(workdir, *flags)
    assert f"step {newest + 1} of {STEPS} begins" in said
    _assert_same_parameters(workdir, undisturbed)
    assert not any("tmp" in path.name for path in (workdir / "checkpoints").iterdir())


def test_a_full_disk_of_the_host_is_a_warning(tiny_run, undisturbed, disk, tmp_path):
    workdir, local = tmp_path / "run", disk / "local"
    flags = [*LONG, f"--checkpoint.local-dir={local}", "--checkpoint.local-every-steps=1"]
    (program,) = tiny_run.start(workdir, *flags)
    while not [*local.glob("run-*/*/0/[0-9]")]:
        assert program.poll() is None
        time.sleep(0.01)
    _fill(disk)
    said, errors = program.communicate()
    assert program.returncode == 0, said + errors
    assert len(errors.splitlines()) == 1, errors
    (line,) = errors.splitlines()
    assert "No space left on device" in line
    assert "the run goes on without checkpoints there" in line
    _assert_same_parameters(workdir, undisturbed)


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
    _wait_for_step(programs[0], 9)
    programs[signalled].terminate()
    ended = [program.communicate(timeout=120) for program in programs]
    assert [program.returncode for program in programs] == [128 + signal.SIGTERM] * 2, ended
    assert "the same command goes on from there" in ended[0][0]
    assert ended[1][0].count("step ") == 0  # one of them tells
    stopped = max(_complete(workdir))
    said = tiny_run.finish(workdir, *LONG)  # by one process, on one device
    assert f"step {stopped + 1} of {STEPS} begins" in said
    _assert_same_curve(tiny_run.losses(workdir), tiny_run.losses(undisturbed), stopped)


def test_a_process_that_is_killed_ends_the_other_and_both_go_on_from_the_last_checkpoint(
    tiny_run, undisturbed, tmp_path
):
    workdir = tmp_path / "run"
    programs = tiny_run.start(workdir, *LONG, **TWO)
    _wait_for_step(programs[0], 9)
    programs[1].kill()
    (_, errors), _ = [program.communicate(timeout=150) for program in programs]
    # It is told by the connection that broke, or where it waits for something else, after 100 s, by
    # JAX, which aborts it.
    assert programs[0].returncode in (HUNG, -signal.SIGABRT), errors
    if programs[0].returncode == HUNG:
        assert errors.splitlines()[-1].startswith("error: ")
    newest = max(_complete(workdir))
    said = tiny_run.finish(workdir, *LONG, **TWO)
    assert f"step {newest + 1} of {STEPS} begins" in said
    _assert_same_curve(tiny_run.losses(workdir), tiny_run.losses(undisturbed), newest)


@pytest.mark.parametrize("fsdp", [1, 4])
def test_processes_that_are_killed_go_on_without_a_host(tiny_run, tmp_path, fsdp):
    """One of two hosts is lost with its disk, between two checkpoints in the run directory."""
    fields = {
        **tiny_run.without_dev,
        "training.num_train_steps": 20,
        "parallel.fsdp": fsdp,
        "checkpoint.every_steps": 10,
    }
    flags = [f"--{name}={value}" for name, value in fields.items()]
    local = [f"--checkpoint.local-dir={tmp_path / 'local'}", "--checkpoint.local-every-steps=1"]
    programs = tiny_run.start(tmp_path / "run", *flags, *local, **TWO)
    _wait_for_step(programs[0], 13)
    for program in programs:
        program.kill()
    for program in programs:
        program.communicate()
    kept, lost = sorted((tmp_path / "local").glob("run-*/*/*"))
    shutil.rmtree(lost)
    newest = max(int(path.name) for path in kept.iterdir() if path.name.isdecimal())
    assert newest in range(11, 20)
    said = tiny_run.finish(tmp_path / "run", *flags, *local, **TWO)
    assert f"step {newest + 1 if fsdp == 1 else 11} of 20 begins" in said
    tiny_run.finish(tmp_path / "undisturbed", *flags, devices=4)
    losses, expected = (tiny_run.losses(tmp_path / name) for name in ("run", "undisturbed"))
    _assert_same_curve(losses, expected, newest)
    assert not any((tmp_path / "local").iterdir())


def test_a_checkpoint_that_one_of_two_processes_cannot_read_is_used_by_none(tiny_run, tmp_path):
    workdir = tmp_path / "run"
    tiny_run.finish(workdir, **TWO)
    before, newest = _complete(workdir)
    _truncate(workdir / "checkpoints" / str(newest))
    programs = tiny_run.start(workdir, **TWO)
    (said, errors), _ = [program.communicate(timeout=120) for program in programs]
    assert [program.returncode for program in programs] == [0, 0], errors
    assert f"step {before + 1} of 12 begins" in said
    assert sum(line.startswith("warning: ") for line in errors.splitlines()) == 1


def test_a_reader_that_goes_away_lets_the_run_end_well(tiny_run, undisturbed, tmp_path):
    workdir = tmp_path / "run"
    (program,) = tiny_run.start(workdir, *LONG)
    with program.stdout as said:
        said.readline()
    with program.stderr as errors:
        assert errors.read() == ""
    assert program.wait() == 0
    _assert_same_parameters(workdir, undisturbed)
