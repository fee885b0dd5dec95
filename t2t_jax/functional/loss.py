"""Label-smoothed cross-entropy (section 5.4)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32, Int


def label_smoothed_cross_entropy(
    logits: Float[Array, "*t v"], targets: Int[Array, "*t"], epsilon: float
) -> tuple[Float32[Array, "*t"], Float32[Array, "*t"]]:
    """Compute cross-entropy against (1 - epsilon) one_hot(target) + epsilon / V for every token.

    Section 5.4 cites Szegedy et al. 2015, who distribute the mass epsilon over all V entries,
    including the target. tensor2tensor distributes epsilon over the other V - 1 entries and
    subtracts the entropy; its gradient differs by a factor 1 + O(1/V).

    Args:
      logits: unnormalized scores of the vocabulary entries.
      targets: ids of the target tokens.
      epsilon: label smoothing eps_ls, in [0, 1).

    Returns:
      `(smoothed, nll)`, in nats per token: the smoothed loss, which training minimizes, and the
      negative log-likelihood. The exponential of the mean `nll` is the perplexity.
    """
    logits = logits.astype(jnp.float32)
    log_normalizer = jax.nn.logsumexp(logits, axis=-1)
    target_logit = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    nll = log_normalizer - target_logit  # [*t]
    uniform_loss = log_normalizer - logits.mean(-1)  # cross-entropy against the uniform 1 / V
    return (1 - epsilon) * nll + epsilon * uniform_loss, nll
