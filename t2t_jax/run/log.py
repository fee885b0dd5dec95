"""The log of a run: a progress bar, `W/log.jsonl` and TensorBoard events."""

import json
import sys
import time
from collections.abc import Iterator
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


class _TrainingProgress(Progress):
    """A bar with the step and the time left, above a line of figures."""

    def get_renderables(self) -> Iterator[RenderableType]:
        """Yield the bar and the line."""
        yield from super().get_renderables()
        for task in self.tasks:  # the console itself would cut the line
            yield Text(task.fields["figures"], no_wrap=False, overflow="fold")


class RunLog:
    """The log of a run. It first removes the records of steps that a resumed run will repeat.

    With several processes, all keep the history, but only process 0 prints and writes.

    Attributes:
      history: the records so far.
      newest_step: the newest step whose metrics were read.
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
          health: the rules that check the records; None checks nothing.
          predicted: the plural name of what the model predicts, for its printed speed.

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
        known = [
            (line, record)
            for line, record in read_record_lines(self._path, LOG_SCHEMA)
            if record["step"] <= start_step
        ]
        kept = [(line, record) for line, record in known if record["of"] != END]
        self.history = History.of(record for _, record in kept)
        self._end_before = History.of(record for _, record in known).end
        self._recorded = {(record["of"], record["step"]) for _, record in kept}
        if is_main():
            write_whole(self._path, "".join(line for line, _ in kept).encode())
            self._file = self._path.open("a", encoding="utf-8", buffering=1)
            self._tensorboard = tensorboardX
            self._open_events(workdir, start_step)
        self._progress = _TrainingProgress(
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
        """Open the TensorBoard file, and drop the events of later steps."""
        # A `SummaryWriter` has a thread; where a full disk ends it, its callers wait for ever.
        # Its name has the time, which is that of an older file if the clock was set back. The
        # number makes the names differ.
        folder = on_this_machine(workdir)  # as objects in a bucket cannot grow
        folder.mkdir(parents=True, exist_ok=True)
        number = len([*folder.glob("events.out.tfevents.*")])
        writer = self._tensorboard.event_file_writer.EventsWriter
        self._events = writer(str(folder / "events"), f".{number}")
        # This makes TensorBoard's loader in Python forget the events of later steps. Its default
        # server drops those of a figure once the figure has an event of an earlier step.
        session_log = self._tensorboard.proto.event_pb2.SessionLog
        start = session_log(status=session_log.START)
        self._add_event(start_step + 1, session_log=start)

    def __enter__(self) -> "RunLog":
        """Show the progress bar."""
        if self._in_notebook:
            from IPython.display import display  # every notebook's kernel has it

            self._display = display(self._progress, display_id=True)
        self._progress.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Record a `UserError` that ended the run, remove the progress bar and close the files."""
        self._progress.stop()
        self._draw(least_seconds=0)
        if isinstance(error, UserError) and not may_pass(error):
            with suppress(UserError):  # the log itself may not be writable
                self._record(self.newest_step, END, {"text": f"error: {error}"})
        if is_main():
            with suppress(OSError):  # an earlier write has failed for the same reason
                self._events.close()
            with suppress(OSError):
                self._file.close()

    def say(self, text: str) -> None:
        """Print lines above the progress bar."""
        self._console.print(text, highlight=False, markup=False)

    def step(self, step: int) -> None:
        """Move the progress bar."""
        self.newest_step = step
        self._progress.update(self._bar, completed=step)
        self._draw()

    def _draw(self, least_seconds: float = 0.5) -> None:
        """Draw the progress bar of a notebook again, unless it was drawn a moment ago."""
        if self._display and time.monotonic() - self._drawn >= least_seconds:
            self._display.update(self._progress)
            self._drawn = time.monotonic()

    def training(self, step: int, figures: dict[str, float], seconds_left: float) -> None:
        """Record the means of the steps since the last record, or since the run was resumed.

        Args:
          step: the last of these steps.
          seconds_left: the estimated seconds until the last step of the run.
        """
        line = (
            f"loss {figures['loss']:.3f}  learning rate {figures['learning_rate']:.2e}  "
            f"{figures['target_tokens_per_second']:,.0f} {self._predicted}/s  "
            f"{figures['data_wait']:.0%} waiting for data"
        )
        self._progress.update(self._bar, figures=line)
        if not self._shows_bar:
            self.say(f"step {step:,}  {line}  {duration(seconds_left)} left")
        self._record(step, "train", figures)
        self.look(step)

    def evaluation(
        self, step: int, evaluation: Evaluation, num_samples: int, measure: Record
    ) -> None:
        """Record the scores on a split and print some of the translations.

        Args:
          num_samples: how many translations to print.
          measure: the settings that define the scores; scores by other settings are not compared.
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
        score = {"score": evaluation.scores.best, "measure": measure}
        self._record(step, evaluation.split, summary | score)
        self.look(step)

    def look(self, step: int) -> None:
        """Apply the rules of health to the records up to a step; print and record warnings.

        A process prints each warning once, and a run records each warning once.
        """
        for rule, text in self._health.news(self.history) if self._health else ():
            self.warn(step, rule, text)

    def warn(self, step: int, rule: str, text: str, **figures: float) -> None:
        """Print a warning, and record it unless the run has one of the same rule."""
        self.say(f"warning: {text}")
        if all(record.get("rule") != rule for record in self.history.warnings):
            self._record(step, WARNING, {"rule": rule, "text": text, **figures})

    def end(self, step: int, reason: str, advice: str) -> None:
        """Print and record why the training ended after a step.

        A run that had ended before keeps its record.

        Args:
          reason: why it ended, as a sentence without its full stop.
          advice: what the user can do next, which is printed but not recorded.
        """
        self.say(f"{reason}; {advice}")
        before = self._end_before or {}
        same = (before.get("step"), before.get("text")) == (step, reason)
        self._record(step, END, before if same else {"text": reason})

    def checkpoint(self, step: int | None) -> None:
        """Record that the state after a step is on the disk, unless the log says so already."""
        if step is not None and (CHECKPOINT, step) not in self._recorded:
            self._recorded.add((CHECKPOINT, step))
            self._record(step, CHECKPOINT, {})

    def _record(self, step: int, name: str, figures: Record) -> None:
        line = as_line({"step": step, "of": name, "time": time.time(), **figures})
        record = json.loads(line)  # as a resumed run would read it
        self.history.add(record)
        if not is_main():
            return
        waiting = [line + "\n"]

        def write() -> None:
            with self._writing():
                if waiting:  # what could not be written stays in the buffers of the files
                    self._file.write(waiting.pop())
                self._file.flush()
                self._events.flush()

        with self._writing():
            for figure, value in scalars(record).items():
                self._add_event(step, summary=self._tensorboard.summary.scalar(figure, value))
        with_retries(write)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UserError(
                f"{self._path} and TensorBoard's events cannot be written ({error.strerror}); make "
                "room, and the same command goes on from the last checkpoint"
            ) from error

    def _add_event(self, step: int, **fields: object) -> None:
        event = self._tensorboard.proto.event_pb2.Event
        self._events.write_event(event(wall_time=time.time(), step=step, **fields))
