"""The command that rehearses a run on all of its processes before it is paid for."""

import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from t2t_jax.commands.tables import print_line, print_result
from t2t_jax.commands.train import TrainCommand, command_of_run
from t2t_jax.errors import UserError

if TYPE_CHECKING:
    from t2t_jax.run.preflight.report import PreflightReport


@dataclass(frozen=True)
class PreflightCommand(TrainCommand):
    """Check on all processes what a training needs, and train nothing.

    Takes the flags of train, and is started as train is: on every host, by the same launcher. Exit
    code 1 says that a check has failed.
    """

    def run(self) -> int:
        """Do the checks, print the report on process 0, and return the exit code."""
        if self.compile_only is not None or self.write_program is not None or self.dry_run:
            raise UserError(
                "--compile-only, --write-program and --dry-run are for t2t-jax train; leave them "
                "out"
            )
        # Before the processes meet, as one that imports for long gives no sign of life.
        from t2t_jax.run.preflight.rehearsal import rehearse

        self.meet()
        outcome = rehearse(self.fields, self.workdir, _show)
        if outcome.leaves_threads:  # JAX would wait for those that are gone, and then abort
            with suppress(OSError):
                sys.stdout.flush()
            os._exit(outcome.exit_code)
        return outcome.exit_code


def _show(report: "PreflightReport") -> None:
    for table in report.tables():
        print_result(table)
        print_line("")
    for line in report.lines():
        print_line(line)


preflight_command = partial(command_of_run, PreflightCommand)
"""The function that returns the command that a command line asks for; see `entry_command`."""
