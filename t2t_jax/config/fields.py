"""The metadata of the fields of a config: what a field declares beside its type and default."""

from collections.abc import Callable
from typing import Any

MAY_CHANGE = {"may_change": True}
"""Marks a field that may have another value when a run is continued: it changes when and where work
is done, never the recipe."""

NOT_EXPORTED = {"exported": False}
"""Marks a field of the sections `model`, `data` and `decoding` that exported files need not carry,
as it concerns training alone, is part of the vocabulary, or says how the work is laid out. Every
format refuses any other field until the format claims it; see `interchange.carried`."""

SIZE = {"is_size": True}
"""Marks a field of type int that is at least 1, and fits into 32 bits."""


COMMON = (
    *("model.architecture", "model.d_model", "model.num_heads", "model.d_ff"),
    *("model.num_encoder_layers", "model.num_decoder_layers", "model.patch_size"),
    *("model.dropout_rate", "model.compute_dtype"),
    *("data.corpus", "data.source_language", "data.target_language", "data.task"),
    *("data.vocab_size", "data.source_tokens_per_step", "data.target_tokens_per_step"),
    *("training.num_train_steps", "training.warmup_steps", "training.peak_learning_rate"),
    *("training.init_from", "training.seed"),
    *("checkpoint.every_steps", "checkpoint.average"),
    "evaluation.every_steps",
    *("decoding.beam_size", "decoding.length_penalty"),
    *("parallel.fsdp", "parallel.tensor"),
)
"""The fields that one sets or looks up most often: the short help of a command lists only these."""


def read_where(condition: Callable[[Any], bool]) -> dict[str, Any]:
    """Mark a field that only those sections read for which a condition holds."""
    return {"read_where": condition}


def left_open(value: Any) -> dict[str, Any]:
    """Mark a field with a value that leaves the choice to the start of a run.

    A run keeps a config with the choice in place of this value, which agrees with any choice later.

    Args:
      value: the value that leaves the choice open, such as "auto".
    """
    return {"left_open": value}
