"""The command that makes pairs of text in the source language, by distillation or self-training."""

from dataclasses import dataclass
from typing import ClassVar

from t2t_jax.commands.synthetic import SyntheticCommand


@dataclass(frozen=True)
class DataDistillCommand(SyntheticCommand):
    """Make pairs of text in the source language, whose targets a model writes.

    Of the training text of a teacher, a smaller model learns more than of the references (Kim and
    Rush 2016); of other text it is self-training. Several runs are an ensemble.
    """

    examples: ClassVar = (
        "runs/teacher runs/other --text train.en --out corpora/distilled --beam-size 5",
    )
    backward: ClassVar = False
