"""Parameters that are multiplied with, and what decoding makes of them."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from t2t_jax.batch import one_a_row
from t2t_jax.config import network_config
from t2t_jax.kernels.int8 import Int8Matrix
from t2t_jax.modules.cached_decoding import TransformerDecoding
from t2t_jax.modules.decoding_model import LastTokens
from t2t_jax.modules.network import declared_parameters
from t2t_jax.modules.parameters import declaring, parameter, quantize_matrices
from t2t_jax.modules.transformer import Transformer
from tests.selection import thorough_after
from tests.tiny import first_parameters

_VOCAB = 60
_SMALL = {"d_model": 64, "num_heads": 4, "d_ff": 128}
_KINDS = [
    network_config(num_encoder_layers=2, num_decoder_layers=2, **_SMALL),
    network_config(
        num_encoder_layers=2,
        num_decoder_layers=2,
        share_embeddings=False,
        position="relative_bias",
        norm_order="pre",
        norm="rms",
        feed_forward="swiglu",
        num_kv_heads=2,
        attention_bias=True,
        query_key_norm=True,
        attention_kind="additive",
        output_bias=True,
        **_SMALL,
    ),
    network_config(num_encoder_layers=2, num_decoder_layers=2, compute_dtype="bfloat16", **_SMALL),
]


def _model(config):
    model = Transformer(config, _VOCAB, 1)
    return TransformerDecoding(model), first_parameters(model)


@partial(jax.jit, static_argnums=0, static_argnames="quantize")
def _logits(model, params, **prepared):
    """Of the second position, for two hypotheses each of three sentences."""
    params = model.prepare(params, **prepared)
    sources = jax.random.randint(jax.random.key(1), (3, 6), 3, _VOCAB)
    memory = model.memory(params, one_a_row(sources))
    cache = model.empty_cache(3, 2, 4)
    tokens = jnp.array([[5, 6], [7, 8], [9, 10]])
    for place in range(2):
        mask = (jnp.arange(4) <= place)[:, None] & jnp.eye(2, dtype=bool)[:, None]
        mask = jnp.broadcast_to(mask, (3, 2, 4, 2))
        last = LastTokens(tokens + place, jnp.full(3, place), jnp.int32(place), mask)
        logits, cache = model.step(params, last, cache, memory)
    return logits


@pytest.mark.parametrize("config", thorough_after(1, _KINDS), ids=["paper", "others", "bfloat16"])
def test_a_quantized_model_computes_nearly_the_same(config):
    model, params = _model(config)
    exact = np.float64(_logits(model, params))
    near = np.float64(_logits(model, params, quantize="int8"))
    assert 1e-3 < (near - exact).std() / exact.std() < 0.05


def test_every_matrix_becomes_integers_and_nothing_else_changes():
    model, params = _model(_KINDS[1])
    declared = declared_parameters(model.network)
    params, converted = jax.device_get(
        (params, jax.jit(lambda params: quantize_matrices(params, declared))(params))
    )
    held = jax.tree.leaves(converted, is_leaf=lambda x: isinstance(x, Int8Matrix))
    for (path, value), new in zip(jax.tree.leaves_with_path(params), held, strict=True):
        name = jax.tree_util.keystr(path)
        if value.ndim > 1 and not any(
            part in name for part in ("position", "bias", "scores", "norm")
        ):
            assert new.values.dtype == jnp.int8, name
            error = np.abs(new.values * new.scales - value).max()
            assert error <= new.scales.max() * 0.5001, name
        else:
            np.testing.assert_array_equal(new, value)


def test_a_parameter_that_no_module_declares_a_matrix_stays_as_it_is():
    class Gate(nn.Module):
        @nn.compact
        def __call__(self, x):
            return x * self.param("kernel", nn.initializers.ones, x.shape)

    with declaring():
        declared = Gate().init(jax.random.key(0), jnp.ones((4, 4)))["params"]
    assert quantize_matrices(declared, declared)["kernel"].dtype == jnp.float32


def test_a_new_parameter_keeps_its_values_and_says_its_axes_where_it_is_declared():
    class Table(nn.Module):
        @nn.compact
        def __call__(self):
            return parameter(self, "table", nn.initializers.normal(), (3, 4), ("vocab", "embed"))

    made = Table().init(jax.random.key(0))["params"]["table"]
    assert isinstance(made, jax.Array)
    with declaring():
        boxed = Table().init(jax.random.key(0))["params"]["table"]
    assert boxed.get_partition_spec() == PartitionSpec("vocab", "embed")
    np.testing.assert_array_equal(nn.unbox(boxed), made)


def test_a_quantized_model_takes_a_quarter_of_the_memory():
    network = Transformer(network_config(), 1000, 1)
    params = nn.unbox(declared_parameters(network))
    prepare = TransformerDecoding(network).prepare
    before, after = (
        sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(jax.eval_shape(make, params)))
        for make in (prepare, partial(prepare, quantize="int8"))
    )
    assert 0.25 < after / before < 0.26
