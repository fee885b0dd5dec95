"""The perplexity of a model on text."""

import math

_LARGEST_EXPONENT = 700.0  # a little less than what a float of 64 bits has an exponential of


def perplexity(nll: float) -> float:
    """exp of a mean negative log-likelihood, which is capped so that the result is finite.

    Args:
      nll: mean negative log-likelihood, in nats per subword. Perplexities over different subwords
        cannot be compared.
    """
    return math.exp(min(nll, _LARGEST_EXPONENT))
