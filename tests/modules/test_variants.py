"""The network in all its variants against the formulas; see `tests.modules.numpy_transformer`."""

from functools import partial

import jax
import numpy as np
import pytest

from tests.modules.numpy_transformer import logits
from tests.selection import thorough_after

# Each holds several options, because compiling takes most of the time. The layers of encoder and
# decoder differ in number, so that neither could be taken for the other.
_VARIANTS = {
    "paper": {},
    "pre-norm, learned positions": {"norm_order": "pre", "position": "learned"},
    "untied, uneven heads": {"share_embeddings": False, "d_k": 6, "d_v": 10},
    "as Llama": {
        "norm": "rms",
        "norm_epsilon": 1e-2,
        "norm_order": "pre",
        "feed_forward": "swiglu",
        "position": "rotary",
        "num_heads": 4,
        "num_kv_heads": 2,
        "scale_embeddings": False,
        "share_embeddings": False,
    },
    "as T5": {
        "norm": "rms",
        "norm_order": "pre",
        "feed_forward": "geglu_tanh",
        "position": "relative_bias",
        "attention_kind": "dot_product",
        "scale_embeddings": False,
        "share_embeddings": False,
        "share_source_embedding": True,
    },
    "as BART": {
        "norm_epsilon": 1e-2,
        "feed_forward": "gelu",
        "position": "learned",
        "attention_bias": True,
        "embedding_norm": True,
        "output_bias": True,
    },
    "as Marian": {
        "position": "sinusoidal_t2t",
        "feed_forward": "silu",
        "share_embeddings": False,
        "share_target_embedding": True,
        "output_bias": True,
    },
    "deep, ALiBi, a window": {
        "norm_order": "deep",
        "feed_forward": "reglu",
        "position": "alibi",
        "num_heads": 3,
        "d_k": 4,
        "d_v": 6,
        "attention_window": 3,
    },
    "additive scores, norms of queries and keys": {
        "feed_forward": "glu",
        "position": "none",
        "attention_kind": "additive",
        "query_key_norm": True,
        "attention_bias": True,
    },
    "rotary further than trained, one pair of keys and values": {
        "norm": "rms",
        "position": "rotary",
        "rotary_base": 500.0,
        "rotary_scale": 4.0,
        "rotary_scaling": "ntk",
        "num_kv_heads": 1,
        "query_key_norm": True,
        "attention_window": 4,
    },
    "rotary by interpolation, a norm of embeddings": {
        "norm": "rms",
        "norm_order": "deep",
        "position": "rotary",
        "rotary_scale": 2.0,
        "rotary_scaling": "linear",
        "embedding_norm": True,
    },
}

_SOURCES = [[3, 4, 5, 6, 7, 8, 9, 10, 3, 5, 7, 2], [9, 4, 4, 2]]
_TARGETS = [[5, 6, 7, 10, 2], [8, 9, 10, 3, 4, 3, 6, 7, 9, 2]]


@partial(jax.jit, static_argnums=0)
def _logits_and_gradient(module, variables, batch, cotangent):
    """Logits, and the gradient of their sum with weights."""

    def weighted(variables):
        output = module.apply(variables, batch, deterministic=True)
        return (output * cotangent).sum(), output

    gradient, output = jax.grad(weighted, has_aux=True)(variables)
    return output, gradient


@pytest.mark.parametrize("options", thorough_after(4, _VARIANTS.values()), ids=_VARIANTS)
def test_logits_and_their_gradient_are_those_of_the_formulas(options, make_model, make_batch):
    model = make_model(num_decoder_layers=3, **options)
    # Two pairs share a row with padding, so that it shows if one pair could see the other.
    batch = make_batch([_SOURCES], [_TARGETS], 18, 17)
    rng = np.random.default_rng(1)
    cotangent = rng.normal(size=(17, 11))
    cotangent[sum(map(len, _TARGETS)) :] = 0
    output, gradient = _logits_and_gradient(model.module, model.variables, batch, cotangent)
    params = model.variables["params"]
    expected = _formulas(params, model.config)
    np.testing.assert_allclose(output[0, : len(expected)], expected, rtol=1e-5, atol=1e-5)
    # The derivative along a random direction, as a difference of the formulas in float64.
    direction = jax.tree.map(lambda x: 1e-6 * rng.normal(size=x.shape), params)
    there = _formulas(jax.tree.map(lambda x, d: np.float64(x) + d, params, direction), model.config)
    back = _formulas(jax.tree.map(lambda x, d: np.float64(x) - d, params, direction), model.config)
    slope = ((there - back) / 2 * cotangent[: len(expected)]).sum()
    parts = jax.tree.map(lambda g, d: (np.float64(g) * d).sum(), gradient["params"], direction)
    np.testing.assert_allclose(sum(jax.tree.leaves(parts)), slope, rtol=2e-4)


def _formulas(params, config):
    """The logits of both pairs, one after the other, `[t, vocab]`."""
    pairs = zip(_SOURCES, _TARGETS, strict=True)
    return np.concatenate([logits(params, config, source, target) for source, target in pairs])
