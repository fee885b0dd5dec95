"""Load a trained model from its run directory, or an ensemble from several."""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from t2t_jax.config import MeshConfig
from t2t_jax.config.cost import num_parameters
from t2t_jax.decoding.translator import Translator
from t2t_jax.errors import UserError, quote, warn
from t2t_jax.modules.named_functions import function_problems
from t2t_jax.modules.parameters import Parameters
from t2t_jax.parallel.devices import local_devices
from t2t_jax.parallel.mesh import make_mesh
from t2t_jax.run.history import History, score_at
from t2t_jax.system.opening import opened
from t2t_jax.training.parameters import described_parameters, load_parameters, reads_ema
from t2t_jax.workdir import StoredRun, read_log, read_run

_Path = str | os.PathLike[str]


def load(
    workdir: _Path | Sequence[_Path],
    *,
    average: int | None = None,
    step: int | Literal["best"] | None = None,
    parallel: MeshConfig | None = None,
) -> Translator:
    """Load the translator of a run, or of several runs as an ensemble, from their directories.

    Args:
      workdir: "demo" for the translator that comes with the package, or a run directory, also in a
        bucket (`s3://bucket/name`), on the hub (`hf://NAME/MODEL` or `hf://NAME/MODEL@REVISION`),
        or in an archive (.tar.gz, .zip); several make an ensemble with the config of the first.
      average: how many of the last checkpoints of a run to average (section 6.1). None is the
        moving average of a run with `training.ema_decay`, or else what its `checkpoint.average`
        says, or all if there are fewer. The best checkpoint is never averaged with others.
      step: the last of these checkpoints; None is the newest, "best" the one with the best dev
        score.
      parallel: the mesh of this process's devices for the parameters, such as `MeshConfig(fsdp=4)`
        for a model that one device cannot hold; only the mesh of a `ParallelConfig` is used. None
        is all devices, each with all parameters and other rows.

    Raises:
      UserError: `workdir` is not a run directory, its checkpoints are missing, damaged or foreign,
        the runs differ in vocabulary or languages, or the parameters cannot be sharded over the
        mesh.
    """
    given: Sequence[_Path] = workdir if isinstance(workdir, list | tuple) else [workdir]  # type: ignore[list-item]
    for each in given:
        if not isinstance(each, str | os.PathLike):
            raise UserError(
                f"workdir={quote(each)} is a {type(each).__name__}; give the path of a run "
                "directory, or a list of several"
            )
    runs = [read_run(opened(each)) for each in given]
    if not runs:
        raise UserError("no run directory is given; name one, or several for an ensemble")
    for other in runs[1:]:
        _check_same(runs[0], other)
    for run in runs:
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
        like = described_parameters(run, mesh)
        loaded.append(load_parameters(run, like, average=average, step=step))
    others = [(run.config.model, own) for run, (own, _) in zip(runs[1:], loaded[1:], strict=True)]
    steps = [one for _, its_steps in loaded for one in its_steps]
    averaged = (run.config.training for run in runs if reads_ema(run.config, average))
    decays = [training.ema_decay for training in averaged if training.ema_decay is not None]
    first = runs[0]
    translator = Translator(
        first.config, first.vocabulary, loaded[0][0], others=others, steps=steps, ema_decays=decays
    )
    if len(runs) == 1 and steps:
        return translator.replaced(_score=partial(_score, first.workdir, steps[-1]))
    return translator


def _score(workdir: Path, step: int) -> str:
    with suppress(UserError, OSError):  # the log may be gone since the run was loaded
        return score_at(History.of(read_log(workdir)).evaluations, step)
    return ""


def _check_same(first: StoredRun, other: StoredRun) -> None:
    """Refuse a run that does not fit into an ensemble with the first."""
    both = f"{first.workdir} and {other.workdir}"
    if first.vocabulary.fingerprint != other.vocabulary.fingerprint:
        raise UserError(
            f"{both} have different vocabularies; an ensemble takes runs that were trained with "
            "the same vocabulary.model"
        )
    corpora = first.config.data, other.config.data
    languages = [f"{data.source_language}-{data.target_language}" for data in corpora]
    if languages[0] != languages[1]:
        raise UserError(
            f"{both} translate different languages ({' and '.join(languages)}); an ensemble takes "
            "runs of one language pair"
        )


@dataclass(frozen=True)
class TrainedRun:
    """A run that was trained: to its end, to a pause, or until a signal."""

    directory: Path
    """The run directory, from which `t2t_jax.load` reads it too."""
    exit_code: int
    """The exit code of a program that trains: 0 for a run that is at its end or at a pause, 128 + n
    for a run that signal n stopped, and that the same call resumes."""
    history: History = field(repr=False)
    """The records of the log since the first step: `training`, `evaluations` (on dev), `warnings`,
    and `end`, why the run ended. Each is a dictionary, as a line of `log.jsonl` is."""

    def __repr__(self) -> str:
        """Return the directory, size, step and score on dev."""
        size = "unknown"
        with suppress(UserError, OSError):  # the directory may be gone since the training
            run = read_run(self.directory)
            size = f"{num_parameters(run.config.model, len(run.vocabulary)):,}"
        step = max((record["step"] for record in self.history.training), default=0)
        score = score_at(self.history.evaluations)
        return f"<TrainedRun: {self.directory}, {size} parameters, step {step:,}{score}>"

    def load(
        self,
        *,
        average: int | None = None,
        step: int | Literal["best"] | None = None,
        parallel: MeshConfig | None = None,
    ) -> Translator:
        """Load the model of the run; see `t2t_jax.load`.

        Raises:
          UserError: the checkpoint is missing or damaged, or the mesh does not fit.
        """
        return load(self.directory, average=average, step=step, parallel=parallel)
