"""The base of the commands that measure a model on a split of a corpus."""

import contextlib
import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from t2t_jax.commands.groups import wrong_command
from t2t_jax.commands.model_flags import ModelFlags
from t2t_jax.commands.streams import check_heard, writing
from t2t_jax.commands.tables import print_result
from t2t_jax.config import DataConfig
from t2t_jax.errors import UserError
from t2t_jax.system.records import as_line

if TYPE_CHECKING:
    from rich.table import Table

    from t2t_jax.data.corpus import Corpus
    from t2t_jax.decoding.translator import Translator


@dataclass(frozen=True)
class OnSplit(ModelFlags):
    """Flags that choose a model, and the split of a corpus that it is measured on."""

    split: tuple[str, ...] = ("test",)
    """Splits of the corpus: train, dev, test, or other test sets by their names."""
    corpus: str | None = None
    """Corpus to score on, as data.corpus names it; None is the corpus of training."""
    num_sentences: int | None = None
    """Sentences or images to answer, counted from the first; None is all. The loss is over all."""
    json: bool = False
    """Print one JSON object instead of a table."""
    output: Path | None = None
    """File for the model's answers, one line each; for a single split."""
    before_averaging: bool = False
    """Also score the parameters of the newest checkpoint alone, without any average."""
    cache_dir: str | None = None
    """Directory for tokenised corpora; None is the run's data.cache_dir."""

    def run(self) -> int:
        """Evaluate, add the figures to the run's scores, print them, and return the exit code."""
        if not self.split:
            raise UserError("--split names no split; give one, such as test, or leave it out")
        if self.output is not None and len(self.split) > 1:
            raise UserError(
                f"--output {self.output} holds what the model answers to one split, and --split "
                f"names {len(self.split)}; give one of them at a time"
            )
        models = [dataclasses.replace(self, average=1)] if self.before_averaging else []
        records, corpus = [], None
        with self._answers() as file:
            for model in (*models, self):
                translator = model.load()
                if self.cache_dir is not None:
                    own = {"data.cache_dir": self.cache_dir}
                    translator.config = translator.config.replace(own)
                corpus = corpus or self._corpus(translator.config.data)
                for split in self.split:
                    output = file if model is self else None
                    records.append(self.measure(translator, corpus, split, output))
                    self._print(records[-1])
        if len(self.workdir) == 1 and not self.json:
            self._print_beside_the_paper(records)
        return 0

    def _answers(self) -> contextlib.AbstractContextManager[BinaryIO | None]:
        """Open the file for the model's answers, so that a bad one is refused before evaluation."""
        if self.output is not None:
            return writing(self.output)
        check_heard("name a file for what the model answers with --output")
        return contextlib.nullcontext()

    def _print(self, record: dict[str, Any]) -> None:
        if self.json:
            print(as_line(record), flush=True)
        else:
            print_result(_figures(record))

    def _print_beside_the_paper(self, records: list[dict[str, Any]]) -> None:
        """Print the paper's figure and every deviation from it, if a test set is the paper's."""
        from t2t_jax.run.report import beside_the_paper
        from t2t_jax.workdir import read_config

        for line in beside_the_paper(read_config(self.workdir[0]), records):
            print_result(line)

    def _corpus(self, data: DataConfig) -> "Corpus":
        """Open the corpus to score on; call this once, as it hashes all files of the corpus."""
        from t2t_jax.data.corpus import open_corpus
        from t2t_jax.tasks import task_of

        corpus = open_corpus(dataclasses.replace(data, corpus=self.corpus or data.corpus))
        task = task_of(corpus.name, corpus.task)
        if task.command != self.command:
            what = f"{corpus.name} is for {task.model}"
            raise wrong_command(self.command, what, corpus.facts)
        return corpus

    def measure(
        self,
        translator: "Translator",
        corpus: "Corpus",
        split: str,
        file: BinaryIO | None = None,
    ) -> dict[str, Any]:
        """Measure a model on a split, write its answers to a file, and return its figures.

        The figures of a single run are added to its `scores.jsonl`.
        """
        from t2t_jax.run.evaluation import evaluate, score_record
        from t2t_jax.workdir import record_scores

        evaluation = evaluate(
            translator, corpus, split, num_sentences=self.num_sentences, **self.settings
        )
        if file:
            file.writelines(f"{line}\n".encode() for line in evaluation.hypotheses)
        record = score_record(translator, corpus, evaluation, **self.settings)
        if len(self.workdir) == 1:
            record_scores(self.workdir[0], record)
        return record


def _figures(summary: dict[str, Any]) -> "Table":
    """Return the figures of an evaluation as a table, each beside its definition."""
    from rich.table import Table

    from t2t_jax.tasks import task_of

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column(overflow="fold")
    task = task_of(summary["corpus"], summary.get("task", "auto"))
    for row in task.score_rows(summary):
        table.add_row(*row)
    per_token = f"nats per {task.unit}, mean of {summary['target_tokens']:,}"
    smoothed = f"label-smoothed cross-entropy, {per_token}"
    table.add_row("loss", f"{summary['loss']:.4f}", smoothed)
    table.add_row("NLL", f"{summary['nll']:.4f}", f"negative log-likelihood, {per_token}")
    table.add_row("perplexity", f"{summary['perplexity']:.3f}", f"exp(NLL), per {task.unit}")
    number = f"{summary['num_sentences']:,}" if task.grid.whole_split else ""
    table.add_row(task.inputs if number else "scored on", number, summary["test_set"])
    table.add_row("averaged", *which_average(summary))
    if task.searches:
        settings = " ".join(f"{name}={value}" for name, value in summary["decoding"].items())
        table.add_row("decoding", "", settings)
    table.add_row("seconds", f"{summary['seconds']:.1f}", "the whole evaluation")
    return table


def which_average(summary: dict[str, Any]) -> tuple[str, str]:
    """Return the table cells that say which average of the parameters was scored."""
    steps = ", ".join(f"{step:,}" for step in summary["checkpoints"])
    number = f"{len(summary['checkpoints'])}"
    decays = summary.get("ema_decays", [])
    if not decays:
        return number, f"checkpoints of step {steps}"
    names = ", ".join(map(str, decays))
    if len(decays) == len(summary["checkpoints"]):
        return "", f"moving average of the parameters, decay {names}, after step {steps}"
    some = f"{len(decays)} of the models by a moving average, decay {names}"
    return number, f"checkpoints of step {steps}; {some}"
