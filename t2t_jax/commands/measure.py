"""Commands of `eval.py` that measure: a model on a split, or files against files."""

import contextlib
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import tyro
from rich.table import Table

from t2t_jax.commands.decode import Decode
from t2t_jax.commands.streams import check_heard, writing
from t2t_jax.data.lines import read_lines
from t2t_jax.errors import UserError
from t2t_jax.system.console import ResultConsole
from t2t_jax.system.records import as_line

if TYPE_CHECKING:
    from t2t_jax.data.corpus import Corpus
    from t2t_jax.decoding.translator import Translator


@dataclass(frozen=True)
class _OnSplit(Decode):
    """A model on a split of a corpus."""

    split: str = "test"
    """Split of the corpus: train, dev, test, or another test set by its name."""
    corpus: str | None = None
    """Corpus to score on, as data.corpus names it; None is the one trained on."""
    num_sentences: int | None = None
    """Sentences to decode, from the first on; None is all. The loss is over all of them."""
    json: bool = False
    """Print one JSON object instead of a table."""
    output: Path | None = None
    """File for what is decoded, one sentence a line."""
    before_averaging: bool = False
    """Also score the newest of the averaged checkpoints alone."""
    cache_dir: str | None = None
    """Another place for tokenised corpora than the run's data.cache_dir."""

    def run(self) -> int:
        """Evaluate, record in the run directory, and print."""
        with self._hypotheses() as file:
            if self.before_averaging:
                alone = dataclasses.replace(self, average=1)
                self._print(alone.measure(alone.load()))
            self._print(self.measure(self.load(), file))
        return 0

    def _hypotheses(self) -> contextlib.AbstractContextManager[BinaryIO | None]:
        """The file for what is decoded: if it cannot be written, nothing is decoded."""
        if self.output is not None:
            return writing(self.output)
        check_heard("name a file for what is decoded with --output")
        return contextlib.nullcontext()

    def _print(self, record: Mapping[str, Any]) -> None:
        if self.json:
            print(as_line(record), flush=True)
        else:
            _print(_table(record))

    def check(self, corpus: "Corpus") -> None:
        """Refuse a corpus that this command has no measure for."""
        raise NotImplementedError

    def measure(self, translator: "Translator", file: BinaryIO | None = None) -> dict[str, Any]:
        """The figures of a model, which are also added to `scores.jsonl` in its run directory.

        Args:
          translator: the model.
          file: for what is decoded.
        """
        from t2t_jax.data.corpus import open_corpus
        from t2t_jax.run.evaluation import evaluate, score_record
        from t2t_jax.workdir import record_scores

        if self.cache_dir is not None:
            translator.config = translator.config.replace({"data.cache_dir": self.cache_dir})
        data = translator.config.data
        corpus = open_corpus(dataclasses.replace(data, corpus=self.corpus or data.corpus))
        self.check(corpus)
        evaluation = evaluate(
            translator, corpus, self.split, num_sentences=self.num_sentences, **self.settings
        )
        if file:
            file.writelines(f"{line}\n".encode() for line in evaluation.hypotheses)
        record = score_record(translator, corpus, evaluation, self.settings)
        if len(self.workdir) == 1:
            record_scores(self.workdir[0], record)
        return record


@dataclass(frozen=True)
class Bleu(_OnSplit):
    """Score a model on a split: BLEU as sacreBLEU and as the paper have it, chrF, perplexity."""

    def check(self, corpus: "Corpus") -> None:
        """Refuse a treebank."""
        if corpus.is_treebank:
            raise UserError(f"{corpus.name} is a treebank; score its parses with: eval.py parseval")


@dataclass(frozen=True)
class Parseval(_OnSplit):
    """Score a parser on a split of a treebank: labelled recall, precision and F1 as EVALB's."""

    def check(self, corpus: "Corpus") -> None:
        """Refuse translations."""
        if not corpus.is_treebank:
            raise UserError(f"{corpus.name} has no trees; score translations with: eval.py bleu")


