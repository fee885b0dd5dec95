"""The command that scores a model's translations of a split of a corpus."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from t2t_jax.commands.on_split import OnSplit, refuse_treebank

if TYPE_CHECKING:
    from t2t_jax.data.corpus import Corpus


@dataclass(frozen=True)
class BleuCommand(OnSplit):
    """Score a model on a split: BLEU as sacreBLEU and as the paper have it, chrF, perplexity."""

    def check(self, corpus: "Corpus") -> None:
        """Refuse a treebank, whose parses BLEU does not measure."""
        refuse_treebank(corpus)
