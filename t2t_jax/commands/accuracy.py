"""The command that scores a model that predicts labels on a split of its corpus."""

from dataclasses import dataclass
from typing import ClassVar

from t2t_jax.commands.on_split import OnSplit


@dataclass(frozen=True)
class AccuracyCommand(OnSplit):
    """Score predicted labels of a split: accuracy, macro F1, and what each label is taken for."""

    command: ClassVar = "accuracy"
