"""Settings of JAX leave random numbers as they are, or are listed as those that change results."""

from functools import partial

import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t_jax.decoding.search.strategies import Sampling
from t2t_jax.parallel.jax_settings import random_key, result_settings
from t2t_jax.training.state import init_state
from t2t_jax.training.step import train_step
from tests.decoding.test_search import EOS, SENTENCES, limits_array, make_table, toy_search
from tests.programs import run_python

RANDOM_NUMBERS = [
    ("jax_threefry_partitionable", False),
    ("jax_default_prng_impl", "rbg"),
    ("jax_random_seed_offset", 5),
    ("flax_fix_rng_separator", True),
    ("jax_high_dynamic_range_gumbel", True),
    ("jax_default_prng_impl", "unsafe_rbg"),
    ("jax_enable_custom_prng", True),
    ("jax_threefry_gpu_kernel_lowering", True),
]
ROUNDING = [
    ("jax_default_matmul_precision", "bfloat16"),
    ("jax_use_shardy_partitioner", False),
    ("jax_disable_jit", True),
    ("jax_optimization_level", "O1"),
]


@pytest.fixture
def setting(request):
    """The name of a setting that has another value during the test, as a user's program sets it."""
    name, value = request.param
    config = flax.config if name.startswith("flax") else jax.config
    before = getattr(config, name) if name.startswith("flax") else jax.config.values[name]
    config.update(name, value)
    yield name
    config.update(name, before)


@pytest.fixture(scope="module")
def results(tiny, batch):
    """A function that computes initial and trained parameters and samples, and the default ones."""
    # Two layers: the keys of layers are split.
    run = tiny.changed(model__num_encoder_layers=2, model__dropout_rate=0.3)
    rows = jax.tree.map(lambda x: jnp.asarray(x)[None], batch)
    table = jnp.asarray(make_table(3, 7))

    def samples():
        sampling = Sampling(EOS)
        keys = jax.vmap(jax.random.fold_in, (None, 0))(random_key(3), jnp.asarray(SENTENCES))
        return toy_search(sampling, table, SENTENCES, limits_array([8] * 12), 8, keys).tokens

    def compute():
        state = initial = jax.jit(partial(init_state, run.config, run.model))()
        step = jax.jit(partial(train_step, run.config, run.model))
        for _ in range(2):
            state, _ = step(state, rows)
        computed = initial.params, state.params, jax.jit(lambda: samples())()
        return [np.asarray(x) for x in jax.tree.leaves(computed)]

    return compute, compute()


@pytest.mark.thorough
@pytest.mark.parametrize("setting", RANDOM_NUMBERS, indirect=True)
def test_a_setting_leaves_random_numbers_as_they_are_or_is_listed(setting, results):
    compute, expected = results
    is_equal = all(map(np.array_equal, compute(), expected))
    assert is_equal != (setting.upper() in result_settings())


@pytest.mark.parametrize("setting", ROUNDING, indirect=True)
def test_a_setting_that_may_change_the_rounding_is_listed(setting):
    assert setting.upper() in result_settings()


@pytest.mark.parametrize(
    ("variable", "value", "listed"),
    [
        ("XLA_FLAGS", "--xla_dump_to=/tmp/x --xla_force_host_platform_device_count=2", {}),
        (
            "XLA_FLAGS",
            "--xla_allow_excess_precision=false --xla_cpu_enable_fast_math",
            {"--xla_allow_excess_precision": "false", "--xla_cpu_enable_fast_math": "true"},
        ),
        ("LIBTPU_INIT_ARGS", "--xla_x=1", {"--xla_x": "1"}),
        ("NVIDIA_TF32_OVERRIDE", "0", {"NVIDIA_TF32_OVERRIDE": "0"}),
    ],
)
def test_variables_and_flags_of_the_compiler_are_listed(variable, value, listed, monkeypatch):
    for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "NVIDIA_TF32_OVERRIDE"):
        monkeypatch.delenv(name, raising=False)
    before = result_settings()
    monkeypatch.setenv(variable, value)
    assert result_settings() == before | listed


@pytest.mark.thorough
def test_no_setting_is_listed_by_default():
    code = "from t2t_jax.parallel.jax_settings import result_settings; print(result_settings())"
    usual = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "0", "XLA_FLAGS": ""}  # which the tests change
    assert run_python("-c", code, code=0, **usual).stdout == "{}\n"
