"""Open runs at W&B, MLflow and trackio, and check that this machine can send to them.

Only the processes of `trackers.follower` call these libraries, which may block for minutes if their
server is unreachable.
"""

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from t2t_jax.config import walk
from t2t_jax.config.registry import Registry
from t2t_jax.errors import UserError, did_you_mean, needs_extra, quote
from t2t_jax.system.bucket import on_this_machine
from t2t_jax.workdir import TRACKERS_FOLDER, read_config


class Row(NamedTuple):
    """A record of a run's log, to send to an experiment tracker."""

    number: int
    """The record's index among all records that are sent, from 0."""
    step: int
    time: float
    """Unix time in seconds."""
    figures: Mapping[str, float]
    """The metrics of the record, by their names in TensorBoard."""


class OpenRun(NamedTuple):
    """A run that is open at a tracker, and the records that the tracker already has."""

    send: Callable[[Sequence[Row]], object]
    """Sends the rows that follow those at the tracker."""
    close: Callable[[str | None, bool], object]
    """Sends pending rows, the reason why training ended or None, and whether it was an error."""
    rows: int = 0
    """The number of rows at the tracker, if it counts rows."""
    figures: frozenset[tuple[str, int]] = frozenset()
    """The names and steps of the figures at the tracker, if it does not count rows."""


def _fields(workdir: Path) -> dict[str, str | int | float | None]:
    """Return the values of a run's config by dotted path; lists and the like become texts."""
    return {
        path: value if isinstance(value, str | int | float | None) else str(value)
        for path, _, value in walk(read_config(workdir))
    }


def _open_wandb(project: str, run_id: str, workdir: Path) -> OpenRun:
    """Start or resume a run at Weights & Biases (W&B).

    W&B drops rows with repeated numbers, so the training step is a figure, and the x-axis of the
    others. A killed offline session leaves an unknown number of rows, so each offline session sends
    all rows and replaces the previous one.

    Args:
      project: `PROJECT` or `ENTITY/PROJECT`.
    """
    import wandb

    entity, _, project = project.rpartition("/")
    folder = on_this_machine(workdir / TRACKERS_FOLDER)
    shutil.rmtree(folder / "wandb", ignore_errors=True)
    # W&B would collect system metrics of this process, which does not train.
    settings = {"console": "off", "silent": True, "x_disable_meta": True, "x_disable_stats": True}
    run = wandb.init(
        entity=entity or None,
        project=project,
        id=run_id,
        name=str(workdir),
        resume="allow",
        reinit="finish_previous",
        dir=str(folder),
        config=_fields(workdir),
        allow_val_change=True,  # some fields may change when a run resumes
        settings=settings,
    )
    run.define_metric("*", step_metric="step")

    def send(rows: Sequence[Row]) -> None:
        for row in rows:
            figures = {"step": row.step, "_timestamp": row.time, **row.figures}
            run.log(figures, step=row.number)

    def close(end: str | None, has_failed: bool) -> None:
        if end is not None:
            run.summary["end"] = end
        run.finish(exit_code=int(has_failed))

    return OpenRun(send, close, rows=0 if run.offline else run.step)


def _open_mlflow(project: str, run_id: str, workdir: Path) -> OpenRun:
    """Start or resume a run at MLflow, which stores repeated figures of a step twice.

    MLflow chooses the ids of runs, so a tag stores our id.
    """
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

    client, fields, tags = MlflowClient(), _fields(workdir), {"t2t_jax.id": run_id}
    experiment = client.get_experiment_by_name(project)
    experiment_id = experiment.experiment_id if experiment else client.create_experiment(project)
    runs = client.search_runs([experiment_id], f"tags.`t2t_jax.id` = '{run_id}'")
    run = runs[0] if runs else client.create_run(experiment_id, None, tags, str(workdir))
    mlflow_id = run.info.run_id
    new_fields = fields.keys() - run.data.params.keys()  # MLflow refuses to change a parameter
    client.log_batch(mlflow_id, params=[Param(name, str(fields[name])) for name in new_fields])
    client.update_run(mlflow_id, status="RUNNING")

    def send(rows: Sequence[Row]) -> None:
        metrics = [
            Metric(figure, value, round(1000 * row.time), row.step)
            for row in rows
            for figure, value in row.figures.items()
        ]
        client.log_batch(mlflow_id, metrics=metrics, synchronous=True)

    def close(end: str | None, has_failed: bool) -> None:
        if end is not None:
            client.set_tag(mlflow_id, "end", end)
            client.set_terminated(mlflow_id, "FAILED" if has_failed else "FINISHED")

    histories = [client.get_metric_history(mlflow_id, figure) for figure in run.data.metrics]
    figures = frozenset((point.key, point.step) for points in histories for point in points)
    return OpenRun(send, close, figures=figures)


