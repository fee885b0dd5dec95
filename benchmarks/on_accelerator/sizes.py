"""The sizes of the work on an accelerator, and of the tiny work on a CPU."""

from t2t_jax.config import Config
from t2t_jax.config.file import load_config

TINY = {
    "model.d_model": 32,
    "model.num_heads": 4,
    "model.d_ff": 64,
    "model.num_encoder_layers": 1,
    "model.num_decoder_layers": 1,
    "data.vocab_size": 300,
}
"""Fields of a small model, to try a program on a CPU."""


def config_of(model: str, dtype: str, tiny: bool) -> Config:
    """Return the config of the paper's base or big model, with a step's batch in one pass.

    Args:
      model: "base" or "big".
      dtype: the dtype to compute in.
      tiny: whether to make the sizes of the model small.
    """
    changes = {"model.compute_dtype": dtype, "parallel.tokens_per_device": None}
    return load_config(f"configs/{model}.py").replace(changes | (TINY if tiny else {}))


def training_shape(tiny: bool) -> tuple[int, int]:
    """Return the rows of a batch and the tokens of a row's side: 25,000 tokens, as in the paper."""
    return (4, 8) if tiny else (392, 64)


QUEUED = 10
"""The training steps that are taken without waiting in between, as a training run takes them."""


def repeats(tiny: bool) -> int:
    """Return how many times everything is measured."""
    return 2 if tiny else 10
