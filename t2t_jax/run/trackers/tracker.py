"""The interface of a tracker, such as W&B, and the table of trackers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from t2t_jax.config.registry import load_named
from t2t_jax.errors import UserError, did_you_mean, needs_extra

TRACKERS: Mapping[str, str] = {
    name: f"t2t_jax.run.trackers.{name}:{kind}"
    for name, kind in (("wandb", "WandbRun"), ("mlflow", "MlflowRun"), ("trackio", "TrackioRun"))
}
"""The place of the class of each tracker, by the tracker's name, which is also that of the extra
that installs its library."""


class Target(NamedTuple):
    """A tracker, and the project there that a run is sent to."""

    tracker: str
    """The name of a tracker, of those in `TRACKERS`."""
    project: str
    """The name of the project, which MLflow calls an experiment."""

    def __str__(self) -> str:
        """Return the target in the form of the command line, such as `wandb:translation`."""
        return f"{self.tracker}:{self.project}"


@dataclass(frozen=True)
class TrackedRun:
    """The facts about a run that every tracker gets when the run is created or resumed there."""

    id: str
    """The id of the run, which it keeps for its whole life, in 32 hexadecimal digits."""
    name: str
    """The name of the run for its readers: its directory."""
    config: Mapping[str, Any]
    """The values of the config by dotted path: numbers, texts, booleans and None."""
    folder: Path
    """The directory of this machine for the files that the tracker's library writes."""


@dataclass(frozen=True)
class Row:
    """A record of the log in the form in which it is sent."""

    number: int
    """The place among all rows of the run that are ever sent, from 0."""
    step: int
    """The step of training after which the record was made."""
    time: float
    """The time of the record, in seconds since 1970."""
    figures: Mapping[str, float]
    """The finite figures by the names that TensorBoard has them, such as `train/loss`."""
    warning: tuple[str, str] | None = None
    """The rule and the text of a warning; None for other records."""


@runtime_checkable
class Tracker(Protocol):
    """A run that is open at a tracker.

    The class of a tracker also has `check(project)`, a static method that refuses a project, or a
    machine without credentials, before a training begins. `kind(project, run)`, where `run` is a
    `TrackedRun`, creates the run at the tracker or resumes it by its id.
    """

    known: int | None
    """The number of rows that the tracker had when the run was opened, if that is certain. If it is
    None, the tracker leaves out by itself what it has already got."""

    def send(self, rows: Sequence[Row]) -> None:
        """Send rows, which continue those at the tracker."""

    def close(self, end: str | None) -> None:
        """Send pending rows, and close the run.

        Args:
          end: the reason why the training ended; None if it has not ended, or was killed.
        """


def targets_of(texts: Sequence[str]) -> list[Target]:
    """Parse targets from texts such as `wandb:PROJECT`; a comma separates several.

    Raises:
      UserError: a text names no tracker or no project, or two name the same tracker.
    """
    found: dict[str, Target] = {}
    for text in ",".join(texts).split(",") if texts else ():
        name, _, project = text.partition(":")
        if name not in TRACKERS:
            hint = did_you_mean(name, TRACKERS, f"trackers are {', '.join(TRACKERS)}")
            raise UserError(f"{text!r} names no tracker as wandb:PROJECT does; {hint}")
        if not project.strip():
            raise UserError(f"{text!r} names no project; give one, as in {name}:translation")
        if found.setdefault(name, Target(name, project)).project != project:
            raise UserError(
                f"{found[name]} and {text} are two projects of {name}; a run is sent to one of them"
            )
    return list(found.values())


def kind_of(target: Target) -> Any:
    """Return the class of a target's tracker, and import its library.

    Raises:
      UserError: the library is not installed.
    """
    with needs_extra(target.tracker, str(target)):
        return load_named(TRACKERS[target.tracker])


def failed(end: str | None) -> bool:
    """Return whether an error ended the training, by the record of its end."""
    return end is not None and end.startswith("error: ")
