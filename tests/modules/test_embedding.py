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


def test_sinusoids_are_added_by_position_not_by_column():
    # d_model = 4: frequencies 1 and 1/100; the second sentence of the row starts at 0 again.
    positions = np.array([[0, 1, 0, 2]])
    angles = positions[..., None] * [1, 0.01]
    expected = 5 + np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(1, 4, 4)
    output = PositionEncoding(_CONFIG, causal=False).apply(
        {}, jnp.full((1, 4, 4), 5.0), jnp.array(positions), 4
    )
    np.testing.assert_allclose(output, expected, rtol=1e-6)


def test_learned_positions_are_rows_of_the_table():
    config = network_config(d_model=4, num_heads=1, position="learned", max_positions=7)
    positions = jnp.array([[0, 1, 0, 6]])
    output = PositionEncoding(config, causal=False).apply(
        _VARIABLES, jnp.full((1, 4, 4), 5.0), positions, 7
    )
    np.testing.assert_allclose(output[0], 5 + _MATRIX[[0, 1, 0, 6]], rtol=1e-6)


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
