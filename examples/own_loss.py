"""Losses of your own, R-Drop and z-loss, from the logits of the model.

    python examples/own_loss.py --workdir runs/own_loss

A loss returns a sum and its weight over the rows that it gets. The training step adds up both over
passes, devices and hosts, and divides once. A loss may call the model more than once.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import tyro

import t2t_jax
from t2t_jax.config.file import load_config


def cross_entropy(log_p, tokens, label_smoothing):
    """Compute the label-smoothed loss of every token (section 5.4 of the paper)."""
    target_log_p = jnp.take_along_axis(log_p, tokens[..., None], axis=-1)[..., 0]
    return -(1 - label_smoothing) * target_log_p - label_smoothing * log_p.mean(-1)


@t2t_jax.register("loss", "r_drop")
@dataclass(frozen=True)
class RDrop:
    """The mean loss of two passes with other dropout, plus alpha / 4 times their divergence.

    The divergence is KL(p || q) + KL(q || p) (Liang et al. 2021, equation 4, divided by 2).
    """

    alpha: float = 5.0
    label_smoothing: float = 0.1

    def __call__(self, apply, batch, key):
        """Return the sum over target tokens, and their number."""
        is_token = batch.targets.segments != 0  # [b, t], False at padding
        log_p, log_q = (jax.nn.log_softmax(apply(batch, k)) for k in jax.random.split(key))
        losses = [
            cross_entropy(x, batch.targets.tokens, self.label_smoothing) for x in (log_p, log_q)
        ]
        divergence = ((jnp.exp(log_p) - jnp.exp(log_q)) * (log_p - log_q)).sum(-1)
        total = sum(losses) / 2 + self.alpha / 4 * divergence
        return (total * is_token).sum(), is_token.sum()


@t2t_jax.register("loss")
def z_loss(apply, batch, key):
    """Add 1e-4 log^2 Z to the loss, which keeps logits small (Chowdhery et al. 2022, PaLM)."""
    is_token = batch.targets.segments != 0
    logits = apply(batch, key)
    log_z = jax.nn.logsumexp(logits, axis=-1)
    losses = cross_entropy(logits - log_z[..., None], batch.targets.tokens, 0.1) + 1e-4 * log_z**2
    return (losses * is_token).sum(), is_token.sum()


def main(workdir: str = "runs/own_loss", num_train_steps: int = 600, alpha: float = 5.0):
    """Train with R-Drop, and print the losses of the log and the scores on dev."""
    config = load_config("quickstart").replace({"training.num_train_steps": num_train_steps})
    run = t2t_jax.train(config, workdir, loss=RDrop(alpha))
    for record in run.history.training:
        print(record["step"], record["loss"])
    for record in run.history.evaluations:
        print(record["step"], record["perplexity"], record["bleu"])


if __name__ == "__main__":
    tyro.cli(main)
