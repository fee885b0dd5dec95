"""The command that scores a model's parses of a split of a treebank."""

from dataclasses import dataclass
from typing import ClassVar

from t2t_jax.commands.model_flags import DecodingFlags
from t2t_jax.commands.on_split import OnSplit


@dataclass(frozen=True)
class ParsevalCommand(OnSplit, DecodingFlags):
    """Score a parser on a split of a treebank: labelled recall, precision and F1 as EVALB's."""

    command: ClassVar = "parseval"
