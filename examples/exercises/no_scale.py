"""Exercise: remove the division by sqrt(d_k) from a trained model.

    python examples/exercises/no_scale.py

Multiply the scores by a factor, and measure the loss of the model's own translations. Which factor
is best, and does the model need the scale that it was trained with?

Wrong answers: equal losses for all factors mean that the function is not used. A best factor far
from 1 means that the scores are scaled twice.
"""

import jax
import jax.numpy as jnp

import t2t_jax
from t2t_jax import teaching

SOURCES = [
    "Open the file.",
    "No devices were found.",
    "The file could not be saved.",
    "Check your network connection and try again.",
    "Select a folder for your backups.",
    "The password must have at least eight characters.",
]


def attention_times(factor):
    """Return attention whose scores are multiplied by a factor after the division by sqrt(d_k)."""

    def attention(query, key, value, mask, bias=None):
        scores = factor * jnp.einsum("bqhd,bkhd->bhqk", query, key) / query.shape[-1] ** 0.5
        scores = scores if bias is None else scores + bias
        weights = jnp.where(mask, jax.nn.softmax(jnp.where(mask, scores, -1e9)), 0)
        return jnp.einsum("bhqk,bkhd->bqhd", weights, value)

    return attention


def losses(translator, factors):
    """Return the mean loss per token of the model's translations, in nats, for each factor."""
    targets = translator.translate(SOURCES)
    results = []
    for factor in factors:
        with teaching.replace(attention=attention_times(factor)):
            scores = t2t_jax.score(translator, SOURCES, targets)
        results.append(-sum(x.log_prob for x in scores) / sum(len(x.tokens) for x in scores))
    return results


def main():
    """Print the loss for several factors; sqrt(64) = 8 removes the scale of the demo model."""
    factors = (0.25, 0.5, 1, 2, 8)
    for factor, nats in zip(factors, losses(t2t_jax.load("demo"), factors), strict=True):
        print(f"factor {factor}: {nats:.3f} nats")
    # The model has learned scores for the scale of its training, so the factor 1 is best.


if __name__ == "__main__":
    main()
