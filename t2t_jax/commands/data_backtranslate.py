"""The command that makes pairs of text in the target language, by back-translation."""

from dataclasses import dataclass
from typing import ClassVar

from t2t_jax.commands.synthetic import SyntheticCommand


@dataclass(frozen=True)
class DataBacktranslateCommand(SyntheticCommand):
    """Make pairs of text in the target language, whose sources a model of the other way writes.

    The run translates from the language of the text. With --temperature 1, sources are samples,
    which helps more than beams where there is much text (Edunov et al. 2018).
    """

    examples: ClassVar = ("runs/de-en --text mono.de --out corpora/back --tag '<BT>'",)
    backward: ClassVar = True
