"""The perplexity of a model on text."""

import math
from collections.abc import Callable

_LARGEST_EXPONENT = 700.0  # a little less than what a float of 64 bits has an exponential of


def perplexity(nll: float, exp: Callable[[float], float] = math.exp) -> float:
    """Compute exp of a mean negative log-likelihood, which is capped so that exp is finite.

    Args:
      nll: mean negative log-likelihood, in nats per subword. Perplexities over different subwords
        cannot be compared.
      exp: the exponential function. Those of the C library and NumPy may differ in the last of
        sixteen digits, and each figure keeps the one with which it was always computed.
    """
    return float(exp(min(nll, _LARGEST_EXPONENT)))
