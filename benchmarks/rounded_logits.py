"""Measure what rounding logits to bfloat16 costs training: the loss on dev with and without it.

    python benchmarks/rounded_logits.py --workdir runs/rounded_logits
    python benchmarks/rounded_logits.py --config configs/l10n_small.py --steps 5000 --seeds 5

Runs of a config in bfloat16 differ in their seed, and in the dtype of the logits from which the
training loss is computed (`kernels.choice.LogitsForm`): NVIDIA GPUs use rounded logits. Scores on
dev use logits in float32 in both forms. A run that is done already is not repeated.
"""

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from measuring import machine, show

from t2t_jax.commands.flags import parse_flags
from t2t_jax.config.file import load_config
from t2t_jax.kernels.choice import Kernels, LogitsForm, kernels_of
from t2t_jax.run.trainer import train
from t2t_jax.system.program import run


@dataclass(frozen=True)
class RoundedLogits:
    """Train with logits in float32, and with rounded ones."""

    config: str = "configs/quickstart.py"
    """Config file of the runs."""
    workdir: Path = Path("runs/rounded_logits")
    """Directory for all runs."""
    steps: int = 600
    """Steps of a run."""
    seeds: int = 3
    """Runs of each form, each with a seed of its own."""
    json: bool = False
    """Print JSON."""


def main(arguments: Sequence[str]) -> int:
    """Train everything, and print the table."""
    asked: RoundedLogits = parse_flags(RoundedLogits, arguments)
    rows = []
    forms: tuple[LogitsForm, ...] = "float32", "rounded"
    for form in forms:
        losses = [_dev_loss(asked, form, seed) for seed in range(asked.seeds)]
        rows.append(
            {
                "logits": form,
                "runs": len(losses),
                "dev_nll": round(statistics.fmean(losses), 4),
                "least": round(min(losses), 4),
                "greatest": round(max(losses), 4),
            }
        )
    show(machine(), rows, asked.json)
    return 0


def _dev_loss(asked: RoundedLogits, form: LogitsForm, seed: int) -> float:
    """Train a run, and return the negative log-likelihood of a target token of dev, in nats."""
    config = load_config(asked.config).replace(
        {
            "model.compute_dtype": "bfloat16",
            "training.num_train_steps": asked.steps,
            "training.seed": seed,
            "evaluation.every_steps": asked.steps,
        }
    )

    def with_form(*arguments: Any) -> Kernels:
        return dataclasses.replace(kernels_of(*arguments), logits=form)

    with patch("t2t_jax.modules.models.kernels_of", with_form):
        trained = train(config, asked.workdir / f"{form}_{seed}")
    if trained.exit_code:
        raise SystemExit(trained.exit_code)
    return float(trained.history.evaluations[-1]["nll"])


if __name__ == "__main__":
    run(main)
