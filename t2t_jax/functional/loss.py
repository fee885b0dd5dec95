"""Section 5.4: label-smoothed cross-entropy."""

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32, Int

_Losses = tuple[Float[Array, "*t"], Float[Array, "*t"]]
_Residuals = tuple[Float[Array, "*t v"], Float[Array, "*t"], Int[Array, "*t"]]

Normalizer: TypeAlias = Callable[..., tuple[Float32[Array, "*t"], Float32[Array, "*t"]]]
"""A function of logits, and of a number near the greatest of each row if it takes one, that gives
the logarithm of the sum of exponentials, and the mean."""


def log_sum_exp_and_mean(
    logits: Float32[Array, "*t v"],
) -> tuple[Float32[Array, "*t"], Float32[Array, "*t"]]:
    """Compute the logarithm of the sum of exponentials, and the mean, of each row of logits.

    Args:
      logits: scores over the vocabulary.
    """
    return jax.nn.logsumexp(logits, axis=-1), logits.mean(-1)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def label_smoothed_cross_entropy(
    logits: Float[Array, "*t v"],
    targets: Int[Array, "*t"],
    label_smoothing: float,
    normalizer: Normalizer = log_sum_exp_and_mean,
    near: Float32[Array, "*t"] | None = None,
) -> _Losses:
    """Compute cross-entropy against (1 - eps) one_hot(target) + eps / V, for every target token.

    This is the smoothing of Szegedy et al. 2015, which the paper cites: the mass eps is spread over
    all V entries, the target's included. (tensor2tensor spreads it over the V - 1 others and
    subtracts the entropy; the gradient differs by a factor 1 + O(1/V).)

    The derivative is written out, because it is softmax(logits) minus the smoothed distribution:
    one pass over the logits, where differentiating a gather or a one-hot product takes several and
    keeps copies.

    Args:
      logits: scores over the vocabulary.
      targets: ids of the right tokens.
      label_smoothing: eps_ls, in [0, 1).
      normalizer: how the sums over the vocabulary are computed.
      near: a number near the greatest logit of each row, for a normaliser that takes one. No result
        depends on it.

    Returns:
      `(smoothed, nll)`, float32, in nats, per token: the smoothed loss, which training minimises,
      and the negative log-likelihood, whose mean's exponential is the perplexity.
    """
    return _losses(logits, targets, label_smoothing, normalizer, near)[0]


def _losses(
    logits: Float[Array, "*t v"],
    targets: Int[Array, "*t"],
    label_smoothing: float,
    normalizer: Normalizer,
    near: Float32[Array, "*t"] | None,
) -> tuple[_Losses, _Residuals]:
    logits32 = logits.astype(jnp.float32)
    log_normaliser, mean = normalizer(logits32) if near is None else normalizer(logits32, near)
    target_logit = jnp.take_along_axis(logits32, targets[..., None], axis=-1)[..., 0]
    nll = log_normaliser - target_logit
    uniform = log_normaliser - mean
    smoothed = (1 - label_smoothing) * nll + label_smoothing * uniform
    return (smoothed, nll), (logits, log_normaliser, targets)


def _gradient(
    label_smoothing: float, _: Normalizer, residuals: _Residuals, cotangents: _Losses
) -> tuple[Float[Array, "*t v"], None, None]:
    logits, log_normaliser, targets = residuals
    smoothed_bar, nll_bar = (c[..., None] for c in cotangents)
    probabilities = jnp.exp(logits.astype(jnp.float32) - log_normaliser[..., None])
    is_target = (
        jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1) == (targets[..., None])
    )
    gradient = (
        (smoothed_bar + nll_bar) * probabilities
        - smoothed_bar * (label_smoothing / logits.shape[-1])
        - jnp.where(is_target, (1 - label_smoothing) * smoothed_bar + nll_bar, 0)
    )
    return gradient.astype(logits.dtype), None, None


label_smoothed_cross_entropy.defvjp(_losses, _gradient)


def projected_cross_entropy(
    x: Float[Array, "b t d_model"],
    project: Callable[[Float[Array, "b _ d_model"]], Float[Array, "b _ vocab"]],
    targets: Int[Array, "b t"],
    label_smoothing: float,
    num_chunks: int = 1,
    normalizer: Normalizer = log_sum_exp_and_mean,
    guess: Callable[[Float[Array, "b _ d_model"], Int[Array, "b _"]], Array] | None = None,
) -> tuple[Float[Array, "b t"], Float[Array, "b t"]]:
    """Compute `label_smoothed_cross_entropy` of the logits of `x`, which need not exist at once.

    In chunks, the logits and their gradient take 1 / `num_chunks` of the memory, and the logits are
    computed twice: a third more of the output projection's work.

    Args:
      x: the decoder's output.
      project: the pre-softmax linear transformation (section 3.4).
      targets: ids of the right tokens.
      label_smoothing: eps_ls, in [0, 1).
      num_chunks: number of parts along `t`; it divides t.
      normalizer: how the sums over the vocabulary are computed.
      guess: the function of `x` and the targets that gives a number near the greatest logit, for a
        normaliser that takes one.

    Returns:
      `(smoothed, nll)`, as `label_smoothed_cross_entropy` returns them.
    """

    def losses(x: Float[Array, "b t d"], targets: Int[Array, "b t"]) -> _Losses:
        near = None if guess is None else jax.lax.stop_gradient(guess(x, targets))
        logits = project(x)
        return label_smoothed_cross_entropy(logits, targets, label_smoothing, normalizer, near)

    if num_chunks == 1:
        return losses(x, targets)
    # Along the time axis, because the rows may lie on several devices.
    parts = [jnp.stack(jnp.split(a, num_chunks, axis=1)) for a in (x, targets)]
    smoothed, nll = jax.lax.map(lambda part: jax.checkpoint(losses)(*part), tuple(parts))
    return jnp.concatenate(smoothed, axis=1), jnp.concatenate(nll, axis=1)
