"""A trained model apart from its run, which formats are written from and read into."""

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
    """A trained model: its config, its vocabulary and its parameters on the host."""

    config: Config
    """The config of the run that trained the model; it has the moving average of parameters where
    the parameters are that average."""
    vocabulary: Vocabulary
    """The vocabulary of sources and targets."""
    arrays: Arrays
    """The parameters, as `modules.names` names them."""
    steps: tuple[int, ...]
    """The training steps of the checkpoints that the parameters are the mean of; () if unknown."""
    records: Mapping[str, bytes] = field(default_factory=dict)
    """The files, by name, in which the run recorded the model's origin and its quality."""


def portable_model(
    workdir: Path,
    *,
    average: int | None = None,
    step: int | Literal["best"] | None = None,
    parallel: MeshConfig | None = None,
) -> PortableModel:
    """Return the model of a run, from the checkpoints that `t2t_jax.load` would take."""
    translator = load(workdir, average=average, step=step, parallel=parallel)
    decay = next(iter(translator.ema_decays), None)
    there = {name: workdir / name for name in RECORDS}
    return PortableModel(
        translator.config.replace({"training.ema_decay": decay}),
        translator.vocabulary,
        named_arrays(translator.params),
        translator.steps,
        {name: path.read_bytes() for name, path in there.items() if path.is_file()},
    )
