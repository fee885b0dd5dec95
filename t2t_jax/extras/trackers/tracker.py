"""W&B, MLflow and trackio: the check of a machine, and a run that is open there.

Only processes beside a training call them, see `trackers.follower`: a library may block for minutes
if its server is away.
"""

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from t2t_jax.config import walk
from t2t_jax.config.registry import Rows
from t2t_jax.errors import UserError, did_you_mean, needs_extra, quote
from t2t_jax.system.bucket import on_this_machine
from t2t_jax.workdir import TRACKERS_FOLDER, read_config


class Row(NamedTuple):
    """The figures of a record of the log, by their names in TensorBoard."""

    number: int
    """The index among the records that are sent, from 0."""
    step: int
    time: float
    """Seconds since 1970."""
    figures: Mapping[str, float]


class OpenRun(NamedTuple):
    """A run that is open at a tracker, and what the tracker has of it."""

    send: Callable[[Sequence[Row]], object]
    """Sends rows, which continue those at the tracker."""
    close: Callable[[str | None, bool], object]
    """Sends pending rows, and why the training ended, if it did, and whether by an error."""
    rows: int = 0
    """The number of rows at the tracker, if it counts them."""
    figures: frozenset[tuple[str, int]] = frozenset()
    """The names and steps of the figures at the tracker, if it does not count rows."""


def _fields(workdir: Path) -> dict[str, str | int | float | None]:
    """Return the values of a run's config by dotted path: numbers, texts, booleans and None."""
    return {
        path: value if isinstance(value, str | int | float | None) else str(value)
        for path, _, value in walk(read_config(workdir))
    }


def _open_wandb(project: str, number: str, workdir: Path) -> OpenRun:
    """Begin or resume a run at W&B, in `PROJECT` or `ENTITY/PROJECT`.

    W&B numbers the rows of a run and takes none twice. So the training step is a figure, the x-axis
    of all others. Offline, nobody knows what a killed session has written, so each session replaces
    the one before and has all rows.
    """
    import wandb

    entity, _, project = project.rpartition("/")
    folder = on_this_machine(workdir / TRACKERS_FOLDER)
    shutil.rmtree(folder / "wandb", ignore_errors=True)
    # W&B would collect facts about this process, which does not train.
    settings = {"console": "off", "silent": True, "x_disable_meta": True, "x_disable_stats": True}
    opened = wandb.init(
        entity=entity or None,
        project=project,
        id=number,
        name=str(workdir),
        resume="allow",
        reinit="finish_previous",
        dir=str(folder),
        config=_fields(workdir),
        allow_val_change=True,  # some fields may change when a run goes on
        settings=settings,
    )
    opened.define_metric("*", step_metric="step")

    def send(rows: Sequence[Row]) -> None:
        for row in rows:
            figures = {"step": row.step, "_timestamp": row.time, **row.figures}
            opened.log(figures, step=row.number)

    def close(end: str | None, has_failed: bool) -> None:
        if end is not None:
            opened.summary["end"] = end
        opened.finish(exit_code=int(has_failed))

    return OpenRun(send, close, rows=0 if opened.offline else opened.step)


