"""Exercise: add ALiBi (Press et al. 2022) to the model without changing the package.

    python examples/exercises/alibi.py --workdir runs/tiny_alibi

Register a class with `bias(distances, num_heads, causal)` that returns -slope * |distance| for each
head, with slopes 2^(-8 i / h) for heads i = 1 ... h, and train the preset `tiny` with it.

Wrong answers: slopes from i = 0 start at 1 instead of 2^(-8 / h). A positive sign prefers distant
tokens. If the model still adds sinusoids, `model.position` is not set.

To use the run in another process: T2T_JAX_REGISTER=examples/exercises/alibi.py t2t-jax translate
--workdir runs/tiny_alibi
"""

from dataclasses import dataclass

import jax.numpy as jnp
import tyro

import t2t_jax
from t2t_jax.config.file import load_config
from t2t_jax.functional import masks
from t2t_jax.functional.position import alibi_bias


@t2t_jax.register("position")
@dataclass(frozen=True)
class MyAlibi:
    """Subtract a multiple of the distance from the scores of self-attention."""

    def bias(self, distances, num_heads, causal):
        """Return the bias [heads, queries, keys]."""
        slopes = 2.0 ** (-8 * jnp.arange(1, num_heads + 1) / num_heads)
        return -slopes[:, None, None] * jnp.abs(distances)


def main(workdir: str = "runs/tiny_alibi", num_train_steps: int = 900):
    """Compare the bias with the package's, train, and print the dev scores."""
    distances = masks.distances(5, 5)
    difference = MyAlibi().bias(distances, 8, causal=False) - alibi_bias(distances, 8)
    print(f"largest difference {jnp.abs(difference).max():.1e}")
    changes = {"model.position": "my_alibi", "training.num_train_steps": num_train_steps}
    run = t2t_jax.train(load_config("tiny").replace(changes), workdir)
    scores = run.history.evaluations[-1]
    print(f"perplexity {scores['perplexity']:.1f}, BLEU {scores['bleu']:.1f}")


if __name__ == "__main__":
    tyro.cli(main)
