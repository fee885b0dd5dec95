"""Section 5.3: Adam and the learning-rate schedule."""

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from t2t_jax.config import TrainingConfig
from t2t_jax.modules.matrices import Parameters


def learning_rate(
    step: int | Int[Array, ""], d_model: int, warmup_steps: int, factor: float = 1.0
) -> Float[Array, ""]:
    """factor * d_model^-0.5 * min(n^-0.5, n * warmup_steps^-1.5) (equation 3).

    Args:
      step: the paper's step number n, from 1.
      d_model: the width of the model.
      warmup_steps: the length of the linear warmup; the peak is at n = warmup_steps.
      factor: a factor on the whole; the paper has 1.
    """
    n = jnp.asarray(step, jnp.float32)
    return factor * d_model**-0.5 * jnp.minimum(n**-0.5, n * warmup_steps**-1.5)


def make_optimizer(config: TrainingConfig) -> optax.GradientTransformation:
    """Adam's direction (Kingma and Ba 2015) with the paper's constants, before the learning rate.

    The rate is kept apart because it follows the step of the run, which goes on where an update is
    skipped, and not Adam's own count of updates.
    """
    return optax.scale_by_adam(config.adam_beta1, config.adam_beta2, config.adam_epsilon)


def direction(config: TrainingConfig, moments: optax.ScaleByAdamState) -> Parameters:
    """Adam's direction, m_hat / (sqrt(v_hat) + epsilon) (section 5.3).

    Args:
      config: Adam's constants.
      moments: Adam's moments, the step's gradient included.
    """
    mean = optax.tree.bias_correction(moments.mu, config.adam_beta1, moments.count)
    square = optax.tree.bias_correction(moments.nu, config.adam_beta2, moments.count)
    return jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + config.adam_epsilon), mean, square)
