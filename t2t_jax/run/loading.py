"""Load a trained model from its run directory, or an ensemble from several."""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from html import escape
from pathlib import Path
from typing import Literal

from t2t_jax.config import MeshConfig
from t2t_jax.config.cost import num_parameters
from t2t_jax.config.running import run_file
from t2t_jax.decoding.translator import Translator
from t2t_jax.errors import UserError, quote, warn
from t2t_jax.modules.named_functions import function_problems
from t2t_jax.modules.parameters import Parameters
from t2t_jax.parallel.devices import local_devices
from t2t_jax.parallel.mesh import make_mesh
from t2t_jax.run.history import History, dev_score, score_at, score_name
from t2t_jax.run.stored_parts import warn_of_changed_parts
from t2t_jax.system.html_table import html_table
from t2t_jax.system.opening import resolve_run
from t2t_jax.training.checkpoint_files import steps_of_run
from t2t_jax.training.parameters import described_parameters, load_parameters, reads_ema
from t2t_jax.workdir import CHECKPOINTS, StoredRun, read_log, read_run

_Path = str | os.PathLike[str]
_MOST_ROWS = 10


def load(
    workdir: _Path | Sequence[_Path],
    *,
    average: int | None = None,
    step: int | Literal["best"] | None = None,
    parallel: MeshConfig | None = None,
    register: _Path | Sequence[_Path] | None = None,
) -> Translator:
    """Load the translator of a run, or an ensemble of several runs.

    Args:
      workdir: "demo" for the bundled translator; or a run directory, also in a bucket
        (`s3://bucket/name`), on the hub (`hf://NAME/MODEL` or `hf://NAME/MODEL@REVISION`), or in an
        archive (.tar.gz, .zip); or a list for an ensemble with the config of the first run.
      average: the number of last checkpoints to average (section 6.1). None uses the moving average
        of a run with `training.ema_decay`, or else `checkpoint.average` of the run's config. If the
        run has fewer checkpoints, all are averaged. The best checkpoint is never averaged.
      step: the step of the last of these checkpoints; None is the newest, "best" the checkpoint
        with the best dev score.
      parallel: the device mesh of this process, such as `MeshConfig(fsdp=4)` for a model that does
        not fit on one device. None holds all parameters on each device, for different batch rows.
      register: Python files that register parts of the config. `load` executes them first, and no
        other file of a run; read them before.

    Raises:
      UserError: `workdir` is not a run directory, its checkpoints are missing, damaged or of
        another run, the runs differ in vocabulary or languages, the parameters do not fit the
        mesh, or a file of `register` fails.
    """
    workdirs: Sequence[_Path] = workdir if isinstance(workdir, list | tuple) else [workdir]  # type: ignore[list-item]
    for path in workdirs:
        if not isinstance(path, str | os.PathLike):
            raise UserError(
                f"workdir={quote(path)} is a {type(path).__name__}; give the path of a run "
                "directory, or a list of several"
            )
    for file in [register] if isinstance(register, str | os.PathLike) else register or ():
        run_file(os.fspath(file))
    runs = [read_run(resolve_run(path)) for path in workdirs]
    if not runs:
        raise UserError("no run directory is given; name one, or several for an ensemble")
    for run in runs[1:]:
        _check_same(runs[0], run)
    for run in runs:
        warn_of_changed_parts(run.config, run.workdir)
        for problem in function_problems(run.config):
            warn(f"{run.workdir}: {problem}")
    if not isinstance(parallel, MeshConfig | None):
        raise UserError(
            f"parallel={quote(parallel)} is a {type(parallel).__name__}; give a "
            "t2t_jax.MeshConfig, as MeshConfig(fsdp=2)"
        )
    mesh = make_mesh(parallel or MeshConfig(), local_devices())
    loaded: list[tuple[Parameters, list[int]]] = []
    for run in runs:
        abstract_params = described_parameters(run, mesh)
        loaded.append(load_parameters(run, abstract_params, average=average, step=step))
    members = [(run.config.model, p) for run, (p, _) in zip(runs[1:], loaded[1:], strict=True)]
    steps = [run_step for _, run_steps in loaded for run_step in run_steps]
    ema_configs = (run.config.training for run in runs if reads_ema(run.config, average))
    decays = [training.ema_decay for training in ema_configs if training.ema_decay is not None]
    first = runs[0]
    translator = Translator(
        first.config, first.vocabulary, loaded[0][0], others=members, steps=steps, ema_decays=decays
    )
    if len(runs) == 1 and steps:
        return translator.replaced(_score=partial(_score, first.workdir, steps[-1]))
    return translator


def _score(workdir: Path, step: int) -> str:
    with suppress(UserError, OSError):  # the log may have been deleted since loading
        return score_at(History.of(read_log(workdir)).evaluations, step)
    return ""


def _check_same(first: StoredRun, second: StoredRun) -> None:
    both_runs = f"{first.workdir} and {second.workdir}"
    if first.vocabulary.fingerprint != second.vocabulary.fingerprint:
        raise UserError(
            f"{both_runs} have different vocabularies; an ensemble takes runs that were trained "
            "with the same vocabulary.model"
        )
    corpora = first.config.data, second.config.data
    languages = [f"{data.source_language}-{data.target_language}" for data in corpora]
    if languages[0] != languages[1]:
        raise UserError(
            f"{both_runs} translate different languages ({' and '.join(languages)}); an ensemble "
            "takes runs of one language pair"
        )


@dataclass(frozen=True)
class TrainedRun:
    """A run after training, which ended, paused or was stopped by a signal."""

    directory: Path
    """The run directory, which `t2t_jax.load` can read."""
    exit_code: int
    """The exit code of `t2t-jax train`: 0 after the end or a pause; 128 + n after signal n, when
    the same call resumes the run."""
    history: History = field(repr=False)
    """The records of the log since the first step: `training`, `evaluations` (on dev), `warnings`,
    and `end`, the reason for the end. Each record is a dictionary, a line of `log.jsonl`."""

    def __repr__(self) -> str:
        """Describe the run by directory, size, step and dev score."""
        size_text = "unknown"
        with suppress(UserError, OSError):  # the directory may have been deleted
            run = read_run(self.directory)
            size_text = f"{num_parameters(run.config.model, len(run.vocabulary)):,}"
        # The last steps may have no log record, and the checkpoints may have been deleted.
        steps = {record["step"] for record in self.history.training} | {0}
        step = max(steps.union(steps_of_run(self.directory, CHECKPOINTS)))
        score_text = score_at(self.history.evaluations)
        return f"<TrainedRun: {self.directory}, {size_text} parameters, step {step:,}{score_text}>"

    def _repr_html_(self) -> str:
        """Return the description and a table of the last evaluations on dev, for notebooks."""
        last = self.history.evaluations[-_MOST_ROWS:]
        rows = [(f"{record['step']:,}", f"{dev_score(record):.2f}") for record in last]
        header = [("step", f"{score_name(last[-1])} on dev")] if last else []
        return f"<p>{escape(repr(self))}</p>{html_table(header + rows)}"

    def load(
        self,
        *,
        average: int | None = None,
        step: int | Literal["best"] | None = None,
        parallel: MeshConfig | None = None,
    ) -> Translator:
        """Load the model of the run by `t2t_jax.load`, which describes arguments and errors."""
        return load(self.directory, average=average, step=step, parallel=parallel)
