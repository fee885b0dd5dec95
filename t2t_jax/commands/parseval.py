"""The command that scores a model's parses of a split of a treebank."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from t2t_jax.commands.on_split import OnSplit, refuse_translations

if TYPE_CHECKING:
    from t2t_jax.data.corpus import Corpus


@dataclass(frozen=True)
class ParsevalCommand(OnSplit):
    """Score a parser on a split of a treebank: labelled recall, precision and F1 as EVALB's."""

    def check(self, corpus: "Corpus") -> None:
        """Refuse a corpus of translations, which have no brackets to compare."""
        refuse_translations(corpus)
