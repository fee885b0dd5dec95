"""The command that scores a language model on a split of its text."""

from dataclasses import dataclass
from typing import ClassVar

from t2t_jax.commands.on_split import OnSplit


@dataclass(frozen=True)
class PerplexityCommand(OnSplit):
    """Score a language model on a split: bits per byte and character, perplexity per subword."""

    command: ClassVar = "perplexity"
