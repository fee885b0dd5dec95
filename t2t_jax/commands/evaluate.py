"""The command `evaluate`: score a model on a split of a corpus with the metrics of its task."""

import dataclasses
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, ClassVar

from t2t_jax.commands.model_flags import DecodingFlags, LanguageFlags
from t2t_jax.commands.streams import check_stdout_open, open_output
from t2t_jax.commands.tables import print_result
from t2t_jax.config import DataConfig, DecodingConfig
from t2t_jax.data.corpus import Corpus, open_corpus
from t2t_jax.errors import UserError
from t2t_jax.plugins import load, rows
from t2t_jax.system.records import Record, as_line

if TYPE_CHECKING:
    from rich.table import Table

    from t2t_jax.decoding.translator import Translator


@dataclass(frozen=True)
class EvaluateCommand(LanguageFlags, DecodingFlags):
    """Score a model on a split of its corpus, with the metrics of its task.

    Translations are scored with sacreBLEU, BLEU as in the paper, and chrF; trees with labeled
    recall, precision and F1 as in EVALB; language models with bits per byte and per character;
    labels with accuracy. Every task also has loss and perplexity.
    """

    examples: ClassVar = ("runs/base", "runs/base --split dev --beam-size 1 --json")
    command: ClassVar = "evaluate"
    split: tuple[str, ...] = ("test",)
    """Splits of the corpus to score: train, dev, test, or the names of other test sets."""
    corpus: str | None = None
    """Corpus to score on, in the syntax of data.corpus; None is the training corpus."""
    num_sentences: int | None = None
    """Number of sentences, documents or images to score, from the first; None means all."""
    json: bool = False
    """Print one JSON object instead of a table."""
    output: Path | None = None
    """File to write the model outputs to, one per line; requires a single split."""
    before_averaging: bool = False
    """Also score the parameters of the newest checkpoint without averaging."""
    cache_dir: str | None = None
    """Cache directory for tokenized corpora; None is the run's data.cache_dir."""

    def run(self) -> int:
        """Evaluate, add the scores to the run's `scores.jsonl`, and print them."""
        if not self.split:
            raise UserError("--split names no split; name one, such as test, or leave the flag out")
        if self.output is not None and len(self.split) > 1:
            raise UserError(
                f"--output {self.output} takes the model outputs of one split, but --split names "
                f"{len(self.split)}; score one split at a time"
            )
        unaveraged = [dataclasses.replace(self, average=1)] if self.before_averaging else []
        records, corpus = [], None
        if self.output is None:
            check_stdout_open("name an output file with --output")
        with open_output(self.output) if self.output else nullcontext() as file:
            # The averaged model comes last, as the result of the command.
            for flags in (*unaveraged, self):
                translator = flags.load()
                if self.cache_dir is not None:
                    overrides = {"data.cache_dir": self.cache_dir}
                    translator = translator.replaced(config=translator.config.replace(overrides))
                # Opening a corpus hashes its files, so open it once.
                corpus = corpus or self._corpus(translator.config.data)
                for split in self.split:
                    output = file if flags is self else None
                    records.append(self._evaluate(translator, corpus, split, output))
                    if self.json:
                        print(as_line(records[-1]), flush=True)
                    else:
                        print_result(_table(records[-1]))
        if len(self.workdir) == 1 and not self.json:
            from t2t_jax.workdir import read_config

            config = read_config(self.workdir[0])
            for reference in rows("remarks").values():
                for line in load(reference)(config, records):
                    print_result(line)
        return 0

    def _corpus(self, data: DataConfig) -> Corpus:
        """Open the corpus to score on, and check that it fits the model and the flags."""
        from t2t_jax.tasks import task_of
        from t2t_jax.workdir import read_config

        corpus = open_corpus(dataclasses.replace(data, corpus=self.corpus or data.corpus))
        task, corpus_task = task_of(data.corpus, data.task), task_of(corpus.name, corpus.task)
        if task is not corpus_task:
            raise UserError(
                f"{self.workdir[0]} is {task.model}, and {corpus.name} is for {corpus_task.model}; "
                "name another --corpus"
            )
        defaults = read_config(self.workdir[0]).decoding, DecodingConfig()
        if not task.searches and (self.seed or self.decoding not in defaults):
            raise UserError(
                f"{self.workdir[0]} is {task.model}, whose scores need no beam search; leave out "
                "--seed and the decoding flags"
            )
        return corpus

    def _evaluate(
        self, translator: "Translator", corpus: Corpus, split: str, file: BinaryIO | None
    ) -> Record:
        """Score a model on a split, write its outputs to `file` if given, and return the scores.

        The scores of a single run are added to its `scores.jsonl`.
        """
        from t2t_jax.run.evaluation import evaluate, score_record
        from t2t_jax.tasks import task_of
        from t2t_jax.workdir import record_scores

        settings = self.settings if task_of(corpus.name, corpus.task).searches else {}
        result = evaluate(translator, corpus, split, num_sentences=self.num_sentences, **settings)
        if file:
            file.writelines(f"{line}\n".encode() for line in result.hypotheses)
        record = score_record(translator, corpus, result, **settings)
        if len(self.workdir) == 1:
            record_scores(self.workdir[0], record)
        return record


def _table(record: Record) -> "Table":
    from rich.table import Table

    from t2t_jax.tasks import task_of
    from t2t_jax.tasks.measures.perplexity import perplexity_text

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column(overflow="fold")
    task = task_of(record["corpus"], record.get("task", "auto"))
    for cells in task.score_rows(record):
        table.add_row(*cells)
    unit_text = f"nats per {task.unit}, mean of {record['target_tokens']:,}"
    loss_text = f"label-smoothed cross-entropy, {unit_text}"
    table.add_row("loss", f"{record['loss']:.4f}", loss_text)
    table.add_row("NLL", f"{record['nll']:.4f}", f"negative log-likelihood, {unit_text}")
    perplexity = perplexity_text(record["perplexity"], 3)
    table.add_row("perplexity", perplexity, f"exp(NLL), per {task.unit}")
    table.add_row(task.inputs, f"{record['num_sentences']:,}", record["test_set"])
    table.add_row("averaged", *which_average(record))
    if task.searches:
        settings = " ".join(f"{name}={value}" for name, value in record["decoding"].items())
        table.add_row("decoding", "", settings)
    table.add_row("seconds", f"{record['seconds']:.1f}", "the whole evaluation")
    return table


def which_average(record: Record) -> tuple[str, str]:
    """Format two table cells: the count of averaged checkpoints, and their steps.

    The first cell is "" for a moving average of the parameters, and if the steps are unknown.
    """
    if not record["checkpoints"]:
        return "", "saved parameters, whose steps are unknown"
    steps = ", ".join(f"{step:,}" for step in record["checkpoints"])
    count = f"{len(record['checkpoints'])}"
    decays = record.get("ema_decays", [])
    if not decays:
        return count, f"checkpoints of step {steps}"
    decay_texts = ", ".join(map(str, decays))
    if len(decays) == len(record["checkpoints"]):
        return "", f"moving average of the parameters, decay {decay_texts}, after step {steps}"
    remark = f"{len(decays)} of the models by a moving average, decay {decay_texts}"
    return count, f"checkpoints of step {steps}; {remark}"
