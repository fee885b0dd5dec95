"""The command that scores a model's translations of a split of a corpus."""

from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar

from t2t_jax.commands.model_flags import DecodingFlags, LanguageFlags
from t2t_jax.commands.on_split import OnSplit

if TYPE_CHECKING:
    from t2t_jax.run.evaluation import Evaluation


@dataclass(frozen=True)
class BleuCommand(LanguageFlags, OnSplit, DecodingFlags):
    """Score a model on a split: BLEU as sacreBLEU and as the paper have it, chrF, perplexity."""

    examples: ClassVar = (
        "runs/base",
        "runs/base --split dev --beam-size 1 --json",
    )
    command: ClassVar = "bleu"
    metric: tuple[str, ...] = ()
    """More metrics, as means over sentences: chrf, bleu, cmd:COMMAND, which gets lines of source,
    translation and reference between tabs and prints a number for each, or comet:MODEL."""

    def judged(self, evaluation: "Evaluation") -> dict[str, Any]:
        """Return the means of the metrics that are asked for."""
        from t2t_jax.tasks.measures.judges import judge_of

        sides = evaluation.sources, evaluation.hypotheses, evaluation.references
        means = {name: fmean(judge_of(name)(*sides)) for name in self.metric}
        return {"metrics": means} if means else {}
