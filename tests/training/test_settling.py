"""What a config leaves to the devices is chosen by their kind and their memory."""

from unittest.mock import Mock

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from t2t_jax.config import Config
from t2t_jax.training.settling import settled
from t2t_jax.training.step_memory import training_memory

_GIB = 1 << 30
_OPEN = Config().replace(
    {
        "model.compute_dtype": "auto",
        "parallel.tokens_per_device": "auto",
        "data.vocab_size": 32_768,
        "data.max_length": 256,
    }
)


def _mesh(platform, memory, count=1):
    stats = {"bytes_limit": memory} if memory else None
    device = Mock(
        spec=jax.Device,
        platform=platform,
        device_kind="of no table",
        compute_capability="9.0",
        core_on_chip=0,
        memory_stats=Mock(return_value=stats),
    )
    devices = np.array([device] * count, object).reshape(count, 1, 1)
    return Mock(spec=Mesh, devices=devices, shape={"data": count, "fsdp": 1, "tensor": 1})


def _tokens(config, *mesh):
    return settled(config, _mesh(*mesh)).parallel.tokens_per_device


def test_where_all_fits_a_step_is_one_pass():
    assert _tokens(_OPEN, "gpu", 140 * _GIB) == 32_768 > 25_000
    assert _tokens(_OPEN, "tpu", 140 * _GIB, 8) == 4096 > 25_000 / 8


@pytest.mark.parametrize("gib", [4, 8, 16])
def test_elsewhere_a_pass_takes_as_much_as_fits_by_the_estimate(gib):
    tokens = _tokens(_OPEN, "gpu", gib * _GIB)
    assert 256 <= tokens < 32_768
    assert tokens.bit_count() == 1
    config = settled(_OPEN, _mesh("gpu", gib * _GIB))

    def needed(tokens):
        rows = tokens // 256
        return training_memory(config, 32_768, (rows, 256, 256), passes=2).total

    assert 2 * needed(tokens) <= gib * _GIB < 2.5 * needed(2 * tokens)


def test_where_nothing_fits_it_is_one_row():
    assert _tokens(_OPEN, "gpu", 1 << 20) == 256


@pytest.mark.parametrize("mesh", [("cpu", 64 * _GIB), ("gpu", None)])
def test_on_cpus_and_where_memory_is_not_known_it_is_4096(mesh):
    assert _tokens(_OPEN, *mesh) == 4096


def test_what_is_chosen_stays():
    chosen = _OPEN.replace({"parallel.tokens_per_device": 77, "model.compute_dtype": "float32"})
    assert settled(chosen, _mesh("gpu", 140 * _GIB)) == chosen


def test_the_end_of_a_schedule_is_settled_where_it_has_one_and_is_left_open():
    mesh = _mesh("gpu", 140 * _GIB)
    config = Config().replace({"training.num_train_steps": 9000})
    assert settled(config, mesh).training.schedule_steps is None
    for schedule in ("cosine", "linear", "wsd"):
        found = settled(config.replace({"training.schedule": schedule}), mesh)
        assert found.training.schedule_steps == 9000
        longer = found.replace({"training.num_train_steps": 10_000})
        assert settled(longer, mesh).training.schedule_steps == 9000
