"""A step of a search, as compiled: what it computes and moves is what the formulas say."""

import jax
import pytest

from t2t_jax.ahead_of_time.search import compile_search, format_search
from t2t_jax.config import Config
from t2t_jax.modules.cost import num_parameters

_CONFIG = Config().replace(
    {
        "model.d_model": 32,
        "model.num_heads": 2,
        "model.d_ff": 64,
        "model.num_encoder_layers": 1,
        "model.num_decoder_layers": 2,
        "model.compute_dtype": "float32",
        "data.vocab_size": 128,
        "decoding.beam_size": 1,
    }
)


@pytest.mark.parametrize("beam_size", [1, 2])
def test_a_step_computes_and_moves_what_a_token_needs(beam_size):
    config = _CONFIG.replace({"decoding.beam_size": beam_size})
    report = compile_search(config, jax.devices()[:1])
    encoder = 4 * 32 * 32 + (32 * 64 + 64) + (64 * 32 + 32) + 2 * 2 * 32  # one layer
    assert report.weight_bytes == 4 * (num_parameters(config.model, 128) - encoder)
    # Keys and values of 64 sentences: of 64 source positions, and of 128 for each hypothesis.
    kept = 2 * 2 * 64 * 32 * (64 + 128 * beam_size)
    assert report.cache_bytes == pytest.approx(4 * kept, rel=0.02)  # and the mask of the source
    moved = sum(kernel.count * kernel.num_bytes for kernel in report.kernels)
    assert moved > report.cache_bytes / 2
    lines = list(format_search(report))
    assert ("greedy search" if beam_size == 1 else "a beam of 2") in lines[0]
    assert f"{moved / (report.weight_bytes + report.cache_bytes):.2f} times the weights" in lines[1]
    assert lines[3] == "  nothing"
