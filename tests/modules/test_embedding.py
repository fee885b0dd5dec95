import jax.numpy as jnp
import numpy as np
import pytest

from t2t_jax.config import network_config
from t2t_jax.modules.embedding import PositionEncoding, TokenEmbedding

_CONFIG = network_config(d_model=4, num_heads=1)
_MATRIX = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)
_VARIABLES = {"params": {"embedding": jnp.array(_MATRIX)}}


def test_embeddings_are_rows_times_the_root_of_d_model():
    tokens = jnp.array([[3, 0], [6, 3]])
    output = TokenEmbedding(_CONFIG, 7).apply(_VARIABLES, tokens)
    np.testing.assert_allclose(output, 2 * _MATRIX[np.asarray(tokens)], rtol=1e-6)  # sqrt(4) = 2


def test_the_matrix_of_the_logits_is_the_unscaled_rows():
    output = TokenEmbedding(_CONFIG, 7).apply(_VARIABLES, method="matrix")
    np.testing.assert_array_equal(output, _MATRIX)


@pytest.mark.parametrize("position", ["sinusoidal", "learned"])
def test_embeddings_with_positions_are_in_the_compute_dtype(position):
    config = network_config(
        d_model=4, num_heads=1, position=position, max_positions=7, compute_dtype="bfloat16"
    )
    tokens = jnp.array([[1, 2]])
    embedded = TokenEmbedding(config, 7).apply(_VARIABLES, tokens)
    variables = _VARIABLES if position == "learned" else {}
    output = PositionEncoding(config, causal=False).apply(variables, embedded, tokens, 7)
    assert (embedded.dtype, output.dtype) == (jnp.bfloat16, jnp.bfloat16)
