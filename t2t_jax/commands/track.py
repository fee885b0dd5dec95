"""The command that sends a run to trackers such as W&B."""

import math
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Annotated

import tyro

from t2t_jax.commands.flag_table import OneRun
from t2t_jax.errors import UserError
from t2t_jax.system.fetched_path import check_own


@dataclass(frozen=True)
class TrackCommand:
    """Send the log of a run to W&B, MLflow or trackio, each record once, wherever it was trained.

    What was sent before is not sent again. Records of steps after the last checkpoint of a run that
    has not ended are sent later, as the run may take these steps again.
    """

    workdir: OneRun = tyro.MISSING
    """Directory of the run, finished or under way."""
    trackers: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="TRACKER:PROJECT")
    ] = ()
    """Where the run is sent: wandb:PROJECT, mlflow:EXPERIMENT or trackio:PROJECT. Without any, it
    is where the run was sent before."""
    follow: bool = False
    """Go on until the training has ended. Ctrl-C ends it before; the same command goes on then."""
    interval: float = 5.0
    """With --follow: seconds between two looks at the log."""

    def run(self) -> int:
        """Send the run, print how many records each tracker has, and return the exit code, 0."""
        if not 0 < self.interval < math.inf:
            raise UserError(f"--interval {self.interval} is no time; give seconds above 0, as 5")
        from t2t_jax.run.trackers.follower import Follower, remembered
        from t2t_jax.run.trackers.tracker import targets_of
        from t2t_jax.workdir import read_config

        read_config(self.workdir)  # which refuses what is no run
        check_own(self.workdir)
        targets = targets_of(self.trackers) or remembered(self.workdir)
        if not targets:
            raise UserError(
                f"{self.workdir} was sent to no tracker yet; name one, as in track "
                f"{self.workdir} wandb:translation"
            )
        followers = [Follower(self.workdir, target) for target in targets]
        with ExitStack() as stack:
            for follower in followers:
                try:
                    stack.enter_context(follower.held())
                except BlockingIOError as error:
                    raise UserError(
                        f"another process sends {self.workdir} to {follower.target}, such as "
                        "that of its training; wait for it"
                    ) from error
            while self.follow:
                for follower in followers:
                    follower.follow()
                if all(follower.has_ended for follower in followers):
                    break
                time.sleep(self.interval)
            for follower in followers:
                follower.follow(is_over=True)
                print(f"{follower.target} has {follower.rows:,} records of {self.workdir}")
        errors = [f"{one.target}: {one.error}" for one in followers if one.error]
        if errors:
            raise UserError(f"{'; '.join(errors)}; the same command sends the rest")
        return 0
