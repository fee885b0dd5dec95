"""Label-smoothed cross-entropy (section 5.4) that reads the logits as seldom as it can.

Logits are the largest array of a training step. The derivative is written out, because it is
softmax(logits) minus the smoothed distribution: one pass over the logits, where differentiating a
gather or a one-hot product takes several and keeps copies.
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
    near: Float32[Array, "*t"] | None = None,
) -> Losses:
    """Compute `functional.loss.label_smoothed_cross_entropy`.

    Args:
      logits: scores over the vocabulary.
      targets: ids of the right tokens.
      epsilon: eps_ls.
      normalizer: how the sums over the vocabulary are computed.
      near: a number near the greatest logit of each row, for a normalizer that takes one. No result
        depends on it.
    """
    return _losses(logits, targets, epsilon, normalizer, near)[0]


def _losses(
    logits: Float[Array, "*t v"],
    targets: Int[Array, "*t"],
    epsilon: float,
    normalizer: Normalizer,
    near: Float32[Array, "*t"] | None,
) -> tuple[Losses, _Residuals]:
    logits32 = logits.astype(jnp.float32)
    log_normalizer, mean = normalizer(logits32) if near is None else normalizer(logits32, near)
    target_logit = jnp.take_along_axis(logits32, targets[..., None], axis=-1)[..., 0]
    nll = log_normalizer - target_logit
    uniform = log_normalizer - mean
    smoothed = (1 - epsilon) * nll + epsilon * uniform
    return (smoothed, nll), (logits, log_normalizer, targets)


def _gradient(
    epsilon: float, _: Normalizer, residuals: _Residuals, cotangents: Losses
) -> tuple[Float[Array, "*t v"], None, None]:
    logits, log_normalizer, targets = residuals
    smoothed_bar, nll_bar = (c[..., None] for c in cotangents)
    probabilities = jnp.exp(logits.astype(jnp.float32) - log_normalizer[..., None])
    token = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
    gradient = (
        (smoothed_bar + nll_bar) * probabilities
        - smoothed_bar * (epsilon / logits.shape[-1])
        - jnp.where(token == targets[..., None], (1 - epsilon) * smoothed_bar + nll_bar, 0)
    )
    return gradient.astype(logits.dtype), None, None


cross_entropy.defvjp(_losses, _gradient)


def in_chunks(losses: Callable[..., Losses], num_chunks: int) -> Callable[..., Losses]:
    """Return a function of `x` and the targets whose logits need not exist at once.

    In chunks, the logits and their gradient take 1 / `num_chunks` of the memory, and the logits are
    computed twice: a third more of the output projection's work.

    Args:
      losses: the function of the decoder's output and the targets.
      num_chunks: number of parts along the positions, which it divides.
    """

    def chunked(x: Float[Array, "b t d_model"], targets: Int[Array, "b t"]) -> Losses:
        # Along the time axis, because the rows may lie on several devices.
        parts = [jnp.stack(jnp.split(a, num_chunks, axis=1)) for a in (x, targets)]
        smoothed, nll = jax.lax.map(
            lambda part: jax.checkpoint(losses)(part[0], targets=part[1]), tuple(parts)
        )
        return jnp.concatenate(smoothed, axis=1), jnp.concatenate(nll, axis=1)

    return losses if num_chunks == 1 else chunked
