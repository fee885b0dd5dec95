"""The command `launch`: write the job file of a training run and submit it to a scheduler."""

import shlex
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from t2t_jax.commands.flag_table import changed_flags, flags_of_plugins
from t2t_jax.commands.flags import parse_flags
from t2t_jax.commands.help import wrap
from t2t_jax.commands.train import train_command
from t2t_jax.errors import UserError, did_you_mean, quote, warn
from t2t_jax.extras.launch.job import LaunchedTraining, TrainJob
from t2t_jax.extras.launch.schedulers import Kubernetes, SkyPilot, Slurm, Ssh, Tpu
from t2t_jax.system.atomic_file import write_whole
from t2t_jax.system.bucket import BucketPath

_KINDS: tuple[type[TrainJob], ...] = Slurm, Kubernetes, Tpu, SkyPilot, Ssh
SCHEDULERS = {kind.__name__.lower(): kind for kind in _KINDS}
"""The job class of each scheduler by its name; the class's fields are flags of `launch`."""
_JOB_FLAGS = "coordinator", "num_processes", "process_id", "dry_run"


@dataclass(frozen=True)
class LaunchCommand:
    """Train on several hosts, as a job of a scheduler that restarts it after an interruption."""

    job: TrainJob
    training: LaunchedTraining

    def run(self) -> int:
        """Check, write, print and submit the job, and return the exit code."""
        from t2t_jax.data.corpus import open_corpus
        from t2t_jax.parallel.processes import check_free
        from t2t_jax.workdir import check_workdir

        job, training = self.job, self.training
        job.check(training)
        path, path_note = self._path()
        text = job.text(training, path)
        if job.print:
            print(text, end="")
            return 0
        if self._sees_run():
            check_workdir(training.config, training.workdir)
            check_free(training.workdir)
        if job.shares_files and "://" not in training.config.data.corpus:
            open_corpus(training.config.data)
        job.check_queue(path.parent)
        new_folders = [folder for folder in path.parents if not folder.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
        old_content = path.read_bytes() if path.exists() else None
        write_whole(path, text.encode())
        print(text)
        print(f"written to {path}{path_note}", flush=True)
        if shutil.which(job.client) is None:
            command = shlex.join(job.command(path))
            print(f"{job.client} is not installed here; elsewhere, submit the job by: {command}")
            return 0
        try:
            return job.submit(path)
        except UserError:  # a refused job leaves the files as they were
            if old_content is None:
                path.unlink(missing_ok=True)
            else:
                write_whole(path, old_content)
            for folder in new_folders:
                with suppress(OSError):
                    folder.rmdir()
            raise

    def _sees_run(self) -> bool:
        workdir = self.training.workdir
        if not isinstance(workdir, BucketPath):
            return self.job.shares_files
        try:
            workdir.exists()
        except UserError as error:  # hosts may have credentials that this machine lacks
            warn(f"cannot check whether another process uses {workdir}: {error}")
            return False
        return True

    def _path(self) -> tuple[Path, str]:
        """Return the path of the job file, and why it is not in the run directory ("" if it is)."""
        from t2t_jax.workdir import LAUNCH

        workdir, name = self.training.workdir, self.job.file
        if isinstance(workdir, BucketPath):
            return Path(LAUNCH, workdir.name, name), ", as the run is in a bucket"
        if not (self.job.shares_files or workdir.is_dir()):
            return Path(LAUNCH, workdir.name, name), ", as the run is on other machines"
        return workdir / LAUNCH / name, ""


def launch_command(arguments: Sequence[str], program: str = "t2t-jax launch") -> LaunchCommand:
    """Parse the command line of `launch`: a scheduler, its flags, --, and a train command.

    Raises:
      UserError: the command line is invalid.
      SystemExit: after printing help.
    """
    names, usage = ", ".join(SCHEDULERS), usage_of_launch(program)
    scheduler, *flags = arguments or [""]
    if scheduler in ("-h", "--help", "--help-all"):
        print(f"usage: {usage}", "", *wrap(LaunchCommand.__doc__ or ""), "", sep="\n")
        print(f"The schedulers: {names}.\nThe flags of each: {program} slurm --help")
        raise SystemExit(0)
    if scheduler not in SCHEDULERS:
        hint = did_you_mean(scheduler, SCHEDULERS, f"as in {usage}")
        problem = f"not {scheduler!r}" if scheduler else "which is missing"
        raise UserError(f"{program} takes a scheduler first ({names}), {problem}; {hint}")
    separator = flags.index("--") if "--" in flags else len(flags)
    flags, command = flags[:separator], flags[separator + 1 :]
    if command[:1] != ["train"] and not {"-h", "--help", "--help-all"} & {*flags}:
        raise UserError(f"{program} {scheduler} takes -- and train RUN last, as in {usage}")
    job = parse_flags(SCHEDULERS[scheduler], flags, f"{program} {scheduler}")
    return LaunchCommand(job, _training(command[1:]))


def usage_of_launch(program: str) -> str:
    """Return the usage line of `launch`."""
    return f"{program} SCHEDULER [--flag ...] -- train [--flag ...] RUN"


def _training(arguments: Sequence[str]) -> LaunchedTraining:
    for argument in arguments:
        if len(argument.splitlines()) > 1:
            raise UserError(
                f"{quote(argument)} has several lines; a job takes arguments of one line"
            )
    train = train_command(arguments)
    bad_flags = changed_flags(train, _JOB_FLAGS)
    for plugin_flags in flags_of_plugins(train):
        bad_flags += changed_flags(plugin_flags, plugin_flags.instead)
    if bad_flags:
        raise UserError(
            f"{bad_flags[0]} cannot be used in a job, which places its processes and trains by "
            "itself; leave the flag out"
        )
    return LaunchedTraining(tuple(arguments), train.fields, train.workdir)
