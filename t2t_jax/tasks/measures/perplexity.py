"""Compute and format perplexities."""

import math
from collections.abc import Callable

DIVERGED = "diverged"
_LARGEST_EXPONENT = 700.0  # exp overflows float64 above 709
_LARGEST_IN_FULL = 1e9


def perplexity(nll: float, exp: Callable[[float], float] = math.exp) -> float:
    """Compute the perplexity exp(nll), with nll capped so that the result is finite.

    Args:
      nll: mean negative log-likelihood, in nats per subword. Perplexities over different
        vocabularies are not comparable.
      exp: the exponential function; `math.exp` and `np.exp` may differ in the last digit.
    """
    return float(exp(min(nll, _LARGEST_EXPONENT)))


def perplexity_text(value: float, digits: int = 2, sign: str = "") -> str:
    """Format a perplexity or a difference of perplexities; capped values give "diverged"."""
    if not abs(value) < math.exp(_LARGEST_EXPONENT / 2):
        return DIVERGED
    return f"{value:{sign}.{digits}{'f' if abs(value) < _LARGEST_IN_FULL else 'e'}}"
