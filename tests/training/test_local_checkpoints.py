"""Checkpoints on disks of the hosts: what of them a run goes on from, on which hosts."""

import os
import re
import socket
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t_jax.config import Config
from t2t_jax.config.file import load_config
from t2t_jax.run.loading import load
from t2t_jax.run.log import RunLog
from t2t_jax.run.trainer import train
from t2t_jax.training.averaging import load_parameters
from t2t_jax.training.checkpoint import Checkpoints
from t2t_jax.training.origin import Identity
from t2t_jax.training.state import TrainState, abstract_state
from t2t_jax.training.step import LossSums, StepMetrics
from tests.selection import thorough_after


def _state(step):
    rng = np.random.default_rng(step)
    params = {"a": {"kernel": jnp.asarray(rng.normal(size=(64, 8)), jnp.float32)}}
    moments = {"mu": jax.tree.map(jnp.zeros_like, params), "count": jnp.int32(step)}
    return TrainState(jnp.int32(step), params, moments, jnp.int32(1), jnp.int32(2))


LIKE = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), _state(0)
)


def leave(checkpoints):
    """Close checkpoints, but leave those on the disk of the host as a kill does."""
    checkpoints._local.wait()
    checkpoints._local = None
    checkpoints.close()


class Host:
    """A run of one process, whose programs are killed."""

    def __init__(self, folder):
        self.workdir, self.local_dir = folder / "runs" / "base", folder / "local"
        self.workdir.mkdir(parents=True)
        self.log = self.workdir / "log.jsonl"
        self.log.touch()

    def start(self, fingerprints=None, **fields):
        settings = {"every_steps": 10, "local_every_steps": 1, "local_dir": str(self.local_dir)}
        changed = {f"checkpoint.{name}": value for name, value in settings.items()}
        config = Config().replace(changed | {"checkpoint.average": 2} | fields)
        (self.workdir / "config.json").write_text(config.to_json())
        return Checkpoints(self.workdir, Identity(config, fingerprints or {"corpus": "x"}))

    def killed(self, steps, in_run=(10,), **fields):
        """Start, save these steps in the run and on the disk of the host, and be killed."""
        checkpoints = self.start(**fields)
        for step in in_run:
            checkpoints.save(_state(step))
            checkpoints.wait()
        for step in steps:
            checkpoints.save_locally(_state(step))
        leave(checkpoints)

    def places(self):
        """The checkpoints on the disk of the host, by their steps."""
        found = self.local_dir.glob("base-*/*/0/*")
        return {int(place.name): place for place in found if place.name.isdecimal()}

    def resumed(self, **how):
        """The step that a new start goes on from; its state is what was saved."""
        checkpoints = self.start(**how)
        restored = checkpoints.restore(LIKE)
        jax.tree.map(np.testing.assert_array_equal, restored, _state(int(restored.step)))
        checkpoints.close()
        return int(restored.step)


@pytest.fixture
def host(tmp_path):
    return Host(tmp_path)


def _in_run(host):
    return sorted(int(path.name) for path in (host.workdir / "checkpoints").iterdir())


def test_a_run_goes_on_from_the_newest_step_and_averages_leave_it_out(host, capsys):
    host.killed([7, 8, 14, 15])
    assert [*sorted(host.places())] == [14, 15]
    assert host.resumed() == 15
    assert f"step 15, which the hosts had in checkpoint.local_dir, is now {host.workdir}" in (
        capsys.readouterr().err
    )
    assert _in_run(host) == [10, 15]
    assert not any(host.local_dir.iterdir())
    host.killed([], in_run=[20])
    assert _in_run(host) == [10, 20]
    assert load_parameters(host.workdir, LIKE.params)[1] == [10, 20]


@pytest.mark.thorough
def test_a_step_that_is_due_counts_for_averages_though_it_came_from_a_host(host):
    host.killed([19, 20])
    assert host.resumed() == 20
    host.killed([], in_run=[21])
    assert load_parameters(host.workdir, LIKE.params)[1] == [10, 20]


@pytest.mark.thorough
def test_steps_that_the_run_has_outlived_stay_where_they_are_until_the_next_is_written(host):
    host.killed([8, 9])
    host.killed([], in_run=())
    assert sorted(host.places()) == [8, 9]
    host.killed([11], in_run=())
    assert sorted(host.places()) == [11]


def _of_another_run(host):
    return {"training.seed": 7}


def _of_another_text(host):
    return {"fingerprints": {"corpus": "y"}}


def _begun_again(host):
    host.log.unlink()
    return {}


@pytest.mark.parametrize(
    "change", thorough_after(1, [_of_another_run, _of_another_text, _begun_again])
)
def test_what_another_run_left_is_not_used(host, change, capsys):
    host.killed([3, 4], in_run=())
    checkpoints = host.start(**change(host))
    assert checkpoints.restore(LIKE) is None
    told = capsys.readouterr().err
    assert [line.endswith("; it is not used") for line in told.splitlines()] == (
        [] if change is _begun_again else [True, True]
    )
    checkpoints.save_locally(_state(1))
    leave(checkpoints)
    assert sorted(host.places()) == [1]


