"""Parity with `transformers`; see `tests/goldens/make_variant_goldens.py`."""

from functools import partial
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from t2t_jax.config.tables import ACTIVATIONS
from t2t_jax.functional.feed_forward import gated_feed_forward
from t2t_jax.functional.normalization import rms_norm
from t2t_jax.functional.position import (
    alibi_bias,
    linear_scaling,
    ntk_scaling,
    relative_position_buckets,
    rotary_frequencies,
    rotate,
)

_GATED = "glu", "reglu", "geglu", "swiglu"

with np.load(Path(__file__).parents[1] / "goldens" / "variants.npz") as arrays:
    _GOLDENS = {name: jnp.array(array) for name, array in arrays.items()}


def _of(part, *names):
    return [_GOLDENS[f"{part}/{name}"] for name in names]


def test_the_norm_of_llama():
    x, scale, expected = _of("rms_norm", "x", "scale", "output")
    np.testing.assert_allclose(rms_norm(x, scale, 1e-5), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("name", "kind"), [*zip(_GATED, _GATED, strict=True), ("llama", "swiglu")])
def test_the_gated_networks_of_t5_and_llama(name, kind):
    x, *kernels, expected = _of("feed_forward", "x", "gate_kernel", "kernel_1", "kernel_2", name)
    output = gated_feed_forward(x, *kernels, activation=ACTIVATIONS[kind].load())
    np.testing.assert_allclose(output, expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("name", "scaling"), [("default", None), ("linear", linear_scaling), ("ntk", ntk_scaling)]
)
def test_the_rotary_positions_of_llama(name, scaling):
    x, positions, expected = _of("rotary", "x", "positions", name)
    d_k = x.shape[-1]
    order = np.arange(d_k).reshape(2, -1).T.ravel()  # elements i and i + d_k / 2 are a pair
    divisors = scaling and partial(scaling, scale=4.0)
    rotated = rotate(x[..., order], positions, rotary_frequencies(d_k, divisors=divisors))
    np.testing.assert_allclose(rotated, expected[..., order], rtol=1e-6, atol=2e-6)


@pytest.mark.parametrize("num_heads", [8, 12])
def test_the_alibi_of_bloom_up_to_a_constant_of_each_query(num_heads):
    (by_key,) = _of("alibi", str(num_heads))
    places = np.arange(by_key.shape[1])
    distances = np.subtract.outer(places, places)
    expected = by_key[:, None, :] - by_key[:, :, None]
    bias = alibi_bias(jnp.array(distances), num_heads)
    seen = distances >= 0
    np.testing.assert_allclose(bias[:, seen], expected[:, seen], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_the_buckets_and_the_bias_of_t5(stack):
    distances, expected, table, bias = _of(
        "relative_bias", "distances", stack, "table", f"{stack}_bias"
    )
    bidirectional = stack == "encoder"
    buckets = relative_position_buckets(distances[None], bidirectional=bidirectional)
    np.testing.assert_array_equal(buckets[0], expected)
    places = jnp.arange(bias.shape[-1])
    buckets = relative_position_buckets(places[:, None] - places, bidirectional=bidirectional)
    np.testing.assert_array_equal(table[buckets].transpose(2, 0, 1), bias)
