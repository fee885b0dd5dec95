import jax.numpy as jnp
import pytest

from t2t_jax.config import network_config
from t2t_jax.modules.embedding import PositionEncoding, TokenEmbedding


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
