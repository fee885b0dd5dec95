"""Define the in-memory form of a trained model that exports write and imports return."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from t2t_jax.config import Config, MeshConfig
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.modules.names import Arrays, named_arrays
from t2t_jax.run.loading import load
from t2t_jax.workdir import RECORDS


@dataclass(frozen=True)
class PortableModel:
    """A trained model in host memory: config, vocabulary and parameters."""

    config: Config
    """The config of the training run. It sets `training.ema_decay` only if the parameters are that
    moving average."""
    vocabulary: Vocabulary
    """The vocabulary of sources and targets."""
    arrays: Arrays
    """The parameters, under the names of `modules.names`."""
    steps: tuple[int, ...]
    """The steps of the checkpoints that the parameters average; () if unknown."""
    records: Mapping[str, bytes] = field(default_factory=dict)
    """The contents, by file name, of the run's records of the model's origin and quality."""


def portable_model(
    workdir: Path,
    *,
    average: int | None = None,
    step: int | Literal["best"] | None = None,
    parallel: MeshConfig | None = None,
) -> PortableModel:
    """Load the model of a run, with the same choice of checkpoints as `t2t_jax.load`."""
    translator = load(workdir, average=average, step=step, parallel=parallel)
    decay = next(iter(translator.ema_decays), None)
    records = {name: workdir / name for name in RECORDS}
    return PortableModel(
        translator.config.replace({"training.ema_decay": decay}),
        translator.vocabulary,
        named_arrays(translator.params),
        translator.steps,
        {name: path.read_bytes() for name, path in records.items() if path.is_file()},
    )