def _open_mlflow(project: str, number: str, workdir: Path) -> OpenRun:
    """Begin or resume a run at MLflow, which stores a figure of a step twice if it gets it twice.

    MLflow chooses the id of a run, so a tag has the run's own id.
    """
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

    client, fields, tags = MlflowClient(), _fields(workdir), {"t2t_jax.id": number}
    experiment = client.get_experiment_by_name(project)
    experiment_id = experiment.experiment_id if experiment else client.create_experiment(project)
    runs = client.search_runs([experiment_id], f"tags.`t2t_jax.id` = '{number}'")
    opened = runs[0] if runs else client.create_run(experiment_id, None, tags, str(workdir))
    name = opened.info.run_id
    new = fields.keys() - opened.data.params.keys()  # MLflow changes no parameter
    client.log_batch(name, params=[Param(field, str(fields[field])) for field in new])
    client.update_run(name, status="RUNNING")

    def send(rows: Sequence[Row]) -> None:
        metrics = [
            Metric(figure, value, round(1000 * row.time), row.step)
            for row in rows
            for figure, value in row.figures.items()
        ]
        client.log_batch(name, metrics=metrics, synchronous=True)

    def close(end: str | None, has_failed: bool) -> None:
        if end is not None:
            client.set_tag(name, "end", end)
            client.set_terminated(name, "FAILED" if has_failed else "FINISHED")

    histories = [client.get_metric_history(name, figure) for figure in opened.data.metrics]
    figures = frozenset((point.key, point.step) for points in histories for point in points)
    return OpenRun(send, close, figures=figures)


def _open_trackio(project: str, number: str, workdir: Path) -> OpenRun:
    """Begin or resume a run in the trackio store of this machine.

    Rows are written in the way of trackio's import from other programs. `trackio.log` would
    silently drop what it cannot write.
    """
    from trackio.sqlite_storage import SQLiteStorage

    name = str(workdir)
    config = {**_fields(workdir), "_Created": datetime.now(UTC).isoformat()}

    def send(rows: Sequence[Row]) -> None:
        figures = [dict(row.figures) for row in rows]
        steps = [row.step for row in rows]
        times = [datetime.fromtimestamp(row.time, UTC).isoformat() for row in rows]
        SQLiteStorage.bulk_log(project, name, figures, steps, times, config, run_id=number)

    def close(end: str | None, has_failed: bool) -> None:
        if end is not None:
            alert = ["end"], [end], ["error" if has_failed else "info"], [None]
            SQLiteStorage.bulk_alert(project, name, *alert, alert_ids=[number + end], run_id=number)

    logs = SQLiteStorage.get_logs(project, name, run_id=number)
    figures = frozenset((figure, log["step"]) for log in logs for figure in log)
    return OpenRun(send, close, figures=figures)


TRACKERS = Rows("trackers", wandb=_open_wandb, mlflow=_open_mlflow, trackio=_open_trackio)
"""Functions that open a run at a tracker, from its project, the id of the run and its directory.
The names of the package's own are those of their libraries and extras too."""
_OFFLINE = "offline", "dryrun", "disabled"  # modes of W&B that need no login


class Target(NamedTuple):
    """A tracker, and the project there that a run is sent to."""

    tracker: str
    project: str

    def __str__(self) -> str:
        """Return the target in the form of the command line, such as `wandb:translation`."""
        return f"{self.tracker}:{self.project}"

    def check(self) -> None:
        """Refuse a target that this machine cannot send to; takes the seconds of an import."""
        if self.tracker not in TRACKERS:
            _ = TRACKERS[self.tracker]  # of a plugin, which may be broken
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


def targets_of(texts: Sequence[str], known: Iterable[Target] = ()) -> list[Target]:
    """Parse targets from texts such as `wandb:PROJECT`; a comma separates several.

    Args:
      known: the targets of earlier starts of the run; see `follower.remembered`.
    """
    targets, projects = [], {target.tracker: target.project for target in known}
    for text in ",".join(texts).split(",") if texts else ():
        name, _, project = text.partition(":")
        if name not in (names := TRACKERS.all_names):
            hint = did_you_mean(name, names, f"trackers are {', '.join(names)}")
            raise UserError(f"{quote(text)} names no tracker as wandb:PROJECT does; {hint}")
        if not project.strip():
            raise UserError(f"{quote(text)} names no project; give one, as in {name}:translation")
        if projects.setdefault(name, project) != project:
            raise UserError(
                f"a run is sent to one project of {name}, here to {projects[name]} and not to "
                f"{project}; name that one, or remove trackers/{name}.json of the run to begin anew"
            )
        targets.append(Target(name, project))
    return list(dict.fromkeys(targets))
