"""Parameters that are multiplied with, and what decoding makes of them."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t_jax.config import ModelConfig
from t2t_jax.modules.matrices import quantized
from t2t_jax.modules.transformer import Transformer, decoding_parameters, init_cache

_VOCAB = 60
_SMALL = {"d_model": 64, "num_heads": 4, "d_ff": 128}
_KINDS = [
    ModelConfig(num_encoder_layers=2, num_decoder_layers=2, **_SMALL),
    ModelConfig(
        num_encoder_layers=2,
        num_decoder_layers=2,
        share_embeddings=False,
        position="learned",
        max_positions=16,
        norm_order="pre",
        **_SMALL,
    ),
    ModelConfig(num_encoder_layers=2, num_decoder_layers=2, compute_dtype="bfloat16", **_SMALL),
]


def _model(config):
    model = Transformer(config, _VOCAB, 1)
    tokens = jnp.ones((1, 8), jnp.int32)
    variables = model.init(jax.random.key(0), *[tokens] * 6, deterministic=True)
    return model, nn.unbox(variables["params"])


@partial(jax.jit, static_argnums=0)
def _logits(model, params):
    """Of the second position, for two hypotheses each of three sentences."""
    sources = jax.random.randint(jax.random.key(1), (3, 6), 3, _VOCAB)
    apply = partial(model.apply, {"params": params})
    memory = apply(sources, jnp.ones_like(sources), method="memory")
    cache = init_cache(model.config, 3, 2, 4)
    tokens = jnp.array([[5, 6], [7, 8], [9, 10]])
    for place in range(2):
        mask = (jnp.arange(4) <= place)[:, None] & jnp.eye(2, dtype=bool)[:, None]
        mask = jnp.broadcast_to(mask, (3, 2, 4, 2))
        state = jnp.full(3, place), jnp.int32(place), mask, cache, memory
        logits, cache = apply(tokens + place, *state, method="step")
    return logits


@pytest.mark.parametrize("config", _KINDS, ids=["paper", "others", "bfloat16"])
def test_a_quantized_model_computes_nearly_the_same(config):
    model, params = _model(config)
    exact = np.float64(_logits(model, decoding_parameters(config, params)))
    near = np.float64(_logits(model, decoding_parameters(config, params, "int8")))
    assert 1e-3 < (near - exact).std() / exact.std() < 0.05


def test_every_matrix_becomes_integers_and_nothing_else_changes():
    _, params = _model(_KINDS[1])
    names = dict(jax.tree_util.tree_leaves_with_path(quantized(params)))
    for path, value in jax.tree_util.tree_leaves_with_path(params):
        name, new = jax.tree_util.keystr(path), names.pop(path)
        if value.ndim > 1 and "position" not in name and "bias" not in name and "norm" not in name:
            assert new.dtype == jnp.int8, name
            scales = names.pop((*path[:-1], jax.tree_util.DictKey(f"{path[-1].key}_scales")))
            assert np.abs(new * scales - value).max() <= scales.max() * 0.5001, name
        else:
            np.testing.assert_array_equal(new, value)
    assert not names


def test_a_quantized_model_takes_a_quarter_of_the_memory():
    model = Transformer(ModelConfig(), 1000, 1)
    tokens = jax.ShapeDtypeStruct((1, 8), jnp.int32)
    shapes = jax.eval_shape(
        partial(model.init, deterministic=True), jax.random.key(0), *[tokens] * 6
    )
    params = nn.unbox(shapes["params"])
    prepare = partial(decoding_parameters, model.config)
    before, after = (
        sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(jax.eval_shape(make, params)))
        for make in (prepare, partial(prepare, quantize="int8"))
    )
    assert 0.25 < after / before < 0.26
