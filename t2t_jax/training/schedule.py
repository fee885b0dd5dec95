"""Learning-rate schedules: equation 3 (section 5.3), and others with the same warmup."""

from functools import partial
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t2t_jax.config import TrainingConfig
from t2t_jax.config.schedules import SCHEDULES, InverseSqrt, Schedule, Wsd
from t2t_jax.errors import UserError, quote
from t2t_jax.plugins import load_named

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
    schedule = SCHEDULES[config.schedule]
    if schedule.rate is not None:
        rate = jnp.asarray(schedule.rate(step), jnp.float32)
        if rate.shape != ():
            raise UserError(
                f"training.schedule={quote(config.schedule)} returned an array of shape "
                f"{rate.shape}; return one number, the learning rate"
            )
        return rate
    warmup, peak = config.warmup_steps, config.peak_learning_rate
    if peak is None:
        if isinstance(schedule, InverseSqrt):  # the exact form of equation 3
            return learning_rate(step, d_model, warmup, config.learning_rate_factor)
        peak = config.learning_rate_factor * (d_model * warmup) ** -0.5
    n = jnp.asarray(step, jnp.float32)
    decay: Any = schedule.decay
    if isinstance(schedule.decay, str):
        decay = partial(load_named(schedule.decay), schedule)
    return peak * jnp.minimum(n / warmup, decay(n, warmup, config.schedule_end))


def inverse_sqrt(schedule: Schedule, n: _Number, warmup_steps: int, end: int | None) -> _Number:
    """Return (warmup_steps / n)^0.5, which is above 1 before the peak."""
    return (warmup_steps / n) ** 0.5


def constant(schedule: Schedule, n: _Number, warmup_steps: int, end: int | None) -> _Number:
    """Return 1."""
    return jnp.ones_like(n)


def linear(schedule: Schedule, n: _Number, warmup_steps: int, end: int) -> _Number:
    """Return the fraction of the steps after the warmup that remains."""
    return _remaining(n, end, end - warmup_steps)


def cosine(schedule: Schedule, n: _Number, warmup_steps: int, end: int) -> _Number:
    """Return (1 - cos(pi x)) / 2 for the remaining fraction x of the steps after the warmup."""
    # In this form, a small x does not lose digits to rounding.
    return jnp.sin(jnp.pi / 2 * _remaining(n, end, end - warmup_steps)) ** 2


def warmup_stable_decay(schedule: Wsd, n: _Number, warmup_steps: int, end: int) -> _Number:
    """Return 1, and in the last steps the fraction of them that remains."""
    return _remaining(n, end, schedule.decay_fraction * end)


def _remaining(n: _Number, end: int, length: float) -> _Number:
    """Return which fraction of the last `length` steps remains after step n; 1 before these."""
    return jnp.clip((end - n) / length, 0.0, 1.0)
