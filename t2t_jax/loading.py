"""A trained model out of its run directory."""

from pathlib import Path
from typing import Literal

import jax

from t2t_jax.config import Config
from t2t_jax.data.vocabulary import BOS_ID, Vocabulary
from t2t_jax.decoding.translator import Translator
from t2t_jax.errors import UserError
from t2t_jax.modules.transformer import Transformer
from t2t_jax.training.checkpoint import load_parameters
from t2t_jax.training.step import init_state

CONFIG_FILE, VOCABULARY_FILE = "config.json", "vocabulary.model"


def read_config(workdir: Path) -> Config:
    """The config of a run.

    Raises:
      UserError: `workdir` is not a run directory.
    """
    path = workdir / CONFIG_FILE
    if not path.is_file():
        raise UserError(f"{workdir} is not a run directory: it has no {CONFIG_FILE}")
    return Config.from_json(path.read_text(encoding="utf-8"))


def load(
    workdir: str | Path, *, average: int = 1, step: int | Literal["best"] | None = None
) -> Translator:
    """The translator of a run. Nothing but the run directory is needed.

    Args:
      workdir: the run directory.
      average: how many of the last checkpoints to average (section 6.1).
      step: the last of them; None is the newest, "best" the one with the best dev score.

    Raises:
      UserError: `workdir` is not a run directory, or its checkpoints are missing or damaged.
    """
    workdir = Path(workdir)
    config = read_config(workdir)
    vocabulary = Vocabulary.load(workdir / VOCABULARY_FILE)
    model = Transformer(config.model, len(vocabulary), BOS_ID)
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    like = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device),
        jax.eval_shape(lambda: init_state(config, model)).params,
    )
    params, steps = load_parameters(workdir, like, average=average, step=step)
    return Translator(config, vocabulary, params, steps=steps)
