"""The command that scores predicted labels on a split of a corpus."""

from dataclasses import dataclass
from typing import ClassVar

from t2t_jax.commands.on_split import OnSplit


@dataclass(frozen=True)
class AccuracyCommand(OnSplit):
    """Score predicted labels of a split: accuracy, macro F1, and the confusion of labels."""

    command: ClassVar = "accuracy"
