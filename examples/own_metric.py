"""Metrics and a hook of your own: accuracy of next-token predictions, in the log and in a CSV file.

    python examples/own_metric.py --workdir runs/own_metric

Metrics are computed in every training step, and logged as means over the steps since the last log
line. `t2t-jax watch`, TensorBoard and trackers show them.
"""

import csv
import math
from pathlib import Path

import jax
import tyro

import t2t_jax
from t2t_jax.config.file import load_config


def metrics(outputs, batch):
    """Return sums and counts over the target tokens of some rows of the batch."""
    is_token = batch.targets.segments != 0  # [b, t], False at padding
    is_correct = outputs.logits.argmax(-1) == batch.targets.tokens
    _, nll = outputs.losses
    return {
        "token_accuracy": ((is_correct & is_token).sum(), is_token.sum()),
        "surprising": (((nll > math.log(100)) & is_token).sum(), is_token.sum()),  # p < 1%
    }


class CsvLog:
    """A hook that appends the training records to a CSV file.

    A resumed run repeats the rows after the checkpoint.
    """

    def __init__(self, path, columns=("step", "loss", "token_accuracy", "surprising")):
        """Write the header of a new file."""
        self.path, self.columns = Path(path), columns
        if not self.path.exists():
            self._append(columns)

    def __call__(self, step, record, state):
        """Append a record; `state` has the parameters after the step."""
        if record["of"] == "train" and jax.process_index() == 0:
            self._append([record[name] for name in self.columns])

    def _append(self, row):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", newline="") as file:
            csv.writer(file).writerow(row)


def main(workdir: str = "runs/own_metric", num_train_steps: int = 600):
    """Train with the metrics and the hook, and print the CSV file."""
    config = load_config("quickstart").replace({"training.num_train_steps": num_train_steps})
    path = Path(f"{workdir}.csv")
    t2t_jax.train(config, workdir, metrics=metrics, hooks=[CsvLog(path)])
    print(path.read_text())


if __name__ == "__main__":
    tyro.cli(main)