def _open_trackio(project: str, run_id: str, workdir: Path) -> OpenRun:
    """Start or resume a run in the trackio store of this machine.

    Rows are written as by trackio's importers: `trackio.log` may silently drop rows.
    """
    from trackio.sqlite_storage import SQLiteStorage

    name = str(workdir)
    config = {**_fields(workdir), "_Created": datetime.now(UTC).isoformat()}

    def send(rows: Sequence[Row]) -> None:
        figures = [dict(row.figures) for row in rows]
        steps = [row.step for row in rows]
        times = [datetime.fromtimestamp(row.time, UTC).isoformat() for row in rows]
        SQLiteStorage.bulk_log(project, name, figures, steps, times, config, run_id=run_id)

    def close(end: str | None, has_failed: bool) -> None:
        if end is not None:
            alert = ["end"], [end], ["error" if has_failed else "info"], [None]
            SQLiteStorage.bulk_alert(project, name, *alert, alert_ids=[run_id + end], run_id=run_id)

    logs = SQLiteStorage.get_logs(project, name, run_id=run_id)
    figures = frozenset((figure, log["step"]) for log in logs for figure in log)
    return OpenRun(send, close, figures=figures)


TRACKERS = Registry("", "trackers", wandb=_open_wandb, mlflow=_open_mlflow, trackio=_open_trackio)
"""Functions that open a run at a tracker, given the project, the run's id and its run directory.
Names of built-in trackers are also the names of their libraries and extras."""
_OFFLINE = "offline", "dryrun", "disabled"  # modes of W&B that need no login


class Target(NamedTuple):
    """A tracker and a project at the tracker."""

    tracker: str
    project: str

    def __str__(self) -> str:
        """Return the target as on the command line, such as `wandb:translation`."""
        return f"{self.tracker}:{self.project}"

    def check(self) -> None:
        """Raise a `UserError` if this machine lacks the tracker's library or W&B login.

        Importing the library takes seconds.
        """
        if self.tracker not in TRACKERS:
            _ = TRACKERS[self.tracker]  # loads the tracker of a plugin, which may be broken
            return
        with needs_extra(self.tracker, str(self)):
            library = import_module(self.tracker)
        if self.tracker != "wandb" or library.setup().settings.mode in _OFFLINE:
            return
        try:
            has_login = library.login(prompt=False, verify=False)
        except Exception as error:  # such as a key of the wrong form
            raise UserError(f"{self} is refused: {error}") from error
        if not has_login:
            raise UserError(
                "there is no login for W&B: call wandb login once, or set WANDB_API_KEY, or "
                "WANDB_MODE=offline to send the run later"
            )


def parse_targets(texts: Sequence[str], stored: Iterable[Target] = ()) -> list[Target]:
    """Parse targets such as `wandb:PROJECT`; a comma separates several targets of one text.

    `stored` are the targets of earlier starts of the run.
    """
    targets, projects = [], {target.tracker: target.project for target in stored}
    for text in ",".join(texts).split(",") if texts else ():
        name, _, project = text.partition(":")
        if name not in (names := TRACKERS.all_names):
            hint = did_you_mean(name, names, f"trackers are {', '.join(names)}")
            raise UserError(f"{quote(text)} does not name a tracker, such as wandb:PROJECT; {hint}")
        if not project.strip():
            raise UserError(f"{quote(text)} names no project; give one, as in {name}:translation")
        if projects.setdefault(name, project) != project:
            raise UserError(
                f"a run is sent to one project of {name}, here to {projects[name]} and not to "
                f"{project}; name that one, or remove trackers/{name}.json of the run to begin anew"
            )
        targets.append(Target(name, project))
    return list(dict.fromkeys(targets))
