"""The command that sends a run to trackers such as W&B."""

import math
import shlex
import threading
import time
from dataclasses import dataclass
from typing import Annotated

import tyro

from t2t_jax.commands.flag_table import OneRun
from t2t_jax.errors import UserError, in_one_line
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
        from t2t_jax.extras.trackers.follower import followed, remembered, send_run
        from t2t_jax.extras.trackers.tracker import targets_of
        from t2t_jax.workdir import END, read_config, read_log

        read_config(self.workdir)  # which refuses what is no run
        check_own(self.workdir)
        stored_targets = remembered(self.workdir)
        targets = targets_of(self.trackers, stored_targets) or [*stored_targets]
        if not targets:
            raise UserError(
                f"{self.workdir} was sent to no tracker yet; name one, as in track "
                f"{shlex.quote(str(self.workdir))} wandb:translation"
            )
        if self.follow:
            with followed(self.workdir, [*map(str, targets)]):  # which checks them
                while all(record["of"] != END for record in read_log(self.workdir)):
                    time.sleep(self.interval)
        else:
            for target in targets:
                target.check()
        ended = threading.Event()
        ended.set()
        for target in targets:
            try:
                count = send_run(self.workdir, target, ended)
            except Exception as error:  # of any kind: it is the code of somebody else
                text = in_one_line(f"{error} ({type(error).__name__})")
                raise UserError(f"{target}: {text}; the same command sends the rest") from error
            print(f"{target} has {count:,} records of {self.workdir}")
        return 0
