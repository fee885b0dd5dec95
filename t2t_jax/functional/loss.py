"""Section 5.4: label-smoothed cross-entropy."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32, Int


def label_smoothed_cross_entropy(
    logits: Float[Array, "*t v"], targets: Int[Array, "*t"], epsilon: float
) -> tuple[Float32[Array, "*t"], Float32[Array, "*t"]]:
    """Compute cross-entropy against (1 - epsilon) one_hot(target) + epsilon / V for every token.

    Section 5.4 cites Szegedy et al. 2015, who spread the mass epsilon over all V entries, the
    target's included. tensor2tensor spreads it over the V - 1 others and subtracts the entropy; the
    gradient differs by a factor 1 + O(1/V).

    Args:
      logits: scores over the vocabulary.
      targets: ids of the right tokens.
      epsilon: eps_ls, in [0, 1).

    Returns:
      `(smoothed, nll)`, in nats, per token: the smoothed loss, which training minimises, and the
      negative log-likelihood, whose mean's exponential is the perplexity.
    """
    logits = logits.astype(jnp.float32)
    log_normalizer = jax.nn.logsumexp(logits, axis=-1)
    target_logit = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    nll = log_normalizer - target_logit
    uniform = log_normalizer - logits.mean(-1)  # cross-entropy against 1 / V
    return (1 - epsilon) * nll + epsilon * uniform, nll
