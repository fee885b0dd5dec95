"""Optimizers of your own: any transformation of Optax.

    python examples/own_optimizer.py --workdir runs/own_optimizer

`sgd` returns directions, which the training step multiplies by the rate of `training.schedule`.
A complete optimizer, whose updates have a learning rate, needs no name: `t2t_jax.train(config,
workdir, optimizer=optax.adamw(1e-3))`.
"""

from dataclasses import dataclass

import optax
import tyro

import t2t_jax
from t2t_jax.config.file import load_config


@t2t_jax.register("optimizer")
@dataclass(frozen=True)
class Sgd:
    """Stochastic gradient descent with Nesterov momentum."""

    momentum: float = 0.9

    def __call__(self, training):
        """Return the transformation; `training` is the config section."""
        return optax.trace(self.momentum, nesterov=True)


def main(workdir: str = "runs/own_optimizer", num_train_steps: int = 600):
    """Train with momentum 0.95, and print the losses of the log."""
    changes = {
        "training.optimizer": "sgd(momentum=0.95)",
        "training.peak_learning_rate": 0.1,
        "training.num_train_steps": num_train_steps,
    }
    run = t2t_jax.train(load_config("quickstart").replace(changes), workdir)
    for record in run.history.training:
        print(record["step"], record["loss"])


if __name__ == "__main__":
    tyro.cli(main)
