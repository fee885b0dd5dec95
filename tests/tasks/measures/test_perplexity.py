import math

import pytest

from t2t_jax.tasks.measures.perplexity import perplexity, perplexity_text


def test_perplexity_is_the_exponential_and_always_finite():
    assert perplexity(0.0) == 1
    assert perplexity(math.log(4.92)) == pytest.approx(4.92)
    assert perplexity(1e9) == perplexity(math.inf) == math.exp(700)


def test_a_capped_perplexity_is_printed_as_diverged():
    assert perplexity_text(4.916) == "4.92"
    assert perplexity_text(4.9162, 3) == "4.916"
    assert perplexity_text(-4.916, sign="+") == "-4.92"
    assert perplexity_text(perplexity(50.0)) == "5.18e+21"
    for value in (perplexity(701.0), perplexity(701.0) / 8, math.inf, math.nan):
        assert perplexity_text(value) == "diverged"
