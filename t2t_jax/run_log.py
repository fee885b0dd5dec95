"""What a run tells: a progress bar, `W/log.jsonl` and TensorBoard events."""

import json
import math
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import tensorboardX
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from t2t_jax.atomic_file import write_whole
from t2t_jax.evaluation.evaluate import Evaluation
from t2t_jax.records import read_lines

_LOG_FILE = "log.jsonl"


class RunLog:
    """The log of a run. Records of steps that a resumed run will take again are removed first."""

    def __init__(self, workdir: Path, start_step: int, num_train_steps: int) -> None:
        """Open the log after `start_step` steps.

        Args:
          workdir: the run directory.
          start_step: steps already taken.
          num_train_steps: steps to take in all.
        """
        self._console = Console(soft_wrap=True)
        path = workdir / _LOG_FILE
        kept = [
            (line, record)
            for line, record in read_lines(path)
            if record.get("step", start_step + 1) <= start_step
        ]
        write_whole(path, "".join(line for line, _ in kept).encode())
        self._recorded = {(record["of"], record["step"]) for _, record in kept}
        self._file = path.open("a", encoding="utf-8", buffering=1)
        self._events = tensorboardX.SummaryWriter(str(workdir), purge_step=start_step + 1)
        self._progress = Progress(
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._bar = self._progress.add_task(
            "train", total=num_train_steps, completed=start_step, figures=""
        )

    def __enter__(self) -> "RunLog":
        """Show the progress bar."""
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Take the progress bar away and close the files."""
        self._progress.stop()
        self._events.close()
        self._file.close()

    def say(self, text: str) -> None:
        """Print lines above the progress bar."""
        self._console.print(text, highlight=False, markup=False)

    def step(self, step: int) -> None:
        """Move the progress bar."""
        self._progress.update(self._bar, completed=step)

    def has_evaluation(self, step: int, split: str) -> bool:
        """Whether the log, as it was opened, holds the scores on a split after a step."""
        return (split, step) in self._recorded

    def training(self, step: int, figures: dict[str, float], seconds_left: float) -> None:
        """Record the means of the steps since the last record, or since the run was resumed.

        Args:
          step: the last of these steps.
          figures: under their names.
          seconds_left: until the last step.
        """
        line = (
            f"loss {figures['loss']:.3f}  learning rate {figures['learning_rate']:.2e}  "
            f"{figures['target_tokens_per_second']:,.0f} target tokens/s"
        )
        self._progress.update(self._bar, figures=line)
        if not self._console.is_terminal:
            self.say(f"step {step:,}  {line}  {_minutes(seconds_left)} left")
        self._record(step, "train", figures)

    def evaluation(self, step: int, evaluation: Evaluation, num_samples: int) -> None:
        """Record the scores on a split and print some of the translations."""
        summary = evaluation.summary()
        self.say(
            f"step {step:,}  {evaluation.split}: loss {summary['loss']:.3f}  "
            f"perplexity {summary['perplexity']:.2f}  "
            f"{evaluation.scores}"
        )
        lines = zip(evaluation.sources, evaluation.references, evaluation.hypotheses, strict=True)
        for (source, reference, hypothesis), _ in zip(lines, range(num_samples), strict=False):
            self.say(
                f"    source     {source}\n    reference  {reference}\n    model      {hypothesis}"
            )
        self._record(step, evaluation.split, summary)

    def _record(self, step: int, name: str, figures: dict[str, Any]) -> None:
        record = {"step": step, "of": name, "time": time.time(), **figures}
        for figure, value in figures.items():
            if isinstance(value, int | float):
                if math.isfinite(value):
                    self._events.add_scalar(f"{name}/{figure}", value, step)
                else:
                    record[figure] = None  # JSON has no NaN
        self._file.write(json.dumps(record, allow_nan=False) + "\n")


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
