"""The command `train`: train a model, or resume a run."""

import dataclasses
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import tyro

from t2t_jax.commands.config import config_named
from t2t_jax.commands.flag_table import (
    ConfigFields,
    NewRun,
    changed_flags,
    flag_name,
    flags_of_plugins,
    with_plugins,
)
from t2t_jax.commands.flags import CommandLine, parse_flags, stored_config, with_family
from t2t_jax.config import Config
from t2t_jax.errors import UserError
from t2t_jax.plugins import TrainingFlags
from t2t_jax.system.bucket import as_path
from t2t_jax.system.host import Cloud

_OF_TRAINING = "profile_steps", "preemption_notices", "mirror_dir", "dry_run"


@dataclass(frozen=True)
class TrainCommand:
    """Train a Transformer, or resume a run."""

    common: ClassVar = ("config", "dry_run")
    examples: ClassVar = (
        "--config configs/quickstart.py runs/quickstart",
        "--config configs/base.py --data.corpus text:corpora/mine runs/mine --dry-run",
        "runs/mine --training.num-train-steps 200000",
    )
    workdir: NewRun = tyro.MISSING
    """Run directory, on disk or in a bucket: s3://BUCKET/NAME or gs://BUCKET/NAME."""
    config: str | None = None
    """Config file, such as configs/base.py or configs/grid.py:NAME; or the directory of another
    run, for a new run with the same config. Not needed to resume a run."""
    dry_run: bool = False
    """Check the inputs of training on all processes, and print what training would do. Write
    nothing except tokenized text in the cache."""
    profile_steps: str | None = None
    """Write a profile of steps FIRST:LAST, such as 100:105, into the run directory, for xprof and
    Perfetto. SIGUSR1 makes a training process profile its next 10 steps."""
    preemption_notices: Cloud | None = None
    """Poll the metadata server of the cloud for preemption and maintenance notices, and write a
    checkpoint at the first notice. SIGTERM is handled without this flag."""
    mirror_dir: Path | None = None
    """For a run in a bucket, the local directory to train in; files are uploaded from there. By
    default, the user's cache directory."""
    coordinator: str | None = None
    """HOST:PORT of process 0, for a run of several processes. By default, the environment (Slurm,
    Open MPI, a TPU pod) sets the coordinator, the number of processes and the process index."""
    num_processes: int | None = None
    """Number of processes, for a run of several processes."""
    process_id: int | None = None
    """Index of this process from 0, for a run of several processes."""
    fields: ConfigFields = field(default_factory=Config)

    def run(self) -> int:
        """Train, or do a dry run, and return the exit code."""
        if replacing := self._instead():
            return replacing.run(self.fields)
        from t2t_jax.parallel.devices import all_devices
        from t2t_jax.parallel.processes import is_main, join

        # Processes have to join before JAX initializes its devices.
        config: Config = self.fields
        minutes, hang_minutes = config.parallel.rendezvous_minutes, config.parallel.hang_minutes
        join(self.coordinator, self.num_processes, self.process_id, minutes, hang_minutes)
        from t2t_jax.run.dry_run import dry_run
        from t2t_jax.run.profile import check_profiled, steps_of
        from t2t_jax.run.trainer import train

        all_devices()  # which raises a UserError if there is none
        profile_steps = steps_of(self.profile_steps) if self.profile_steps else None
        check_profiled(profile_steps, self.fields.training.num_train_steps)
        plugin_flags = flags_of_plugins(self)
        for part in plugin_flags:
            part.check(self.workdir)
        if self.dry_run:
            lines = dry_run(self.fields, self.workdir)
            if is_main():
                print(*lines, sep="\n")
            return 0
        with ExitStack() as stack:
            for part in plugin_flags:
                stack.enter_context(part.around(self.workdir))
            run = train(
                self.fields,
                self.workdir,
                profile_steps=profile_steps,
                preemption_notices=self.preemption_notices,
                mirror_dir=self.mirror_dir,
            )
        return run.exit_code

    def _instead(self) -> TrainingFlags | None:
        """Return the plugin flags that replace training by other work, such as --compile-only.

        Return None without such a flag.
        """
        plugin_flags = flags_of_plugins(self)
        for part in plugin_flags:
            if changed := changed_flags(part, part.instead):
                conflicts = changed_flags(self, _OF_TRAINING)
                for plugin in plugin_flags:
                    conflicts += [] if plugin is part else changed_flags(plugin)
                if conflicts:
                    raise UserError(
                        f"{' and '.join(conflicts)} cannot be combined with {changed[0]}, "
                        "which trains nothing; leave out one of them"
                    )
                return part
        return None


def train_command(arguments: Sequence[str], program: str = "t2t-jax train") -> TrainCommand:
    """Parse the command line of `t2t-jax train`; `entry_command` calls this function by its name.

    The defaults of config flags come from --config, or else from the run to resume.
    """
    if not arguments:
        raise UserError(
            f"{program} takes a config and the directory of the run, as in --config "
            "configs/base.py --workdir runs/base; see --help"
        )
    kind = with_plugins(TrainCommand, "train")
    base: Config | None = None
    workdir: Path | None = None

    def defaults(line: CommandLine) -> TrainCommand:
        nonlocal base, workdir
        config_name, workdir = line.value_of("--config"), as_path(line.run) if line.run else None
        base = config_named(config_name) if config_name else stored_config(workdir)
        command = kind(fields=with_family(base or Config(), line))
        replacing = {flag_name(name) for part in flags_of_plugins(command) for name in part.instead}
        needs_run = replacing.isdisjoint(line.flags)
        return command if needs_run else dataclasses.replace(command, workdir=Path())

    command = parse_flags(kind, arguments, program, defaults)
    if base is None:
        problem = f"{workdir} holds no run to resume" if workdir else "there is no config"
        raise UserError(f"{problem}; name a config, as in --config configs/base.py")
    return command
