"""A step of a search, as compiled: what it computes and moves is what the formulas say."""

import jax
import pytest

from t2t_jax.config import Config
from t2t_jax.config.cost import num_parameters
from t2t_jax.decoding.programs import proceed
from t2t_jax.extras.compile_only import compile as compilation
from t2t_jax.extras.compile_only.compile import compile_search
from t2t_jax.extras.compile_only.report import format_search
from t2t_jax.extras.compile_only.topologies import devices_of
from tests.selection import needs_cuda
from tests.tiny import tiny_sizes

_CONFIG = Config().replace(
    {
        **tiny_sizes(32, (1, 2)),
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
    assert ("greedy search" if beam_size == 1 else "beam size 2") in lines[0]
    assert f"{moved / (report.weight_bytes + report.cache_bytes):.2f} times the param" in lines[1]
    assert lines[3] == "  none"


def test_kernels_can_ask_the_mesh_for_the_device(monkeypatch):
    """As Pallas does from JAX 0.11 on, where no GPU is attached."""
    shapes = []

    class Recorder:
        def lower(self, *arguments):
            shapes.append(jax.sharding.get_abstract_mesh().shape)
            return proceed.lower(*arguments)

    monkeypatch.setattr(compilation, "proceed", Recorder())
    report = compile_search(_CONFIG, jax.devices()[:1])
    assert shapes == [report.mesh_shape]


@pytest.fixture(scope="module")
def h200():
    """One NVIDIA H200, which is not there."""
    return devices_of("h200:1")


@needs_cuda
@pytest.mark.parametrize(("beam_size", "of_a_layer", "rest"), [(1, 11, 20), (4, 14, 29)])
def test_a_step_for_a_gpu_has_few_kernels(h200, beam_size, of_a_layer, rest):
    changes = {
        "model.d_model": 128,
        # JAX would find the same program in its cache, and cannot read one for such a device.
        "model.d_ff": 128 * beam_size,
        "model.compute_dtype": "bfloat16",
        "data.vocab_size": 32768,
        "decoding.beam_size": beam_size,
    }
    report = compile_search(_CONFIG.replace(changes), h200)
    kernels = sum(kernel.count for kernel in report.kernels)
    assert kernels <= 2 * of_a_layer + rest
    # A cache that is copied, or attention in several kernels, would be seen here.
    moved = sum(kernel.count * kernel.num_bytes for kernel in report.kernels)
    logits = 64 * beam_size * 32768 * 4
    assert moved < 1.2 * (report.weight_bytes + report.cache_bytes) + 4 * logits
