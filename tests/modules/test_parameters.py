"""Names, shapes, numbers and initial values of the parameters."""

import math
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t_jax.config import network_config
from t2t_jax.modules.network import init_parameters
from t2t_jax.modules.transformer import Transformer


def _initialiser(vocab_size, **options):
    module = Transformer(network_config(**options), vocab_size, bos_id=1)
    return lambda key: nn.unbox(init_parameters(module, key))


def _layers(n):
    return {"num_encoder_layers": n, "num_decoder_layers": n}


def test_names_read_like_the_paper_and_layers_are_the_leading_axis():
    shapes = jax.eval_shape(
        _initialiser(
            11,
            d_model=6,
            num_heads=2,
            d_k=4,
            d_v=5,
            d_ff=7,
            num_encoder_layers=2,
            num_decoder_layers=3,
        ),
        jax.random.key(0),
    )

    def attention(n):
        return {
            "query": {"kernel": (n, 6, 8)},
            "key": {"kernel": (n, 6, 8)},
            "value": {"kernel": (n, 6, 10)},
            "output": {"kernel": (n, 10, 6)},
        }

    def norm(n):
        return {"norm": {"scale": (n, 6), "bias": (n, 6)}}

    def feed_forward(n):
        return {"kernel_1": (n, 6, 7), "bias_1": (n, 7), "kernel_2": (n, 7, 6), "bias_2": (n, 6)}

    assert jax.tree.map(lambda leaf: leaf.shape, shapes) == {
        "embedding": {"embedding": (11, 6)},
        "encoder": {
            "layers": {
                "self_attention": attention(2),
                "self_attention_residual": norm(2),
                "feed_forward": feed_forward(2),
                "feed_forward_residual": norm(2),
            }
        },
        "decoder": {
            "layers": {
                "self_attention": attention(3),
                "self_attention_residual": norm(3),
                "cross_attention": attention(3),
                "cross_attention_residual": norm(3),
                "feed_forward": feed_forward(3),
                "feed_forward_residual": norm(3),
            }
        },
    }
    assert {leaf.dtype for leaf in jax.tree.leaves(shapes)} == {jnp.dtype("float32")}


def test_options_add_their_parameters_under_their_own_names():
    options = {"d_model": 6, "num_heads": 2, "d_ff": 7, **_layers(1)}
    plain = jax.eval_shape(_initialiser(11, **options), jax.random.key(0))
    names = partial(_initialiser, 11, **options)
    learned = jax.eval_shape(names(position="learned", max_positions=9), jax.random.key(0))
    untied = jax.eval_shape(names(share_embeddings=False), jax.random.key(0))
    pre = jax.eval_shape(names(norm_order="pre"), jax.random.key(0))

    assert set(learned) - set(plain) == {"source_position", "target_position"}
    assert learned["source_position"]["embedding"].shape == (9, 6)
    three = {"source_embedding", "target_embedding", "output_projection"}
    assert set(untied) ^ set(plain) == three | {"embedding"}
    assert {untied[name]["embedding"].shape for name in three} == {(11, 6)}
    for stack in ("encoder", "decoder"):
        assert set(pre[stack]) - set(plain[stack]) == {"norm"}
        assert pre[stack]["norm"]["scale"].shape == (6,)


def test_initial_values_have_the_documented_spread_and_differ_between_layers():
    options = {"d_model": 64, "num_heads": 2, "d_k": 16, "d_ff": 256, **_layers(2)}
    initialise = jax.jit(_initialiser(500, position="learned", **options))
    params = jax.tree.map(np.asarray, initialise(jax.random.key(0)))

    # Glorot: uniform within sqrt(6 / (fan in + fan out)), of one layer's kernel.
    layers = params["decoder"]["layers"]
    for kernel in (
        layers["self_attention"]["query"]["kernel"],
        layers["cross_attention"]["output"]["kernel"],
        layers["feed_forward"]["kernel_1"],
        layers["feed_forward"]["kernel_2"],
    ):
        limit = math.sqrt(6 / sum(kernel.shape[1:]))
        assert 0.98 * limit < np.abs(kernel).max() <= limit
        assert kernel.std() == pytest.approx(limit / math.sqrt(3), rel=0.05)
        assert abs(np.corrcoef(kernel[0].ravel(), kernel[1].ravel())[0, 1]) < 0.1
    for name in ("embedding", "source_position", "target_position"):
        assert params[name]["embedding"].std() == pytest.approx(64**-0.5, rel=0.02)
    # Norms start as the identity, and biases at 0.
    for path, array in jax.tree.leaves_with_path(params):
        if path[-1].key in ("scale", "bias", "bias_1", "bias_2"):
            assert (array == (path[-1].key == "scale")).all()
    source, target = (params[f"{side}_position"]["embedding"] for side in ("source", "target"))
    assert abs(np.corrcoef(source.ravel(), target.ravel())[0, 1]) < 0.05
