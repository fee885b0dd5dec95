"""Runs at MLflow, at the address in MLFLOW_TRACKING_URI.

MLflow chooses the id of a run, so a tag with the run's own id identifies it. MLflow would store a
figure of a step twice, so this module asks for the stored steps before it sends the first.
"""

from collections.abc import Sequence
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag

from t2t_jax.run.trackers.tracker import Row, TrackedRun, failed

_TAG = "t2t_jax.id"
_MOST_METRICS, _MOST_PARAMS = 1000, 100  # in one request


class MlflowRun:
    """A run at MLflow; implements `tracker.Tracker`.

    Attributes:
      known: None, as MLflow counts figures and no rows.
    """

    def __init__(self, project: str, run: TrackedRun) -> None:
        """Begin or resume the run in the experiment `project`."""
        self.known: int | None = None
        self._client = MlflowClient()
        self._steps: dict[str, set[int]] = {}
        found = self._found(project, run)
        self._id: str = found.info.run_id
        self._client.update_run(self._id, status="RUNNING")
        self._send_config(run, found.data.params)

    @staticmethod
    def check(project: str) -> None:
        """Refuse nothing: MLflow takes every name, and shows only later whether it is up."""

    def send(self, rows: Sequence[Row]) -> None:
        """Send the figures that MLflow lacks, with the times of their records."""
        metrics = [
            Metric(name, value, round(1000 * row.time), row.step)
            for row in rows
            for name, value in row.figures.items()
            if self._is_new(name, row.step)
        ]
        for first in range(0, len(metrics), _MOST_METRICS):
            part = metrics[first : first + _MOST_METRICS]
            self._client.log_batch(self._id, metrics=part, synchronous=True)
            for metric in part:
                self._steps[metric.key].add(metric.step)
        for rule, text in (row.warning for row in rows if row.warning):
            self._client.set_tag(self._id, f"warning.{rule}", text)

    def close(self, end: str | None) -> None:
        """Mark the run as ended, unless its training continues."""
        if end is not None:
            self._client.set_tag(self._id, "end", end)
            self._client.set_terminated(self._id, "FAILED" if failed(end) else "FINISHED")

    def _is_new(self, name: str, step: int) -> bool:
        if name not in self._steps:
            history = self._client.get_metric_history(self._id, name)
            self._steps[name] = {metric.step for metric in history}
        return step not in self._steps[name]

    def _found(self, project: str, run: TrackedRun) -> Any:
        """Return the run at MLflow, created if missing."""
        experiment = self._client.get_experiment_by_name(project)
        number = experiment.experiment_id if experiment else self._client.create_experiment(project)
        runs = self._client.search_runs([number], f"tags.`{_TAG}` = '{run.id}'")
        return runs[0] if runs else self._client.create_run(number, None, {_TAG: run.id}, run.name)

    def _send_config(self, run: TrackedRun, known: dict[str, str]) -> None:
        """Send the config; a changed value is a tag, as MLflow changes no parameter."""
        values = {name: str(value) for name, value in run.config.items()}
        new = [Param(name, value) for name, value in values.items() if name not in known]
        for first in range(0, len(new), _MOST_PARAMS):
            self._client.log_batch(self._id, params=new[first : first + _MOST_PARAMS])
        changed = [
            RunTag(name, value) for name, value in values.items() if known.get(name, value) != value
        ]
        if changed:
            self._client.log_batch(self._id, tags=changed[:_MOST_PARAMS])
