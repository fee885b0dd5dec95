"""The command that trains a model, or goes on with a run that was stopped."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

import tyro

from t2t_jax.commands.flag_table import MAY_STAND_ALONE, ConfigFields, NewRun
from t2t_jax.commands.flags import CommandLine, parse_flags, stored_config, with_family
from t2t_jax.config import Config
from t2t_jax.config.file import load_config
from t2t_jax.errors import UserError
from t2t_jax.system.bucket import as_path
from t2t_jax.system.host import Cloud
from t2t_jax.system.opening import opened


@dataclass(frozen=True)
class TrainCommand:
    """Train a Transformer, or go on with a run that was stopped."""

    common: ClassVar = ("config", "dry_run", "compile_only", "track")
    examples: ClassVar = (
        "--config configs/quickstart.py runs/quickstart",
        "--config configs/base.py --data.corpus text:corpora/mine runs/mine --dry-run",
        "runs/mine --training.num-train-steps 200000",
        "--config configs/big.py --compile-only h100:8",
    )
    workdir: NewRun = tyro.MISSING
    """Directory of the run, which may be in a bucket: s3://BUCKET/NAME or gs://BUCKET/NAME."""
    config: str | None = None
    """Config file: configs/base.py, or configs/grid.py:NAME; or the directory of another run, for a
    new run with the same config. A run that goes on needs none."""
    compile_only: Annotated[str | None, MAY_STAND_ALONE] = None
    """Compile the step, print whether it fits and how fast it can be, and train nothing. The value
    names devices that need not be present, TPUs as v5e:4x4, GPUs as h200:8 or h100:2x8; without a
    value, it is those of this machine. Needs no RUN."""
    dry_run: bool = False
    """Check on all processes what a training needs and say what it would do; nothing stays but
    tokenised text in the cache."""
    write_program: Path | None = None
    """With --compile-only: the file for the text of the compiled program."""
    track: tuple[str, ...] = ()
    """Trackers to which the log is sent: wandb:PROJECT, mlflow:EXPERIMENT, trackio:PROJECT. A run
    that goes on is sent where it was sent before. A tracker in trouble disturbs no training."""
    profile_steps: str | None = None
    """Write a profile of these steps, FIRST:LAST as 100:105, into the run directory, for xprof and
    Perfetto. SIGUSR1 makes a training process write one of its next 10 steps."""
    metrics_port: int | None = None
    """Serve GET /metrics for Prometheus on this port of all interfaces of process 0's host."""
    preemption_notices: Cloud | None = None
    """Ask the metadata server of the cloud for notices of preemption and maintenance, and write a
    checkpoint at the first one. SIGTERM needs no such flag."""
    coordinator: str | None = None
    """For a run of several processes: HOST:PORT of process 0. Without these three flags, the
    environment (Slurm, Open MPI, a TPU pod) says whether there are several."""
    num_processes: int | None = None
    """For a run of several processes: the number of processes."""
    process_id: int | None = None
    """For a run of several processes: the number of this process, from 0."""
    fields: ConfigFields = field(default_factory=Config)

    def run(self) -> int:
        """Train, or print what training would take, as the flags say, and return the exit code."""
        if self.compile_only is not None:
            of_training = self.track, self.profile_steps, self.dry_run, self.preemption_notices
            if any(of_training) or self.metrics_port is not None:
                raise UserError(
                    "--track, --profile-steps, --metrics-port, --preemption-notices and --dry-run "
                    "are for a training, not for --compile-only; leave them out"
                )
            return self._compile(self.compile_only)
        if self.write_program is not None:
            raise UserError("--write-program is for --compile-only; add it, or leave it out")
        from t2t_jax.parallel.devices import all_devices
        from t2t_jax.parallel.processes import is_main, join

        config: Config = self.fields
        minutes, hang_minutes = config.parallel.rendezvous_minutes, config.parallel.hang_minutes
        join(self.coordinator, self.num_processes, self.process_id, minutes, hang_minutes)
        from t2t_jax.run.dry_run import rehearsed_start
        from t2t_jax.run.profile import check_profiled, steps_of
        from t2t_jax.run.trackers.follower import followed
        from t2t_jax.run.trainer import train

        all_devices()  # which may be an error of one line
        profile_steps = steps_of(self.profile_steps) if self.profile_steps else None
        check_profiled(profile_steps, self.fields.training.num_train_steps)
        if self.dry_run:
            lines = rehearsed_start(self.fields, self.workdir, self.track)
            if is_main():
                print(*lines, sep="\n")
            return 0
        with followed(self.workdir, self.track):
            return train(
                self.fields,
                self.workdir,
                profile_steps=profile_steps,
                metrics_port=self.metrics_port,
                preemption_notices=self.preemption_notices,
            ).exit_code

    def _compile(self, topology: str) -> int:
        """Print what a step of training and of search takes; return 1 if training does not fit."""
        from t2t_jax.ahead_of_time.compile import compile_ahead
        from t2t_jax.ahead_of_time.report import format_report
        from t2t_jax.ahead_of_time.search import compile_search, format_search
        from t2t_jax.ahead_of_time.topologies import devices_of

        devices = devices_of(topology)
        report = compile_ahead(self.fields, devices, self.write_program)
        print(*format_report(report), sep="\n", flush=True)
        if report.fits is False:
            return 1
        if self.fields.model.decodes:
            print("", *format_search(compile_search(self.fields, devices)), sep="\n")
        return 0


def train_command(arguments: Sequence[str], program: str = "t2t-jax train") -> TrainCommand:
    """Return the command that a command line asks for; see `entry_command`.

    Fields that no flag names are those of the config file, or else of the run in the directory.
    """
    if not arguments:
        raise UserError(
            f"{program} takes a config and the directory of the run, as in --config "
            "configs/base.py --workdir runs/base; see --help"
        )
    base = workdir = None

    def defaults(line: CommandLine) -> TrainCommand:
        nonlocal base, workdir
        file, workdir = line.value_of("--config"), as_path(line.run) if line.run else None
        base = stored_config(opened(file) if file else workdir)
        if file and base is None:
            base = load_config(file)
        command = TrainCommand(fields=with_family(base or Config(), line))
        is_read = "--compile-only" not in line.flags
        return command if is_read else dataclasses.replace(command, workdir=Path())

    command = parse_flags(TrainCommand, arguments, program, defaults)
    if base is None:
        without = f"{workdir} holds no run to go on with" if workdir else "there is no config"
        raise UserError(f"{without}; name a config, as in --config configs/base.py")
    return command
