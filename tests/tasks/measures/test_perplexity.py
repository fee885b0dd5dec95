import math

import pytest

from t2t_jax.tasks.measures.perplexity import perplexity


def test_perplexity_is_the_exponential_and_always_finite():
    assert perplexity(0.0) == 1
    assert perplexity(math.log(4.92)) == pytest.approx(4.92)
    assert perplexity(1e9) == perplexity(math.inf) == math.exp(700)
