"""Parameters are read while a trainer replaces checkpoints, and what may not be read is told."""

import shutil
import threading

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

from t2t_jax.config import CheckpointConfig, Config
from t2t_jax.errors import UserError
from t2t_jax.training import averaging
from t2t_jax.training.checkpoint import Checkpoints
from t2t_jax.training.origin import Identity
from t2t_jax.training.parameters import load_parameters
from t2t_jax.training.state import TrainState
from tests.training.conftest import like, stored_run

KEEP = 3


def _state(step):
    params = {"kernel": jnp.full((8, 8), step, jnp.float32)}
    return TrainState(jnp.int32(step), params, {}, jnp.int32(0), jnp.int32(0))


LIKE = like(_state(0))


@pytest.fixture
def checkpoints(tmp_path):
    """Those of a run that keeps three, of which two are averaged."""
    config = Config(checkpoint=CheckpointConfig(every_steps=1, keep=KEEP, average=2))
    (tmp_path / "config.json").write_text(config.to_json())
    with Checkpoints(tmp_path, Identity(config, {})) as opened:
        for step in (1, 2, 3):
            opened.save(_state(step))
        opened.wait()
        yield opened


@pytest.mark.thorough
def test_a_run_is_loaded_while_its_trainer_replaces_its_checkpoints(tmp_path, checkpoints):
    stop = threading.Event()

    def train():
        step = 3
        while not stop.is_set():
            step += 1
            checkpoints.save(_state(step))

    trainer = threading.Thread(target=train)
    trainer.start()
    try:
        for _ in range(25):
            params, steps = load_parameters(stored_run(tmp_path), LIKE.params)
            np.testing.assert_allclose(params["kernel"], np.mean(steps))
            assert steps[1] == steps[0] + 1
    finally:
        stop.set()
        trainer.join()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_checkpoint_that_goes_while_it_is_read_gives_way_to_those_that_are_there(
    tmp_path, checkpoints, monkeypatch
):
    """Also where it goes between two of its files."""
    restore, gone = averaging.restore, []

    def going(manager, directory, step, **items):
        if step == 2 and "params" in items and not gone:
            gone.append(step)
            shutil.rmtree(directory / "1")
            shutil.rmtree(directory / "2" / "params")
            threading.Timer(0.2, shutil.rmtree, [directory / "2", True]).start()
            checkpoints.save(_state(4))
            checkpoints.wait()
        return restore(manager, directory, step, **items)

    monkeypatch.setattr(averaging, "restore", going)
    assert load_parameters(stored_run(tmp_path), LIKE.params)[1] == [3, 4]


REFUSALS = [
    PermissionError(13, "Permission denied"),
    ValueError("PERMISSION_DENIED: Error opening file [OS error 13: EACCES Permission denied]"),
]


@pytest.mark.parametrize("error", REFUSALS, ids=["Python's", "TensorStore's"])
def test_a_checkpoint_that_may_not_be_read_is_not_called_damaged(
    tmp_path, checkpoints, monkeypatch, error
):
    def refuse(*_, **__):
        raise error

    monkeypatch.setattr(ocp.CheckpointManager, "restore", refuse)
    with pytest.raises(UserError, match=r"may not be read.*it is not damaged"):
        load_parameters(stored_run(tmp_path), LIKE.params)
    with pytest.raises(UserError, match=r"may not be read.*it is not damaged"):
        checkpoints.restore(LIKE)
    assert not (tmp_path / "damaged").exists()


def test_an_interrupt_that_orbax_wraps_is_not_called_damage(tmp_path, checkpoints, monkeypatch):
    """As a notebook has it, where Ctrl-C is an exception."""

    def interrupted(*_, **__):
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            raise RuntimeError("a read was cancelled") from error

    monkeypatch.setattr(ocp.CheckpointManager, "restore", interrupted)
    with pytest.raises(KeyboardInterrupt):
        load_parameters(stored_run(tmp_path), LIKE.params)
