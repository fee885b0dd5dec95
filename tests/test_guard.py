"""What a step compiles to is what the formulas say, and no more: speed that no clock can show."""

import json
import os

import pytest

from tests.programs import ROOT, run_python

pytestmark = pytest.mark.thorough


_COUNT = """
import json
import guard
from t2t_jax.config import Config

# None of its sizes could be taken for another.
config = Config().replace({
    "model.d_model": 48,
    "model.num_heads": 3,
    "model.d_ff": 112,
    "data.vocab_size": 1000,
    "parallel.data": 1,
})
masked = {"model.architecture": "encoder_only", "data.task": "masked_language_modelling"}
families = [config, config.replace({"model.architecture": "decoder_only"}), config.replace(masked)]
counts = {
    "training": [guard.training_counts(each, 8, 32) for each in families],
    "decoding": guard.decoding_counts(config, 2),
    "one hypothesis": guard.decoding_counts(config.replace({"decoding.beam_size": 1}), 1),
    "int8": guard.decoding_counts(config.replace({"decoding.quantize": "int8"}), 2),
}
guard.jax.config.update("jax_disable_most_optimizations", True)  # the number alone matters
print(json.dumps(counts | {"compilations": guard.compilations(config, (16, 24, 16, 24))}))
"""


@pytest.fixture(scope="module")
def counts():
    """What the benchmark counts, of programs compiled as users have them compiled."""
    flags = os.environ.get("XLA_FLAGS", "")  # of which one changes what a program is made of
    done = run_python(
        *("-c", _COUNT),
        code=0,
        JAX_DISABLE_MOST_OPTIMIZATIONS="0",
        XLA_FLAGS=flags.replace("--xla_cpu_use_fusion_emitters=false", ""),
        PYTHONPATH=str(ROOT / "benchmarks"),
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("family", range(3), ids=["both", "decoder", "encoder"])
def test_a_training_step_computes_and_writes_no_more_than_it_has_to(counts, family):
    training = counts["training"][family]
    # Products by the formula, and a few operations an element beside them.
    assert 1 <= training["flops_over_formula"] < 1.15
    assert training["arrays_of_logits"] == 2  # the logits, and their gradient
    assert training["copies_of_state"] == 0
    assert training["host_transfers"] == 0


def test_decoding_a_position_writes_no_weights_and_no_cache_anew(counts):
    decoding = counts["decoding"]
    assert 1 <= decoding["flops_over_formula"] < 1.15
    assert decoding["weights_written_each_time"] == 0
    assert decoding["caches_written_each_time"] == 4  # keys and values of each layer, in place


def test_decoding_one_hypothesis_of_one_sentence_copies_a_cache_once(counts):
    decoding = counts["one hypothesis"]
    assert decoding["weights_written_each_time"] == 0
    assert decoding["caches_written_each_time"] <= 12  # written in place, there were 24


def test_decoding_with_int8_never_makes_floats_of_a_weight(counts):
    decoding = counts["int8"]
    assert decoding["weights_written_each_time"] == 0
    assert decoding["caches_written_each_time"] == 4


def test_a_shape_is_compiled_once(counts):
    assert counts["compilations"] == 2
