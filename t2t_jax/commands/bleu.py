"""The command that scores a model's translations of a split of a corpus."""

from dataclasses import dataclass
from typing import ClassVar

from t2t_jax.commands.model_flags import DecodingFlags, LanguageFlags
from t2t_jax.commands.on_split import OnSplit


@dataclass(frozen=True)
class BleuCommand(LanguageFlags, OnSplit, DecodingFlags):
    """Score a model on a split: BLEU as sacreBLEU and as the paper have it, chrF, perplexity."""

    examples: ClassVar = (
        "runs/base",
        "runs/base --split dev --beam-size 1 --json",
    )
    command: ClassVar = "bleu"
