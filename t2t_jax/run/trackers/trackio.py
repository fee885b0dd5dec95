"""Runs in this machine's trackio store, which `trackio sync` uploads to the Hugging Face Hub.

Rows are written in the way of trackio's import from other programs. `trackio.log` would silently
drop what it cannot write. Each row has an id, and the store takes no id twice.
"""

from collections.abc import Sequence
from datetime import UTC, datetime

from trackio.sqlite_storage import SQLiteStorage

from t2t_jax.errors import UserError
from t2t_jax.run.trackers.tracker import Row, TrackedRun, failed


class TrackioRun:
    """A run in trackio's store; implements `tracker.Tracker`.

    Attributes:
      known: None, as the store itself skips rows that it has.
    """

    def __init__(self, project: str, run: TrackedRun) -> None:
        """Begin or resume the run in a project."""
        self.known: int | None = None
        self._project, self._run, self._last = project, run, 0
        self._config = {**run.config, "_Created": _iso(datetime.now().timestamp())}

    @staticmethod
    def check(project: str) -> None:
        """Refuse a name that trackio does not take."""
        try:
            SQLiteStorage.validate_project_name(project)
        except ValueError as error:
            raise UserError(f"trackio:{project} is refused: {error}") from error

    def send(self, rows: Sequence[Row]) -> None:
        """Write rows; a warning is an alert as well."""
        SQLiteStorage.bulk_log(
            self._project,
            self._run.name,
            [{**row.figures} for row in rows],
            [row.step for row in rows],
            [_iso(row.time) for row in rows],
            self._config,
            [f"{self._run.id}-{row.number}" for row in rows],
            run_id=self._run.id,
        )
        for row in rows:
            self._last = row.step
            if row.warning:
                self._alert(*row.warning, "warn", row.step)

    def close(self, end: str | None) -> None:
        """Write why the training ended, as an alert."""
        if end is not None:
            self._alert("end", end, "error" if failed(end) else "info", self._last)

    def _alert(self, title: str, text: str, level: str, step: int) -> None:
        SQLiteStorage.bulk_alert(
            self._project,
            self._run.name,
            [title],
            [text],
            [level],
            [step],
            alert_ids=[f"{self._run.id}-{title}-{text}"],
            run_id=self._run.id,
        )


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
