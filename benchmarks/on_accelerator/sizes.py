"""How large the work is: on an accelerator, and in the tiny form for a CPU."""

from t2t_jax.config import Config
from t2t_jax.config.file import load_config

_TINY = {
    "model.d_model": 32,
    "model.num_heads": 4,
    "model.d_ff": 64,
    "model.num_encoder_layers": 1,
    "model.num_decoder_layers": 1,
    "data.vocab_size": 300,
}


def config_of(model: str, dtype: str, tiny: bool) -> Config:
    """The config of the paper's base or big model, which takes a step's batch in one pass.

    Args:
      model: "base" or "big".
      dtype: the dtype to compute in.
      tiny: whether its sizes are to be made small.
    """
    changes = {"model.compute_dtype": dtype, "parallel.tokens_per_device": None}
    return load_config(f"configs/{model}.py").replace(changes | (_TINY if tiny else {}))


def training_shape(tiny: bool) -> tuple[int, int]:
    """The rows of a batch and the tokens of each side of a row: 25,000 tokens, as in the paper."""
    return (4, 8) if tiny else (392, 64)


def repeats(tiny: bool) -> int:
    """The times that everything is measured."""
    return 2 if tiny else 10
