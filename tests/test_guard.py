"""What a step compiles to is what the formulas say, and no more: speed that no clock can show."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

from t2t_jax.config import Config

pytestmark = pytest.mark.usefixtures("optimized")

_BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def guard():
    """The benchmark, as a module."""
    environment = dict(os.environ)  # which a benchmark sets up as programs do
    sys.path.insert(0, str(_BENCHMARKS))
    try:
        spec = importlib.util.spec_from_file_location("guard", _BENCHMARKS / "guard.py")
        module = sys.modules["guard"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path.remove(str(_BENCHMARKS))
        os.environ.clear()
        os.environ.update(environment)
        for name in ("guard", "measuring", "workload"):
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def config():
    """A model none of whose sizes could be taken for another."""
    return Config().replace(
        {
            "model.d_model": 48,
            "model.num_heads": 3,
            "model.d_ff": 112,
            "data.vocab_size": 1000,
            "parallel.data": 1,
        }
    )


def test_a_training_step_computes_and_writes_no_more_than_it_has_to(guard, config):
    counts = guard.of_training(config, 8, 32)
    # Products by the formula, and a few operations an element beside them.
    assert 1 <= counts["flops_over_formula"] < 1.15
    assert counts["arrays_of_logits"] == 2  # the logits, and their gradient
    assert counts["copies_of_state"] == 0
    assert counts["host_transfers"] == 0


def test_decoding_a_position_writes_no_weights_and_no_cache_anew(guard, config):
    counts = guard.of_decoding(config, 2)
    assert 1 <= counts["flops_over_formula"] < 1.15
    assert counts["weights_written_each_time"] == 0
    assert counts["caches_written_each_time"] == 4  # keys and values of each layer, in place


def test_decoding_one_hypothesis_of_one_sentence_copies_a_cache_once(guard, config):
    counts = guard.of_decoding(config.replace({"decoding.beam_size": 1}), 1)
    assert counts["weights_written_each_time"] == 0
    assert counts["caches_written_each_time"] <= 12  # written in place, there were 24


def test_decoding_with_int8_never_makes_floats_of_a_weight(guard, config):
    counts = guard.of_decoding(config.replace({"decoding.quantize": "int8"}), 2)
    assert counts["weights_written_each_time"] == 0
    assert counts["caches_written_each_time"] == 4


def test_a_shape_is_compiled_once(guard, config):
    assert guard.compilations(config, (16, 24, 16, 24)) == 2
