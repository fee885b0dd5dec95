"""The flags that send the log of a training, or of the cells of a grid, to trackers."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from t2t_jax.plugins import TrainingFlags


@dataclass(frozen=True)
class TrainFlags(TrainingFlags):
    """The flag of `train` that names trackers."""

    common: ClassVar[tuple[str, ...]] = ("track",)
    track: tuple[str, ...] = ()
    """Trackers to send the log to: wandb:PROJECT, mlflow:EXPERIMENT, trackio:PROJECT. A resumed run
    also keeps its earlier trackers. A failing tracker does not stop training."""

    def check(self, workdir: Path) -> None:
        """Refuse trackers of unknown names, and other projects than those of an earlier start."""
        from t2t_jax.extras.trackers.follower import remembered
        from t2t_jax.extras.trackers.tracker import targets_of

        targets_of(self.track, remembered(workdir))

    def around(self, workdir: Path) -> AbstractContextManager[None]:
        """Follow the run, for these trackers and those of an earlier start."""
        from t2t_jax.extras.trackers.follower import followed

        return followed(workdir, self.track)


@dataclass(frozen=True)
class SweepFlags(TrainFlags):
    """The flag of `sweep` that names trackers."""

    common: ClassVar[tuple[str, ...]] = ()
    track: tuple[str, ...] = ()
    """Trackers to send the log of each sweep run to: wandb:PROJECT, mlflow:EXPERIMENT,
    trackio:PROJECT."""

    def check(self, workdir: Path) -> None:
        """Refuse trackers that cannot be used from here."""
        if self.track:
            from t2t_jax.extras.trackers.tracker import targets_of

            for target in targets_of(self.track):
                target.check()
