"""The log of a run: progress bar, `W/log.jsonl` and TensorBoard events."""

import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rich import get_console
from rich.console import RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from t2t_jax.errors import UserError, needs_extra
from t2t_jax.parallel.processes import is_main
from t2t_jax.run.evaluation import Evaluation
from t2t_jax.run.health import Health
from t2t_jax.run.history import History, scalars
from t2t_jax.system.atomic_file import write_whole
from t2t_jax.system.bucket import on_this_machine
from t2t_jax.system.console import ProgressConsole
from t2t_jax.system.durations import duration
from t2t_jax.system.exit_codes import may_pass
from t2t_jax.system.records import Record, as_line, read_record_lines
from t2t_jax.system.retries import with_retries
from t2t_jax.tasks.measures.perplexity import perplexity_text
from t2t_jax.workdir import CHECKPOINT, END, LOG, LOG_SCHEMA, WARNING


class _ProgressBar(Progress):
    """A progress bar above a line of metrics."""

    def get_renderables(self) -> Iterator[RenderableType]:
        yield from super().get_renderables()
        for task in self.tasks:  # the console would truncate the line
            yield Text(task.fields["figures"], no_wrap=False, overflow="fold")


class RunLog:
    """The log of a run. Opening it removes the records of steps that a resumed run repeats.

    All processes keep the history, but only process 0 prints and writes.

    Attributes:
      history: the records of the log.
      newest_step: the newest step whose metrics are available.
    """

    def __init__(
        self,
        workdir: Path,
        start_step: int,
        num_train_steps: int,
        health: Health | None = None,
        predicted: str = "target tokens",
    ) -> None:
        """Open the log after `start_step` steps.

        Args:
          health: the rules that check the records; None disables the checks.
          predicted: the unit of the printed speed, in the plural.

        Raises:
          UserError: tensorboardX is not installed.
        """
        with needs_extra("train", "training"):
            import tensorboardX
        self._health, self.newest_step, self._predicted = health, start_step, predicted
        self._console = ProgressConsole(
            soft_wrap=True,
            quiet=not is_main(),
            force_terminal=sys.stdout.isatty(),
            force_jupyter=False,  # a notebook keeps printed lines as text
        )
        self._in_notebook = is_main() and get_console().is_jupyter
        self._shows_bar = self._in_notebook or self._console.is_terminal
        self._display: Any = None
        self._drawn = 0.0
        self._path = workdir / LOG
        recorded_lines = [
            (line, record)
            for line, record in read_record_lines(self._path, LOG_SCHEMA)
            if record["step"] <= start_step
        ]
        retained_lines = [(line, record) for line, record in recorded_lines if record["of"] != END]
        self.history = History.of(record for _, record in retained_lines)
        self._end_before = History.of(record for _, record in recorded_lines).end
        self._recorded = {(record["of"], record["step"]) for _, record in retained_lines}
        if is_main():
            write_whole(self._path, "".join(line for line, _ in retained_lines).encode())
            self._file = self._path.open("a", encoding="utf-8", buffering=1)
            self._tensorboard = tensorboardX
            self._open_events(workdir, start_step)
        self._progress = _ProgressBar(
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(),
            TimeRemainingColumn(),
            console=self._console,
            disable=self._console.quiet or self._in_notebook or not self._console.is_terminal,
        )
        self._bar = self._progress.add_task(
            "train", total=num_train_steps, completed=start_step, figures=""
        )

    def _open_events(self, workdir: Path, start_step: int) -> None:
        """Open a TensorBoard file, and make TensorBoard drop old events after `start_step`."""
        # A `SummaryWriter` has a thread; if a full disk kills the thread, its callers hang.
        # File names contain the time. The number keeps them unique if the clock was set back.
        folder = on_this_machine(workdir)  # objects in a bucket cannot grow
        folder.mkdir(parents=True, exist_ok=True)
        num_files = len([*folder.glob("events.out.tfevents.*")])
        writer = self._tensorboard.event_file_writer.EventsWriter
        self._events = writer(str(folder / "events"), f".{num_files}")
        # TensorBoard's Python loader drops the events of later steps at a START event. Its default
        # server drops later events of a metric at the first event of an earlier step.
        session_log = self._tensorboard.proto.event_pb2.SessionLog
        start = session_log(status=session_log.START)
        self._add_event(start_step + 1, session_log=start)

    def __enter__(self) -> "RunLog":
        """Show the progress bar."""
        if self._in_notebook:
            from IPython.display import display  # installed in every notebook kernel

            self._display = display(self._progress, display_id=True)
        self._progress.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Record a `UserError` that ended training, remove the progress bar and close the files."""
        self._progress.stop()
        self._draw(least_seconds=0)
        if isinstance(error, UserError) and not may_pass(error):
            with suppress(UserError):  # the log may not be writable
                self._record(self.newest_step, END, {"text": f"error: {error}"})
        if is_main():
            with suppress(OSError):  # an earlier write failed for the same reason
                self._events.close()
            with suppress(OSError):
                self._file.close()

    def say(self, text: str) -> None:
        """Print lines above the progress bar."""
        self._console.print(text, highlight=False, markup=False)

    def step(self, step: int) -> None:
        """Move the progress bar to a step."""
        self.newest_step = step
        self._progress.update(self._bar, completed=step)
        self._draw()

    def _draw(self, least_seconds: float = 0.5) -> None:
        if self._display and time.monotonic() - self._drawn >= least_seconds:
            self._display.update(self._progress)
            self._drawn = time.monotonic()

    def training(
        self,
        step: int,
        figures: dict[str, float],
        seconds_left: float,
        metrics: Mapping[str, float] = {},
    ) -> None:
        """Record the mean metrics of the steps since the last record or the start.

        Args:
          step: the last of these steps.
          seconds_left: the estimated seconds until the last step of the run.
          metrics: the means of the user's metrics.
        """
        means = "".join(f"{name} {value:.4g}  " for name, value in metrics.items())
        if (rate := figures.get("learning_rate")) is not None:
            means += f"learning rate {rate:.2e}  "
        line = (
            f"loss {figures['loss']:.3f}  {means}"
            f"{figures['target_tokens_per_second']:,.0f} {self._predicted}/s  "
            f"{figures['data_wait']:.0%} waiting for data"
        )
        self._progress.update(self._bar, figures=line)
        if not self._shows_bar:
            self.say(f"step {step:,}  {line}  {duration(seconds_left)} left")
        self._record(step, "train", {**figures, **metrics})
        self.look(step)

    def evaluation(
        self, step: int, evaluation: Evaluation, num_samples: int, measure: Record
    ) -> None:
        """Record the scores on a split and print sample translations.

        Args:
          num_samples: the number of translations to print.
          measure: the settings of the evaluation; only scores with equal settings are compared.
        """
        summary = evaluation.summary()
        self.say(
            f"step {step:,}  {evaluation.split}: loss {summary['loss']:.3f}  "
            f"perplexity {perplexity_text(summary['perplexity'])}  "
            f"{evaluation.scores}"
        )
        lines = zip(evaluation.sources, evaluation.references, evaluation.hypotheses, strict=True)
        for (source, reference, hypothesis), _ in zip(lines, range(num_samples), strict=False):
            self.say(
                f"    source     {source}\n    reference  {reference}\n    model      {hypothesis}"
            )
        score_record = {"score": evaluation.scores.best, "measure": measure}
        self._record(step, evaluation.split, summary | score_record)
        self.look(step)

    def look(self, step: int) -> None:
        """Check the records with the health rules; print and record warnings."""
        # Each process prints a warning once, and the log records a warning once.
        for rule, text in self._health.news(self.history) if self._health else ():
            self.warn(step, rule, text)

    def warn(self, step: int, rule: str, text: str, **figures: float) -> None:
        """Print a warning, and record it unless the log has a warning of the same rule.

        Args:
          rule: the name of the rule.
          figures: values to record with the warning.
        """
        self.say(f"warning: {text}")
        if all(record.get("rule") != rule for record in self.history.warnings):
            self._record(step, WARNING, {"rule": rule, "text": text, **figures})

    def end(self, step: int, reason: str, advice: str) -> None:
        """Print and record why training ended after a step.

        Args:
          reason: a sentence without a full stop.
          advice: the printed advice for the user, which is not recorded.
        """
        self.say(f"{reason}; {advice}")
        # If the run ended at the same step for the same reason before, the old record stays.
        old_end = self._end_before or {}
        is_unchanged = (old_end.get("step"), old_end.get("text")) == (step, reason)
        self._record(step, END, old_end if is_unchanged else {"text": reason})

    def checkpoint(self, step: int | None) -> list[Record]:
        """Log that a step's checkpoint is complete on disk, unless `step` is None or logged.

        Returns:
          The new record, or [].
        """
        if step is None or (CHECKPOINT, step) in self._recorded:
            return []
        self._recorded.add((CHECKPOINT, step))
        return [self._record(step, CHECKPOINT, {})]

    def _record(self, step: int, kind: str, figures: Record) -> Record:
        line = as_line({"step": step, "of": kind, "time": time.time(), **figures})
        record = json.loads(line)  # the values that a resumed run reads
        self.history.add(record)
        if not is_main():
            return record
        unwritten_lines = [line + "\n"]

        def write() -> None:
            with self._writing():
                if unwritten_lines:  # after an error, the line is in the file buffer
                    self._file.write(unwritten_lines.pop())
                self._file.flush()
                self._events.flush()

        with self._writing():
            for figure, value in scalars(record).items():
                self._add_event(step, summary=self._tensorboard.summary.scalar(figure, value))
        with_retries(write)
        return record

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UserError(
                f"{self._path} and TensorBoard's events cannot be written ({error.strerror}); "
                "make room, and run the same command to resume from the last checkpoint"
            ) from error

    def _add_event(self, step: int, **fields: object) -> None:
        event = self._tensorboard.proto.event_pb2.Event
        self._events.write_event(event(wall_time=time.time(), step=step, **fields))
