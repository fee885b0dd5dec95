"""Measure the gradients through the softmax of attention before training, by score function.

    python benchmarks/softmax_gradient.py
    python benchmarks/softmax_gradient.py --config configs/score_functions.py --length 64 --json

The weights w of a query are the softmax of its scores, and their derivative by the scores is the
matrix diag(w) - w w^T. Where one weight is nearly 1 and the others nearly 0, that matrix is nearly
0, and nothing is learned about the scores: section 3.2.1 of the paper suspects this effect where
products are not divided by sqrt(d_k). For every config of a grid the program measures two cases:
the encoder's self-attention of the untrained model on random sentences; and queries and keys "whose
components are independent random variables with mean 0 and variance 1" (footnote 4 of the paper).
It prints, as means over queries, the standard deviation of a query's scores, its largest weight,
and the norm of its matrix in relation to that of equal weights; and the share of queries that have
a weight above 0.99.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

# After `workload`, which sets the process up.
import jax
import jax.numpy as jnp
import workload
from jaxtyping import Array, Float
from measuring import machine, show

from t2t_jax.batch import Batch, one_a_row
from t2t_jax.commands.flags import parse_flags
from t2t_jax.config import Config
from t2t_jax.config.file import load_grid
from t2t_jax.functional.attention import additive_scores, attention_weights, masked_softmax
from t2t_jax.modules.models import make_decoding_model, make_model
from t2t_jax.parallel.mesh import make_mesh
from t2t_jax.system.program import run
from t2t_jax.training.settling import settled
from t2t_jax.training.state import create_state

_FIGURES = "deviation of scores", "largest weight", "norm of derivative", "share above 0.99"


@dataclass(frozen=True)
class SoftmaxGradient:
    """Measure the softmax of the untrained models of a grid."""

    config: str = "configs/score_functions.py"
    """Config file with VARIANTS."""
    rows: int = 8
    """Sentences that the model reads."""
    length: int = 32
    """Tokens of a sentence."""
    json: bool = False
    """Print one JSON object for each config."""


def main(arguments: Sequence[str]) -> int:
    """Measure what the command line asks for."""
    asked: SoftmaxGradient = parse_flags(SoftmaxGradient, arguments, "softmax_gradient.py")
    rows = []
    for name, config in load_grid(asked.config).variants.items():
        for source, weights in (("model", _in_model), ("footnote 4", _by_footnote)):
            figures = _figures(weights(config, asked.rows, asked.length))
            rows.append(
                {"variant": name, "queries and keys": source}
                | dict(zip(_FIGURES, map(float, figures), strict=True))
            )
    show(machine(), rows, asked.json)
    return 0


def _in_model(config: Config, rows: int, length: int) -> Float[Array, "n b h q k"]:
    """Compute the weights in the encoder of the model that training starts with."""
    mesh = make_mesh(config.parallel)
    config = settled(config, mesh)
    vocab_size = config.data.vocab_size
    params = create_state(config, make_model(config, vocab_size, mesh), mesh).params
    tokens = jnp.asarray(workload.random_tokens(rows, length, vocab_size))
    model = make_decoding_model(config.model, vocab_size, mesh)
    return model.attention_weights(params, Batch(one_a_row(tokens), one_a_row(tokens)))["encoder"]


def _by_footnote(config: Config, rows: int, length: int) -> Float[Array, "1 b h q k"]:
    """Compute the weights of queries and keys drawn from the standard normal distribution."""
    model = config.model
    keys = jax.random.split(jax.random.key(config.training.seed), 3)
    shape = rows, length, model.num_heads, model.key_size
    query, key = (jax.random.normal(one, shape) for one in keys[:2])
    if model.attention_kind == "additive":
        vector = jax.random.normal(keys[2], shape[2:]) / math.sqrt(model.key_size)
        return masked_softmax(additive_scores(query, key, vector), None)[None]
    return attention_weights(query, key, scale=model.attention.scale)[None]


@jax.jit
def _figures(weights: Float[Array, "n b h q k"]) -> tuple[Float[Array, ""], ...]:
    # |diag(w) - w w^T|^2 = sum w^2 - 2 sum w^3 + (sum w^2)^2; for n equal weights (n - 1) / n^2.
    squares = jnp.square(weights).sum(-1)
    norm = jnp.sqrt(jnp.maximum(squares - 2 * (weights**3).sum(-1) + squares**2, 0))
    keys = weights.shape[-1]
    scores = jnp.log(jnp.maximum(weights, jnp.finfo(jnp.float32).tiny))
    largest = weights.max(-1)
    return (
        scores.std(-1).mean(),
        largest.mean(),
        norm.mean() * keys / (keys - 1) ** 0.5,
        (largest > 0.99).mean(),
    )


if __name__ == "__main__":
    run(main)
