"""Runs at Weights & Biases, online or offline.

W&B numbers the rows of a run and takes none twice. So each row is sent with its number, and the
training step is the figure `step`, the x-axis of all others. Online, the server reports how many
rows it has. Offline, W&B writes a directory for each session, which counts once it is closed. Its
name is then the number of rows up to its end. A session that a kill left open is removed, and its
rows are sent again.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

import wandb

from t2t_jax.errors import UserError
from t2t_jax.run.trackers.tracker import Row, TrackedRun, failed


class WandbRun:
    """A run at W&B; implements `tracker.Tracker`.

    Attributes:
      known: the number of rows that W&B has.
    """

    def __init__(self, project: str, run: TrackedRun) -> None:
        """Begin or resume the run in `PROJECT`, or in `ENTITY/PROJECT`."""
        entity, _, project = project.rpartition("/")
        self._open, self._closed = run.folder / "wandb.open", run.folder / "wandb"
        shutil.rmtree(self._open, ignore_errors=True)
        self._open.mkdir(parents=True)
        self._run = wandb.init(
            entity=entity or None,
            project=project,
            id=run.id,
            name=run.name,
            resume="allow",
            reinit="finish_previous",
            dir=str(self._open),
            config={**run.config},
            allow_val_change=True,  # some fields may change when a run goes on
            # What W&B would collect by itself is about this process, which does not train.
            settings=wandb.Settings(
                console="off",
                disable_git=True,
                save_code=False,
                silent=True,
                x_disable_machine_info=True,
                x_disable_meta=True,
                x_disable_stats=True,
            ),
        )
        self._offline = bool(self._run.offline)
        self.known: int | None = _rows_in(self._closed) if self._offline else self._run.step
        self._next = self.known or 0
        self._run.define_metric("*", step_metric="step")

    @staticmethod
    def check(project: str) -> None:
        """Refuse an empty project, and a machine without credentials for W&B."""
        if not project.rpartition("/")[2].strip():
            raise UserError(f"wandb:{project} names no project; give one, as in wandb:team/project")
        offline = wandb.setup().settings.mode in ("offline", "dryrun", "disabled")
        if not offline and not wandb.login(prompt=False, verify=False):
            raise UserError(
                "there is no login for W&B: call wandb login once, or set WANDB_API_KEY, or "
                "WANDB_MODE=offline to send the run later"
            )

    def send(self, rows: Sequence[Row]) -> None:
        """Send rows, each with its number; a warning is an alert as well."""
        for row in rows:
            figures = {"step": row.step, "_timestamp": row.time, **row.figures}
            self._run.log(figures, step=row.number)
            if row.warning:
                rule, text = row.warning
                self._run.alert(rule, f"step {row.step}: {text}", wandb.AlertLevel.WARN)
            self._next = row.number + 1

    def close(self, end: str | None) -> None:
        """Wait until W&B has all rows, and close the run."""
        if end is not None:
            self._run.summary["end"] = end
        self._run.finish(exit_code=int(failed(end)))
        finished = self._closed / str(self._next)
        if self._offline and not finished.exists():
            self._closed.mkdir(exist_ok=True)
            self._open.rename(finished)
        else:  # the server has it, or there is nothing new
            shutil.rmtree(self._open, ignore_errors=True)


def _rows_in(closed: Path) -> int:
    """Return the number of rows in the closed sessions."""
    names = [path.name for path in closed.iterdir()] if closed.is_dir() else []
    return max((int(name) for name in names if name.isdecimal()), default=0)
