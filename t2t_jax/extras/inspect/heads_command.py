"""The command `heads`: rank the attention heads of a model by importance."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from t2t_jax.commands.model_flags import RunFlags, load_for
from t2t_jax.commands.tables import check_picture, grid, print_result, write_picture
from t2t_jax.errors import UserError
from t2t_jax.system.records import as_line

if TYPE_CHECKING:
    from rich.table import Table

    from t2t_jax.decoding.translator import Translator
    from t2t_jax.extras.inspect.heads import HeadReport


@dataclass(frozen=True)
class HeadsCommand(RunFlags):
    """Rank attention heads by importance, and show what they attend to (Michel et al. 2019).

    The command masks one head at a time and reports the change in loss and BLEU. The importance of
    a head is the mean absolute gradient of the loss with respect to a gate on the head. Finally,
    the command masks more and more heads in order of importance.
    """

    split: str = "dev"
    """Split of the corpus to measure the heads on."""
    num_sentences: int | None = None
    """Number of sentences of the split to use, from the first; None means all."""
    loss_only: bool = False
    """Skip BLEU, which is slow because it needs a greedy search for every head."""
    json: bool = False
    """Print one JSON object instead of tables."""
    plot: Path | None = None
    """File to write a plot to, in .svg or .png."""
    prune: tuple[float, Path] | None = None
    """Fraction of heads to remove, such as 0.4, and the directory of a new run without the least
    important heads. Remove the same number of heads from each layer; measure nothing else."""

    def run(self) -> int:
        """Measure the heads, plot and print the results, and return the exit code."""
        check_picture("plot", self.plot)
        if self.num_sentences is not None and self.num_sentences < 1:
            raise UserError(f"--num-sentences {self.num_sentences} is not positive")
        from t2t_jax.extras.inspect.heads import measure_heads

        translator = load_for("heads", [self.workdir], self)
        if self.prune is not None:
            return self._prune(translator, *self.prune)
        report = measure_heads(
            translator, split=self.split, num_sentences=self.num_sentences, loss_only=self.loss_only
        )
        if self.plot is not None:
            from t2t_jax.extras.inspect.figures.heads import plot_importance

            write_picture(self.plot, plot_importance(report))
        if self.json:
            print(as_line(asdict(report)))
        else:
            score = "" if report.bleu is None else f", sacreBLEU {report.bleu:.2f} (greedy)"
            sentences = f"{report.num_sentences:,} sentences of {report.split}"
            loss = f"loss {report.loss:.3f} nats per token{score}"
            print_result(f"{sentences}: {loss}; with one head masked:")
            print_result(_heads(report))
            print_result("with the least important heads masked:")
            print_result(_curve(report))
        return 0

    def _prune(self, translator: "Translator", share: float, out: Path) -> int:
        if not 0 < share < 1:
            raise UserError(f"--prune {share} must be above 0 and below 1")
        from t2t_jax.extras.inspect.heads import importance_of_heads
        from t2t_jax.extras.inspect.pruning import heads_to_prune, prune_run

        importance = importance_of_heads(translator, self.split, num_sentences=self.num_sentences)
        pruned_heads = heads_to_prune(importance, share)
        prune_run(self.workdir, out, pruned_heads, average=self.average, step=self.step)
        num_heads = sum(array.size for array in importance)
        print_result(
            f"{out} has the model without {len(pruned_heads)} of {num_heads} heads "
            f"({translator.config.model.num_heads} in each attention before)"
        )
        return 0


def _heads(report: "HeadReport") -> "Table":
    table = grid("attention", "layer", "head", "loss", "BLEU", "importance", "entropy", "kind")
    for head in report.heads:
        table.add_row(
            head.attention,
            str(head.layer + 1),
            str(head.head + 1),
            f"{head.loss_change:+.4f}",
            "" if head.bleu_change is None else f"{head.bleu_change:+.2f}",
            f"{head.importance:.4f}",
            f"{head.entropy:.2f}",
            head.kind,
        )
    return table


def _curve(report: "HeadReport") -> "Table":
    table = grid("heads masked", "share", "loss", "BLEU")
    for point in report.curve:
        score = "" if point.bleu is None else f"{point.bleu:.2f}"
        table.add_row(str(point.heads), f"{point.share:.0%}", f"{point.loss:.3f}", score)
    return table
