"""The command `compare`: score files of translations or trees against references."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import tyro

from t2t_jax.commands.streams import check_stdout_open
from t2t_jax.commands.tables import grid, print_result
from t2t_jax.data.lines import read_lines
from t2t_jax.data.trees import begins_with_tree, clean_tree, parse_trees
from t2t_jax.errors import UserError


@dataclass(frozen=True)
class CompareCommand:
    """Score files of translations or trees against a file of references.

    Translations are scored line by line with BLEU and chrF. Each further file is compared with the
    first one by approximate randomization, a two-sided test. If the references begin with a
    bracketed tree, they are a treebank: the scores are labeled recall, precision and F1 as in
    EVALB.
    """

    examples: ClassVar = (
        "--references test.de --hypotheses base.de wide.de",
        "--references 23.mrg --hypotheses parses.mrg",
    )
    references: Path = tyro.MISSING
    """File of references: raw text, neither tokenized nor normalized; or a treebank, with or
    without function tags and empty elements."""
    hypotheses: tuple[Path, ...] = tyro.MISSING
    """Files to score, with one translation per reference, or one tree per tree of the treebank.
    The first file is the baseline."""
    language: str = "de"
    """Language of the translations, such as de, de-AT, deu or deu_Latn. The language selects the
    tokenization rules of tokenized_split_bleu."""

    def run(self) -> int:
        """Print the scores of each file, and return the exit code."""
        check_stdout_open()
        if not self.hypotheses:
            raise UserError("there is no file to score; name files with --hypotheses")
        references = list(read_lines(self.references))
        lines_by_file = [list(read_lines(path)) for path in self.hypotheses]
        if begins_with_tree(references):
            self._compare_trees(lines_by_file, references)
        else:
            self._compare_translations(lines_by_file, references)
        return 0

    def _compare_translations(self, lines_by_file: list[list[str]], references: list[str]) -> None:
        from t2t_jax.tasks.measures import bleu

        for path, lines in zip(self.hypotheses, lines_by_file, strict=True):
            with self._named_in_errors(path):
                bleu.check_references(lines, references)
        table = grid("file", "sacreBLEU", "tokenized_split_bleu", "chrF", "p")
        for path, lines in zip(self.hypotheses, lines_by_file, strict=True):
            scores = bleu.corpus_scores(lines, references, self.language)
            statistics = bleu.sentence_statistics(lines, references)
            if lines is lines_by_file[0]:  # the baseline has no p-value
                baseline_statistics, p_value = statistics, ""
            else:
                p_value = f"{bleu.approximate_randomization(baseline_statistics, statistics):.4f}"
            metrics = (scores.bleu, scores.tokenized_split_bleu, scores.chrf)
            table.add_row(str(path), *(f"{metric:.2f}" for metric in metrics), p_value)
        print_result(table)
        print_result(f"sacreBLEU: {scores.bleu_signature}")
        print_result(f"tokenized_split_bleu: {scores.tokenized_split_bleu_signature}")
        print_result(f"chrF: {scores.chrf_signature}")
        print_result("p: approximate randomization of sacreBLEU against the first file, two-sided")

    def _compare_trees(self, lines_by_file: list[list[str]], references: list[str]) -> None:
        from t2t_jax.tasks.measures.parseval import parseval

        gold_trees = [clean_tree(tree) for tree in parse_trees(references, self.references)]
        table = grid("file", "recall", "precision", "F1", "complete", "skipped", "errors")
        for path, lines in zip(self.hypotheses, lines_by_file, strict=True):
            trees = list(parse_trees(lines, path))
            with self._named_in_errors(path):
                scores = parseval(gold_trees, trees)
            percents = (scores.recall, scores.precision, scores.f1, scores.complete_match)
            counts = (scores.num_skipped, scores.num_errors)
            table.add_row(str(path), *(f"{percent:.2f}" for percent in percents), *map(str, counts))
        print_result(table)
        print_result(f"in percent, as {scores.signature}")

    @contextmanager
    def _named_in_errors(self, path: Path) -> Iterator[None]:
        """Prefix the message of a `UserError` with `path` and the file of references."""
        try:
            yield
        except UserError as error:
            raise UserError(f"{path} and {self.references}: {error}") from error