@pytest.mark.thorough
def test_a_step_that_lacks_a_part_gives_way_to_the_one_before(host, capsys):
    host.killed([14, 15])
    (host.places()[15] / "params" / "a.kernel" / "0.0").unlink()
    assert host.resumed() == 14
    assert "step 15 in checkpoint.local_dir is not used, as no host has 1 of its" in (
        capsys.readouterr().err
    )


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("damage", thorough_after(1, ["params/a.kernel/0.0", "origin/metadata"]))
def test_a_damaged_step_is_not_used(host, damage, capsys):
    host.killed([15])
    file = host.places()[15] / damage
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(content)
    assert host.resumed() == 10
    assert "/15 cannot be read" in capsys.readouterr().err
    assert (host.workdir / "damaged" / "15").exists() == (damage != "origin/metadata")


def test_a_kill_while_a_step_is_copied_leaves_nothing_half_done(host, monkeypatch):
    host.killed([15])
    with monkeypatch.context() as patch:
        patch.setattr("t2t_jax.training.local_checkpoints._commit", lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            host.start()
    assert len([*(host.workdir / "checkpoints").iterdir()]) == 2
    assert host.resumed() == 15
    assert _in_run(host) == [10, 15]


@pytest.mark.thorough
def test_a_step_that_cannot_be_copied_is_left_where_it_is(host, monkeypatch, capsys):
    host.killed([14, 15])
    with monkeypatch.context() as patch:
        patch.setattr("shutil.copyfile", lambda *_: (host.workdir / "no").read_bytes())
        checkpoints = host.start()
    assert checkpoints.restore(LIKE).step == 10
    leave(checkpoints)
    told = capsys.readouterr().err
    assert told.count("a checkpoint in checkpoint.local_dir cannot be copied") == 2
    assert _in_run(host) == [10]
    assert host.resumed() == 15


def test_a_disk_that_cannot_be_written_to_is_one_warning(host, capsys):
    checkpoints = host.start()
    place = checkpoints._local._place
    place.parent.mkdir(parents=True)
    place.write_bytes(b"")  # where the directory would be
    for step in (6, 7):
        checkpoints.save_locally(_state(step))
    checkpoints.save(_state(10))
    checkpoints.close()
    (warning,) = capsys.readouterr().err.splitlines()
    assert f"{place} cannot be written to" in warning
    assert _in_run(host) == [10]


class Killed(BaseException):
    """Stands for the end of the process: nothing of the run may catch it."""


@jax.jit
def _counting_step(state, batch):
    """A step that is compiled in no time, and which depends on all steps and batches before it."""
    drift = jnp.sum(batch.targets.tokens).astype(jnp.float32) * 1e-6
    params = jax.tree.map(lambda x: 0.9 * x + drift, state.params)
    loss = jnp.abs(jax.tree.leaves(params)[0]).sum()
    losses = LossSums(loss, loss, jnp.float32(1))
    metrics = StepMetrics(losses, loss, loss, jnp.int32(0), jnp.int32(0))
    return state._replace(step=state.step + 1, params=params), metrics


def _zeros(*network):
    """The state before the first step, which nothing is compiled for."""
    like = abstract_state(*network)
    return jax.tree.map(lambda x: jax.device_put(np.zeros(x.shape, x.dtype), x.sharding), like)


@pytest.mark.parametrize("is_real", thorough_after(1, [False, True]))
def test_a_training_that_is_killed_takes_no_step_twice_that_a_host_has(
    tiny_run, tmp_path, monkeypatch, capsys, is_real
):
    if not is_real:
        monkeypatch.setattr("t2t_jax.run.trainer.compile_train_step", lambda *_: _counting_step)
        monkeypatch.setattr("t2t_jax.run.start.create_state", _zeros)
    fields = {
        **tiny_run.without_dev,
        "training.num_train_steps": 6,
        "checkpoint.every_steps": 3,
        "checkpoint.average": 2,
    }
    config = load_config(str(tiny_run.folder / "tiny.py")).replace(fields)
    local = {"checkpoint.local_dir": str(tmp_path / "local"), "checkpoint.local_every_steps": 2}
    training = RunLog.training

    def dying(self, step, *arguments, **others):
        if step == 5:
            raise Killed
        training(self, step, *arguments, **others)

    with monkeypatch.context() as patch:
        patch.setattr(RunLog, "training", dying)
        with pytest.raises(Killed):
            train(config.replace(local), tmp_path / "killed")
    capsys.readouterr()
    assert train(config.replace(local), tmp_path / "killed").exit_code == 0
    assert "step 5 of 6 begins" in capsys.readouterr().out
    assert train(config, tmp_path / "undisturbed").exit_code == 0
    assert tiny_run.losses(tmp_path / "killed") == tiny_run.losses(tmp_path / "undisturbed")
    one, other = (load(tmp_path / name) for name in ("killed", "undisturbed"))
    assert one.steps == other.steps == (3, 6)
    jax.tree.map(np.testing.assert_array_equal, one.params, other.params)
    assert not any((tmp_path / "local").iterdir())


# Two hosts with two devices each. Of `state`, both hosts have all parts, or each half of them.
_HOSTS = """
import shutil, sys
from pathlib import Path
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from t2t_jax.config import Config
from t2t_jax.parallel.processes import agree, join
from t2t_jax.training.checkpoint import Checkpoints
from t2t_jax.training.origin import Identity
from t2t_jax.training.state import TrainState

process, coordinator, root = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
join(coordinator, 2, process)
mesh = Mesh(np.asarray(jax.devices()).reshape(2, 2), ("data", "fsdp"))
ON_EACH, ON_BOTH = P("fsdp"), P(("data", "fsdp"))

def state(step, axes):
    def put(values, spec):
        sharding = NamedSharding(mesh, spec)
        return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])
    values = np.random.default_rng(step).normal(size=(8, 12)).astype(np.float32)
    params = {"rows": put(values, axes), "whole": put(values, P())}
    counts = [put(np.asarray(n, np.int32), P()) for n in (step, 1, 2)]
    return TrainState(counts[0], params, {"mu": put(2 * values, axes)}, *counts[1:])

def start(name, host):
    fields = {"every_steps": 10, "local_every_steps": 1, "local_dir": str(root / f"host{host}")}
    config = Config().replace({f"checkpoint.{field}": value for field, value in fields.items()})
    return Checkpoints(root / name, Identity(config, {}))

def killed(name, axes):
    if process == 0:
        (root / name).mkdir()
        (root / name / "log.jsonl").touch()
    agree(0)
    checkpoints = start(name, process)
    checkpoints.save(state(10, axes))
    checkpoints.wait()
    for step in (14, 15):
        checkpoints.save_locally(state(step, axes))
    checkpoints._local.wait()
    checkpoints._local = None
    checkpoints.close()

def resumed(name, axes, host):
    checkpoints = start(name, host)
    like = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state(0, axes)
    )
    restored = checkpoints.restore(like)
    expected = state(int(restored.step), axes)
    for a, b in zip(jax.tree.leaves(restored), jax.tree.leaves(expected), strict=True):
        for x, y in zip(a.addressable_shards, b.addressable_shards, strict=True):
            np.testing.assert_array_equal(x.data, y.data)
    checkpoints.close()
    return int(restored.step)

for number, (axes, hosts, expected) in enumerate([
    (ON_EACH, (0, 1), 15),
    (ON_EACH, (0, 2), 15),  # process 1 is on another host
    (ON_EACH, (2, 1), 15),  # process 0 is
    (ON_BOTH, (0, 1), 15),
    (ON_BOTH, (1, 0), 15),  # each is on the host of the other
    (ON_BOTH, (0, 2), 10),
]):
    name = f"run{number}"
    killed(name, axes)
    assert resumed(name, axes, hosts[process]) == expected, number
killed("moved", ON_EACH)
print("done")
"""


def _two_processes(program, *arguments):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{free.getsockname()[1]}"
    started = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(process), place, *map(str, arguments)],
            env={**os.environ, "JAX_NUM_CPU_DEVICES": "2"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for process in (0, 1)
    ]
    said = [program.communicate(timeout=300) for program in started]
    for program, (_, errors) in zip(started, said, strict=True):
        assert program.returncode == 0, errors
    return said


@pytest.mark.thorough
def test_what_the_hosts_together_still_have_is_used_on_any_number_of_processes(tmp_path):
    said = _two_processes(_HOSTS, tmp_path)
    assert [output.splitlines()[-1] for output, _ in said] == ["done", "done"]
    told = [line for _, errors in said for line in errors.splitlines() if "not used" in line]
    assert [re.search(r"step (\d+) .* no host has (\d+) of", line)[1] for line in told] == (
        ["15", "14"]
    )
    # A single process goes on from what the second host has.
    moved = tmp_path / "moved"
    fields = {"every_steps": 10, "local_every_steps": 1, "local_dir": str(tmp_path / "host1")}
    config = Config().replace({f"checkpoint.{field}": value for field, value in fields.items()})
    (moved / "config.json").write_text(config.to_json())
    checkpoints = Checkpoints(moved, Identity(config, {}))
    one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    like = jax.ShapeDtypeStruct((8, 12), jnp.float32, sharding=one)
    params, steps = load_parameters(moved, {"rows": like, "whole": like}, average=1)
    checkpoints.close()
    assert steps == [15]
    values = np.random.default_rng(15).normal(size=(8, 12)).astype(np.float32)
    np.testing.assert_array_equal(params["rows"], values)
