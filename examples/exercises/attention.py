"""Exercise: write attention (equation 1), and run a trained model with it.

    python examples/exercises/attention.py

Write `attention(query, key, value, mask)` with `jax.numpy`. Queries, keys and values have the axes
batch, time, heads and width. The mask is bool, `[batch, heads, queries, keys]`, True where a query
may attend to a key. A query that may attend to no key gets zeros. The demo model has
relative positions, so the function has an argument `bias`: None, or an array to add to the scores.

Wrong answers: `check_attention` names the mistake. In the demo model, a softmax over queries raises
the loss from 0.16 to 0.91 nats per token, and most translations repeat one word.
"""

import jax
import jax.numpy as jnp

import t2t_jax
from t2t_jax import teaching

SOURCES = ["Open the file.", "No devices were found.", "The file could not be saved."]


def attention(query, key, value, mask, bias=None):
    """Compute equation 1 for every head."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / query.shape[-1] ** 0.5
    scores = scores if bias is None else scores + bias
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e9))
    weights = jnp.where(mask, weights, 0)  # a query without a key would get the mean of all values
    return jnp.einsum("bhqk,bkhd->bqhd", weights, value)


def softmax_over_queries(query, key, value, mask, bias=None):
    """Compute attention with a mistake: the weights of each key sum to 1."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / query.shape[-1] ** 0.5
    scores = scores if bias is None else scores + bias
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e9), axis=-2)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, value)


def loss(translator, targets):
    """Return the mean loss per token of translations, in nats."""
    scores = t2t_jax.score(translator, SOURCES, targets)
    return -sum(x.log_prob for x in scores) / sum(len(x.tokens) for x in scores)


def main():
    """Check both functions, and translate with them."""
    translator = t2t_jax.load("demo")
    targets = translator.translate(SOURCES)
    print(f"the model: {loss(translator, targets):.3f} nats, {targets}")
    for function in (attention, softmax_over_queries):
        print(teaching.check_attention(function))
        with teaching.replace(attention=function):
            translations = translator.translate(SOURCES, max_extra_length=5)
            print(f"{loss(translator, targets):.3f} nats, {translations}")


if __name__ == "__main__":
    main()