@dataclass(frozen=True)
class Compare:
    """Score files of translations against a file of references, line by line.

    The second file and any further one are compared with the first by paired bootstrap.
    """

    references: Path = tyro.MISSING
    """File of references: raw text, neither tokenised nor normalised."""
    hypotheses: tuple[Path, ...] = tyro.MISSING
    """Files of translations; the first is the baseline."""
    language: str = "de"
    """Language of the translations, which tokenized_split_bleu tokenises by."""

    def run(self) -> int:
        """Score and print."""
        from t2t_jax.evaluation.bleu import corpus_scores
        from t2t_jax.evaluation.significance import paired_bootstrap

        check_heard("print it, or write it to a file")
        if not self.hypotheses:
            raise UserError("no file of translations is given; name some with --hypotheses")
        references = list(read_lines(self.references))
        systems = [list(read_lines(path)) for path in self.hypotheses]
        table = _grid("file", "sacreBLEU", "tokenized_split_bleu", "chrF", "p")
        for path, lines in zip(self.hypotheses, systems, strict=True):
            try:
                scores = corpus_scores(lines, references, self.language)
            except UserError as error:
                raise UserError(f"{path} and {self.references}: {error}") from error
            p_value = ""
            if lines is not systems[0]:
                p_value = f"{paired_bootstrap(systems[0], lines, references).p_value:.4f}"
            figures = (scores.bleu, scores.tokenized_split_bleu, scores.chrf)
            table.add_row(str(path), *(f"{figure:.2f}" for figure in figures), p_value)
        _print(table)
        _print(f"sacreBLEU: {scores.bleu_signature}")
        _print(f"tokenized_split_bleu: {scores.tokenized_split_bleu_signature}")
        _print(f"chrF: {scores.chrf_signature}")
        _print("p: sacreBLEU's paired bootstrap against the first file")
        return 0


@dataclass(frozen=True)
class CompareTrees:
    """Score files of trees against a treebank: labelled recall, precision and F1 as EVALB's."""

    gold: Path = tyro.MISSING
    """Treebank, with or without function tags and empty elements."""
    predicted: tuple[Path, ...] = tyro.MISSING
    """Files with a tree for each of its trees."""

    def run(self) -> int:
        """Score and print."""
        from t2t_jax.data.trees import clean_tree, read_trees
        from t2t_jax.evaluation.parseval import parseval

        check_heard("print it, or write it to a file")
        if not self.predicted:
            raise UserError("no file of trees is given; name some with --predicted")
        gold = [clean_tree(tree) for tree in read_trees(self.gold)]
        table = _grid("file", "recall", "precision", "F1", "complete", "skipped", "errors")
        for path in self.predicted:
            try:
                scores = parseval(gold, list(read_trees(path)))
            except UserError as error:
                raise UserError(f"{path} and {self.gold}: {error}") from error
            percents = (scores.recall, scores.precision, scores.f1, scores.complete_match)
            counts = (scores.num_skipped, scores.num_errors)
            table.add_row(str(path), *(f"{p:.2f}" for p in percents), *map(str, counts))
        _print(table)
        _print(f"in percent, as {scores.signature}")
        return 0


def _print(what: Any) -> None:
    ResultConsole(width=100, markup=False, highlight=False).print(what)


def _grid(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(first, overflow="fold")
    for other in others:
        table.add_column(other, justify="right")
    return table


def _table(summary: Mapping[str, Any]) -> Table:
    """The figures of an evaluation, each with its definition."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column(overflow="fold")
    for row in (_tree_rows if "f1" in summary else _translation_rows)(summary):
        table.add_row(*row)
    per_token = f"nats per subword, mean of {summary['target_tokens']:,}"
    smoothed = f"label-smoothed cross-entropy, {per_token}"
    table.add_row("loss", f"{summary['loss']:.4f}", smoothed)
    table.add_row("NLL", f"{summary['nll']:.4f}", f"negative log-likelihood, {per_token}")
    table.add_row("perplexity", f"{summary['perplexity']:.3f}", "exp(NLL), per subword")
    table.add_row("sentences", f"{summary['num_sentences']:,}", summary["test_set"])
    steps = ", ".join(f"{step:,}" for step in summary["checkpoints"])
    table.add_row("averaged", f"{len(summary['checkpoints'])}", f"checkpoints of step {steps}")
    settings = " ".join(f"{name}={value}" for name, value in summary["decoding"].items())
    table.add_row("decoding", "", settings)
    table.add_row("seconds", f"{summary['seconds']:.1f}", "the whole evaluation")
    return table


def _translation_rows(summary: Mapping[str, Any]) -> Iterable[Sequence[str]]:
    measures = {"sacreBLEU": "bleu", "tokenized_split_bleu": "tokenized_split_bleu", "chrF": "chrf"}
    for name, key in measures.items():
        yield name, f"{summary[key]:.2f}", summary[f"{key}_signature"]


def _tree_rows(summary: Mapping[str, Any]) -> Iterable[Sequence[str]]:
    for name in ("recall", "precision", "f1", "f1_short", "complete_match", "tagging_accuracy"):
        yield name, f"{summary[name]:.2f}", f"percent, {summary['signature']}"
    left_out = summary["num_skipped"] + summary["num_errors"]
    yield "left out", f"{left_out}", "sentences that EVALB would not score"
    yield "repaired", f"{summary['num_repaired']:,}", "sentences whose output was not a tree"
