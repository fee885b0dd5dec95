"""Batches on a mesh. The devices of a mesh of several are simulated in a process of its own."""

import os
import subprocess
import sys

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from t2t_jax.config import ParallelConfig
from t2t_jax.data.batching import Batch
from t2t_jax.errors import UserError
from t2t_jax.parallel.mesh import make_mesh, mesh_of, put_batch


def _batch(rows, source, target):
    def side(length):
        return np.arange(1, rows * length + 1, dtype=np.int32).reshape(rows, length)

    return Batch(*[side(source)] * 3, *[side(target)] * 3)


def test_more_devices_than_there_are_is_refused():
    with pytest.raises(UserError, match=r"parallel\.data=99"):
        make_mesh(ParallelConfig(data=99))


@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 9), st.none() | st.integers(1, 80))
def test_passes_hold_every_row_once_in_order_and_are_small_enough(rows, source, target, limit):
    batch = _batch(rows, source, target)
    placed = put_batch(batch, make_mesh(ParallelConfig(data=1)), limit)
    for host, device in zip(batch, placed, strict=True):
        passes, rows_per_pass, length = device.shape
        flat = np.asarray(device).reshape(-1, length)
        np.testing.assert_array_equal(flat[:rows], host)
        assert not flat[rows:].any()
        assert len(flat) - rows < passes * 1 + rows_per_pass
        if limit is None:
            assert passes == 1
        else:
            assert rows_per_pass * max(source, target) <= max(limit, source, target)


_ON_FOUR_DEVICES = """
import jax, numpy as np
from functools import partial
from t2t_jax.config import Config
from t2t_jax.data.batching import Batch
from t2t_jax.modules.transformer import Transformer
from t2t_jax.parallel.mesh import make_mesh, mesh_of, put_batch
from t2t_jax.training.step import compile_train_step, init_state

rng = np.random.default_rng(0)
tokens = rng.integers(4, 13, (12, 6), dtype=np.int32)
ones = np.ones_like(tokens)
positions = np.broadcast_to(np.arange(6, dtype=np.int32), (12, 6))
batch = Batch(tokens, ones, positions, tokens, ones, positions)
losses = []
for devices in (1, 4, 3):
    config = Config().replace({
        "model.d_model": 8, "model.num_heads": 2, "model.d_ff": 16, "parallel.data": devices,
        "model.num_encoder_layers": 1, "model.num_decoder_layers": 1, "training.warmup_steps": 10,
    })
    model = Transformer(config.model, 13, 2)
    mesh = make_mesh(config.parallel)
    state = jax.jit(partial(init_state, config, model))()
    step = compile_train_step(config, model, mesh)
    losses.append([])
    for _ in range(5):
        placed = put_batch(batch, mesh)
        assert len(placed.inputs.sharding.device_set) == devices
        state, metrics = step(state, placed)
        losses[-1].append(float(metrics.losses.smoothed))
    assert mesh_of(state.params).size == devices
np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
np.testing.assert_allclose(losses[2], losses[0], rtol=1e-5)
print("same losses")
"""


def test_one_three_and_four_devices_give_the_same_losses_dropout_included():
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", _ON_FOUR_DEVICES],
        env={**os.environ, **flags},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "same losses" in done.stdout


def test_mesh_of_parameters_is_where_they_are():
    params = {"kernel": jax.device_put(np.ones(3), jax.devices()[0])}
    assert mesh_of(params).devices.tolist() == [jax.devices()[0]]
