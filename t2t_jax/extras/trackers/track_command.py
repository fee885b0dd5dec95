"""The command `track`: send a run to trackers such as W&B."""

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
    """Send the log of a run to W&B, MLflow or trackio, each record exactly once.

    Records after the last checkpoint of an unfinished run are sent later, because the run may
    repeat these steps.
    """

    workdir: OneRun = tyro.MISSING
    """Run directory; the run may still be training."""
    trackers: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="TRACKER:PROJECT")
    ] = ()
    """Trackers to send the run to: wandb:PROJECT, mlflow:EXPERIMENT or trackio:PROJECT. By default,
    the trackers that the run was sent to before."""
    follow: bool = False
    """Keep sending until training ends. After Ctrl-C, run the same command to resume."""
    interval: float = 5.0
    """With --follow, the seconds between two reads of the log."""

    def run(self) -> int:
        """Send the run, print how many records each tracker has, and return exit code 0."""
        if not 0 < self.interval < math.inf:
            raise UserError(f"--interval {self.interval} is invalid; give seconds > 0, such as 5")
        from t2t_jax.extras.trackers.follower import follow, read_targets, send_run
        from t2t_jax.extras.trackers.tracker import parse_targets
        from t2t_jax.workdir import END, read_config, read_log

        read_config(self.workdir)  # refuses a directory without a run
        check_own(self.workdir)
        stored_targets = read_targets(self.workdir)
        targets = parse_targets(self.trackers, stored_targets) or [*stored_targets]
        if not targets:
            raise UserError(
                f"{self.workdir} was sent to no tracker yet; name one, as in track "
                f"{shlex.quote(str(self.workdir))} wandb:translation"
            )
        if self.follow:
            with follow(self.workdir, [*map(str, targets)]):  # also checks the targets
                while all(record["of"] != END for record in read_log(self.workdir)):
                    time.sleep(self.interval)
        else:
            for target in targets:
                target.check()
        ended = threading.Event()
        ended.set()
        for target in targets:
            try:
                num_records = send_run(self.workdir, target, ended)
            except Exception as error:  # the tracker's library may raise anything
                text = in_one_line(f"{error} ({type(error).__name__})")
                raise UserError(f"{target}: {text}; the same command sends the rest") from error
            print(f"{target} has {num_records:,} records of {self.workdir}")
        return 0
