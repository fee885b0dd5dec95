"""The perplexity of a model on text."""

import math
from collections.abc import Callable

DIVERGED = "diverged"
_LARGEST_EXPONENT = 700.0  # a little less than what a float of 64 bits has an exponential of
_LARGEST_IN_FULL = 1e9


def perplexity(nll: float, exp: Callable[[float], float] = math.exp) -> float:
    """Compute exp of a mean negative log-likelihood, which is capped so that exp is finite.

    Args:
      nll: mean negative log-likelihood, in nats per subword. Perplexities over different subwords
        cannot be compared.
      exp: the exponential function. Those of C and NumPy may differ in the last digit, and each
        figure keeps its function.
    """
    return float(exp(min(nll, _LARGEST_EXPONENT)))


def perplexity_text(value: float, digits: int = 2, sign: str = "") -> str:
    """Return a perplexity or a difference as text, "diverged" if it was capped."""
    if not abs(value) < math.exp(_LARGEST_EXPONENT / 2):
        return DIVERGED
    return f"{value:{sign}.{digits}{'f' if abs(value) < _LARGEST_IN_FULL else 'e'}}"
