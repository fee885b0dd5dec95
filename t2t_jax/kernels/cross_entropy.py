"""Label-smoothed cross-entropy (section 5.4) with few passes over the logits.

The logits are the largest array of a training step. Their gradient, softmax(logits) minus the
smoothed distribution, takes one pass here. JAX's own derivative takes several and keeps copies.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32, Int

from t2t_jax.kernels.normalizer import Normalizer, in_passes
from t2t_jax.kernels.reference import Losses

_Residuals = tuple[Float[Array, "*t v"], Float[Array, "*t"], Int[Array, "*t"]]


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def cross_entropy(
    logits: Float[Array, "*t v"],
    targets: Int[Array, "*t"],
    epsilon: float,
    normalizer: Normalizer = in_passes,
    guess: Float32[Array, "*t"] | None = None,
) -> Losses:
    """Compute the label-smoothed loss and the negative log-likelihood of every token.

    Args:
      logits: scores of the vocabulary's tokens.
      targets: ids of the correct tokens.
      epsilon: the label smoothing eps_ls.
      normalizer: computes the log of the sum of exponentials, and the mean, of the logits.
      guess: estimate of the maximum logit, for a normalizer that uses one.
    """
    return _losses(logits, targets, epsilon, normalizer, guess)[0]


def _losses(
    logits: Float[Array, "*t v"],
    targets: Int[Array, "*t"],
    epsilon: float,
    normalizer: Normalizer,
    guess: Float32[Array, "*t"] | None,
) -> tuple[Losses, _Residuals]:
    logits32 = logits.astype(jnp.float32)
    log_sum, mean = normalizer(logits32) if guess is None else normalizer(logits32, guess)
    target_logit = jnp.take_along_axis(logits32, targets[..., None], axis=-1)[..., 0]
    nll = log_sum - target_logit
    uniform_loss = log_sum - mean
    smoothed_loss = (1 - epsilon) * nll + epsilon * uniform_loss
    return (smoothed_loss, nll), (logits, log_sum, targets)


def _gradient(
    epsilon: float, _: Normalizer, residuals: _Residuals, cotangents: Losses
) -> tuple[Float[Array, "*t v"], None, None]:
    logits, log_sum, targets = residuals
    smoothed_bar, nll_bar = (cotangent[..., None] for cotangent in cotangents)
    probabilities = jnp.exp(logits.astype(jnp.float32) - log_sum[..., None])
    token_ids = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
    gradient = (
        (smoothed_bar + nll_bar) * probabilities
        - smoothed_bar * (epsilon / logits.shape[-1])
        - jnp.where(token_ids == targets[..., None], (1 - epsilon) * smoothed_bar + nll_bar, 0)
    )
    return gradient.astype(logits.dtype), None, None


cross_entropy.defvjp(_losses, _gradient)


def in_chunks(losses: Callable[..., Losses], num_chunks: int) -> Callable[..., Losses]:
    """Return a loss function that computes the logits in chunks of the positions.

    The logits and their gradient take 1 / `num_chunks` of the memory. Computing the logits twice
    adds a third to the work of the output projection.

    Args:
      losses: loss function of the decoder's output and the targets.
      num_chunks: a divisor of the number of positions.
    """

    def chunked(x: Float[Array, "b t d_model"], targets: Int[Array, "b t"]) -> Losses:
        # Split the time axis, because the rows may be split over several devices.
        chunks = [jnp.stack(jnp.split(a, num_chunks, axis=1)) for a in (x, targets)]
        smoothed, nll = jax.lax.map(
            lambda chunk: jax.checkpoint(losses)(chunk[0], targets=chunk[1]), tuple(chunks)
        )
        return jnp.concatenate(smoothed, axis=1), jnp.concatenate(nll, axis=1)

    return losses if num_chunks == 1 else chunked
