"""Learning-rate schedules of your own, and a grid that compares them.

    python examples/own_schedule.py --workdir runs/own_schedule

The file is also a grid for a command: `t2t-jax sweep --config examples/own_schedule.py
--workdir runs/own_schedule`. `StepDecay` has the warmup of equation 3 and another decay.
`one_cycle` is a function of the step.
"""

from dataclasses import dataclass

import jax.numpy as jnp
import tyro

import t2t_jax
from t2t_jax.config.file import load_config


@t2t_jax.register("schedule")
@dataclass(frozen=True)
class StepDecay(t2t_jax.Schedule):
    """P * min(n / warmup_steps, factor^k), where k is the number of boundaries before step n."""

    boundaries: tuple[int, ...] = (200, 400)
    factor: float = 0.5

    def decay(self, n, warmup_steps, end):
        """Return the fraction of the peak rate P after the warmup."""
        num_boundaries = sum(jnp.asarray(n) > boundary for boundary in self.boundaries)
        return jnp.asarray(self.factor) ** num_boundaries


@t2t_jax.register("schedule")
def one_cycle(step):
    """Rise to 0.003 in 100 steps, and fall to 0 in 500 steps."""
    return 0.003 * jnp.minimum(step / 100, jnp.maximum(0.0, (600 - step) / 500))


BASE = load_config("quickstart").replace({"training.num_train_steps": 600})
VARIANTS = {
    "base": BASE,
    "step_decay": BASE.replace({"training.schedule": "step_decay(factor=0.3)"}),
    "one_cycle": BASE.replace({"training.schedule": "one_cycle"}),
}


def main(workdir: str = "runs/own_schedule", num_train_steps: int = 600):
    """Train with `StepDecay`, and print the learning rates of the log."""
    config = BASE.replace({"training.num_train_steps": num_train_steps})
    run = t2t_jax.train(config, workdir, schedule=StepDecay(factor=0.3))
    for record in run.history.training:
        print(record["step"], record["learning_rate"], record["loss"])


if __name__ == "__main__":
    tyro.cli(main)
