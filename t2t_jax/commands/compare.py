"""The command that scores files of translations against a file of references."""

from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import tyro

from t2t_jax.commands.streams import check_heard
from t2t_jax.commands.tables import grid, print_result
from t2t_jax.data.lines import check_aligned, read_lines
from t2t_jax.errors import UserError


@dataclass(frozen=True)
class CompareCommand:
    """Score files of translations against a file of references, line by line.

    Each file after the first is compared with the first by paired bootstrap.
    """

    references: Path = tyro.MISSING
    """File of references: raw text, neither tokenised nor normalised."""
    hypotheses: tuple[Path, ...] = tyro.MISSING
    """Files of translations; the first is the baseline."""
    language: str = "de"
    """Language of the translations, by whose rules tokenized_split_bleu tokenises."""

    metric: tuple[str, ...] = ()
    """More metrics, as means over sentences: chrf, bleu, cmd:COMMAND, which gets lines of source,
    translation and reference between tabs and prints a number for each, or comet:MODEL."""
    sources: Path | None = None
    """File of the sources, for metrics that look at them."""

    def run(self) -> int:
        """Print each file's scores and its difference from the first, and return the exit code."""
        from t2t_jax.tasks.measures.bleu import check_references, corpus_scores
        from t2t_jax.tasks.measures.significance import paired_bootstrap

        check_heard()
        if not self.hypotheses:
            raise UserError("no file of translations is given; name some with --hypotheses")
        references = list(read_lines(self.references))
        systems = [list(read_lines(path)) for path in self.hypotheses]
        for path, lines in zip(self.hypotheses, systems, strict=True):
            try:
                check_references(lines, references)
            except UserError as error:
                raise UserError(f"{path} and {self.references}: {error}") from error
        judged = self._judged(systems, references)
        more = [heading for name in self.metric for heading in (name, "p")]
        table = grid("file", "sacreBLEU", "tokenized_split_bleu", "chrF", "p", *more)
        for number, (path, lines) in enumerate(zip(self.hypotheses, systems, strict=True)):
            scores = corpus_scores(lines, references, self.language)
            p_value = ""
            if lines is not systems[0]:
                p_value = f"{paired_bootstrap(systems[0], lines, references).p_value:.4f}"
            figures = (scores.bleu, scores.tokenized_split_bleu, scores.chrf)
            own = judged[number]
            table.add_row(str(path), *(f"{figure:.2f}" for figure in figures), p_value, *own)
        print_result(table)
        print_result(f"sacreBLEU: {scores.bleu_signature}")
        print_result(f"tokenized_split_bleu: {scores.tokenized_split_bleu_signature}")
        print_result(f"chrF: {scores.chrf_signature}")
        print_result("p: sacreBLEU's paired bootstrap against the first file")
        return 0

    def _judged(self, systems: list[list[str]], references: list[str]) -> list[list[str]]:
        """Return the cells of each file: the mean of each metric, and p against the first file."""
        from t2t_jax.tasks.measures.judges import judge_of
        from t2t_jax.tasks.measures.significance import paired_bootstrap_of_means

        sources = [""] * len(references)
        if self.sources is not None:
            sources = [*read_lines(self.sources)]
            check_aligned(self.sources, len(sources), self.references, len(references))
        cells: list[list[str]] = [[] for _ in systems]
        for name in self.metric:
            judge, first = judge_of(name), None
            for own, lines in zip(cells, systems, strict=True):
                scores = judge(sources, lines, references)
                p_value = "" if first is None else f"{paired_bootstrap_of_means(first, scores):.4f}"
                first = scores if first is None else first
                own += [f"{fmean(scores):.4f}", p_value]
        return cells
