import jax.numpy as jnp
import pytest

import t2t_jax
from t2t_jax.config import network_config
from t2t_jax.modules.embedding import PositionEncoding, TokenEmbedding
from tests.refusals import refused


@pytest.mark.parametrize("position", ["sinusoidal", "learned"])
def test_embeddings_with_positions_are_in_the_compute_dtype(position):
    config = network_config(
        d_model=4, num_heads=1, position=position, max_positions=7, compute_dtype="bfloat16"
    )
    tokens, matrix = jnp.array([[1, 2]]), {"params": {"embedding": jnp.ones((7, 4))}}
    embedded = TokenEmbedding(config, 7).apply(matrix, tokens)
    variables = matrix if position == "learned" else {}
    output = PositionEncoding(config, causal=False).apply(variables, embedded, tokens, 7)
    assert (embedded.dtype, output.dtype) == (jnp.bfloat16, jnp.bfloat16)


class _Flat:
    def bias(self, distances, num_heads, causal):
        return jnp.zeros(distances.shape)


@pytest.mark.parametrize("position", [lambda num_positions, d_model: jnp.ones(3), _Flat()])
def test_a_registered_position_of_a_wrong_shape_is_refused(position):
    t2t_jax.register("position", "wrong", replace=True)(position)
    config = network_config(d_model=4, num_heads=2, position="wrong")
    encoding = PositionEncoding(config, causal=False).bind({})
    with refused("position 'wrong' fails: ValueError: its result has the shape ("):
        encoding(jnp.zeros((1, 2, 4)), jnp.arange(2)[None], 2)
        encoding.bias(jnp.zeros((2, 2), int))
