"""The stacks of every family: one layer under one set of names."""

import jax
import jax.numpy as jnp
import pytest

from t2t_jax.config import network_config
from t2t_jax.modules.stack import LayerStack

_LAYER = {"self_attention", "self_attention_residual", "feed_forward", "feed_forward_residual"}
_CROSS = {"cross_attention", "cross_attention_residual"}
_DECODER = {"encoder_decoder": _LAYER | _CROSS, "decoder_only": _LAYER}


@pytest.mark.parametrize(
    ("architecture", "stacks"),
    [
        ("encoder_decoder", {"encoder": _LAYER, "decoder": _LAYER | _CROSS}),
        ("decoder_only", {"decoder": _LAYER}),
        ("encoder_only", {"encoder": _LAYER}),
    ],
)
def test_layers_of_every_family_have_the_same_names(make_model, architecture, stacks):
    params = make_model(architecture=architecture, norm_order="pre").variables["params"]
    assert {name: set(params[name]["layers"]) for name in params if "coder" in name} == stacks
    assert all({"layers", "norm"} == set(params[name]) for name in stacks)


@pytest.mark.parametrize("architecture", _DECODER)
def test_decoding_has_each_layer_by_its_number(make_model, architecture):
    model = make_model(architecture=architecture)
    decoder = jax.eval_shape(model.decoding.prepare, model.variables["params"])["decoder"]
    assert {name: set(layer) for name, layer in decoder.items()} == {
        f"layers_{number}": _DECODER[architecture] for number in range(2)
    }
    attention = decoder["layers_1"]["self_attention"]
    assert jax.tree.map(lambda x: x.shape, attention) == {
        "output": {"kernel": (16, 16)},
        "query_key_value": {"kernel": (16, 3 * 16)},
    }


@pytest.mark.parametrize("depth", [1, 2])
def test_the_compiler_cannot_undo_the_recomputation_of_layers(depth):
    """It merges equal operations, but neither across a barrier nor into the body of a loop."""
    config = network_config(d_model=4, num_heads=1, d_ff=4, num_encoder_layers=depth)
    stack, x = LayerStack(config, config.stacks[0], remat="layer"), jnp.ones((1, 2, 4))
    variables = stack.init(jax.random.key(0), x)
    derivative = jax.jit(jax.grad(lambda x: stack.apply(variables, x).sum()))
    assert ("optimization_barrier" in derivative.lower(x).as_text()) == (depth == 1)
