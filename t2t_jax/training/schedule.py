"""Learning-rate schedules: equation 3 (section 5.3), and others with the same warmup."""

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
      step: the step number n, from 1.
      warmup_steps: the length of the linear warmup; the peak is at n = warmup_steps.
      factor: 1 in the paper.
    """
    n = jnp.asarray(step, jnp.float32)
    return factor * d_model**-0.5 * jnp.minimum(n**-0.5, n * warmup_steps**-1.5)


def scheduled_rate(config: TrainingConfig, d_model: int, step: int | Int[Array, ""]) -> _Number:
    """Compute the learning rate of a step.

    The rate is P * min(n / warmup_steps, s(n)) with the peak P at n = warmup_steps. The factor s(n)
    is at least 1 before the peak and then decays by the rule of the schedule (docs/recipe.md).

    Args:
      d_model: the width of the model, from which equation 3 computes the default peak.
      step: the step number n, from 1.
    """
    warmup, peak = config.warmup_steps, config.peak_learning_rate
    if peak is None:
        if config.schedule == "inverse_sqrt":
            return learning_rate(step, d_model, warmup, config.learning_rate_factor)
        peak = config.learning_rate_factor * (d_model * warmup) ** -0.5
    n = jnp.asarray(step, jnp.float32)
    return peak * jnp.minimum(n / warmup, _DECAYS[config.schedule](config, n))


def _linear(config: TrainingConfig, n: _Number) -> _Number:
    return _remaining(config, n, _end(config) - config.warmup_steps)


def _remaining(config: TrainingConfig, n: _Number, length: float) -> _Number:
    """Return which fraction of the last `length` steps remains after step n.

    Return 1 before these steps.
    """
    return jnp.clip((_end(config) - n) / length, 0.0, 1.0)


def _end(config: TrainingConfig) -> int:
    end = config.schedule_end
    assert end is not None
    return end


_DECAYS: dict[str, Callable[[TrainingConfig, _Number], _Number]] = {
    # This share is above 1 before the peak, where the linear warmup is the minimum.
    "inverse_sqrt": lambda config, n: (config.warmup_steps / n) ** 0.5,
    "constant": lambda config, n: jnp.ones_like(n),
    "linear": _linear,
    # Equal to (1 - cos(pi x)) / 2, which would lose the digits of a small x to rounding.
    "cosine": lambda config, n: jnp.sin(jnp.pi / 2 * _linear(config, n)) ** 2,
    "wsd": lambda config, n: _remaining(config, n, config.decay_fraction * _end(config)),
}
"""Functions that return the fraction s(n) of the peak rate at step n, keyed by schedule."""
