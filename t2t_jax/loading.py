"""A trained model out of its run directory."""

from pathlib import Path
from typing import Literal

import jax

from t2t_jax.data.vocabulary import BOS_ID
from t2t_jax.decoding.translator import Translator
from t2t_jax.modules.transformer import Transformer
from t2t_jax.training.checkpoint import load_parameters
from t2t_jax.training.step import abstract_state
from t2t_jax.workdir import read_config, read_vocabulary


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
    config, vocabulary = read_config(workdir), read_vocabulary(workdir)
    model = Transformer(config.model, len(vocabulary), BOS_ID)
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    like = abstract_state(config, model, device).params
    params, steps = load_parameters(workdir, like, average=average, step=step)
    return Translator(config, vocabulary, params, steps=steps)
