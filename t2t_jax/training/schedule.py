"""Learning-rate schedules: equation 3 of section 5.3, and others with the same warmup."""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t2t_jax.config import TrainingConfig

_Number = Float[Array, ""]


def learning_rate(
    step: int | Int[Array, ""], d_model: int, warmup_steps: int, factor: float = 1.0
) -> _Number:
    """Compute factor * d_model^-0.5 * min(n^-0.5, n * warmup_steps^-1.5) (equation 3).

    Args:
      step: the paper's step number n, from 1.
      warmup_steps: the length of the linear warmup; the peak is at n = warmup_steps.
      factor: 1 in the paper.
    """
    n = jnp.asarray(step, jnp.float32)
    return factor * d_model**-0.5 * jnp.minimum(n**-0.5, n * warmup_steps**-1.5)


def scheduled_rate(config: TrainingConfig, d_model: int, step: int | Int[Array, ""]) -> _Number:
    """Compute the learning rate of a step.

    With a peak P at n = warmup_steps, the rate is P * min(n / warmup_steps, s(n)), where s(n) is at
    least 1 up to the peak and then falls by the rule of the schedule (docs/recipe.md).

    Args:
      d_model: the width of the model, by which equation 3 sets the peak.
      step: the step number n, from 1.
    """
    warmup, peak = config.warmup_steps, config.peak_learning_rate
    if peak is None:
        if config.schedule == "inverse_sqrt":
            return learning_rate(step, d_model, warmup, config.learning_rate_factor)
        peak = config.learning_rate_factor * (d_model * warmup) ** -0.5
    n = jnp.asarray(step, jnp.float32)
    return peak * jnp.minimum(n / warmup, _SHARES[config.schedule](config, n))


def _linear(config: TrainingConfig, n: _Number) -> _Number:
    return _left(config, n, _end(config) - config.warmup_steps)


def _left(config: TrainingConfig, n: _Number, length: float) -> _Number:
    """Return the remaining share, from 1 to 0, of the last `length` steps after n steps."""
    return jnp.clip((_end(config) - n) / length, 0.0, 1.0)


def _end(config: TrainingConfig) -> int:
    end = config.schedule_end
    assert end is not None
    return end


_SHARES: dict[str, Callable[[TrainingConfig, _Number], _Number]] = {
    # Above 1 before the peak, where the warmup is less.
    "inverse_sqrt": lambda config, n: (config.warmup_steps / n) ** 0.5,
    "constant": lambda config, n: jnp.ones_like(n),
    "linear": _linear,
    # (1 - cos x) / 2, where 1 - cos x would lose the digits of a small x.
    "cosine": lambda config, n: jnp.sin(jnp.pi / 2 * _linear(config, n)) ** 2,
    "wsd": lambda config, n: _left(config, n, config.decay_fraction * _end(config)),
}
"""The functions that return the share of the peak rate at step n, by the schedule's name."""
