"""The flags of `train` and `sweep` that send the logs of runs to trackers."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from t2t_jax.plugins import TrainingFlags


@dataclass(frozen=True)
class TrainFlags(TrainingFlags):
    """The flag `--track` of `train`: the trackers to send the log to."""

    common: ClassVar[tuple[str, ...]] = ("track",)
    track: tuple[str, ...] = ()
    """Trackers to send the log to: wandb:PROJECT, mlflow:EXPERIMENT, trackio:PROJECT. A resumed run
    also keeps its earlier trackers. A failing tracker does not stop training."""

    def check(self, workdir: Path) -> None:
        """Refuse unknown trackers, and projects other than those of an earlier start."""
        from t2t_jax.extras.trackers.follower import read_targets
        from t2t_jax.extras.trackers.tracker import parse_targets

        parse_targets(self.track, read_targets(workdir))

    def around(self, workdir: Path) -> AbstractContextManager[None]:
        """Return a context manager that sends the run's log to its trackers."""
        from t2t_jax.extras.trackers.follower import follow

        return follow(workdir, self.track)


@dataclass(frozen=True)
class SweepFlags(TrainFlags):
    """The flag `--track` of `sweep`, which names the trackers to send logs to."""

    common: ClassVar[tuple[str, ...]] = ()
    track: tuple[str, ...] = ()
    """Trackers to send the log of each sweep run to: wandb:PROJECT, mlflow:EXPERIMENT,
    trackio:PROJECT."""

    def check(self, workdir: Path) -> None:
        """Refuse trackers that this machine cannot use."""
        if self.track:
            from t2t_jax.extras.trackers.tracker import parse_targets

            for target in parse_targets(self.track):
                target.check()
