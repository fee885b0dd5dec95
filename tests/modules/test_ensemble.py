"""The mean of several distributions; what decodes with it is in tests/decoding."""

import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from t2t_jax.batch import Batch, one_a_row
from t2t_jax.modules.ensemble import Ensemble, log_mean
from tests.refusals import refused


def test_the_mean_is_of_probabilities_whatever_constant_the_logits_have():
    sure, unsure = jnp.log(jnp.array([0.9, 0.1])), jnp.log(jnp.array([0.3, 0.7])) + 5
    np.testing.assert_allclose(jnp.exp(log_mean([sure, unsure])), [0.6, 0.4], rtol=1e-6)


@given(arrays.arrays(np.float32, (3, 2, 4), elements=st.floats(-300, 300, width=32)))
def test_it_is_exact_far_below_the_smallest_float(logits):
    wide = logits.astype(np.longdouble)
    log_probs = wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True))
    expected = np.log(np.exp(log_probs).mean(axis=0))
    np.testing.assert_allclose(log_mean(list(map(jnp.asarray, logits))), expected, atol=1e-4)


def test_bfloat16_logits_are_averaged_in_float32():
    logits = [jnp.array([0.0, 3.0], jnp.bfloat16), jnp.array([2.0, 0.0], jnp.bfloat16)]
    wide = [one.astype(jnp.float32) for one in logits]
    assert log_mean(logits).dtype == jnp.float32
    np.testing.assert_array_equal(log_mean(logits), log_mean(wide))


def test_attention_weights_are_refused_as_the_protocol_says():
    one = one_a_row(jnp.ones((1, 1), jnp.int32))
    with refused("an ensemble of 0 models has no attention weights"):
        Ensemble(()).attention_weights({}, Batch(one, one))
