"""The command that scores files of translations against a file of references."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from t2t_jax.commands.streams import check_heard
from t2t_jax.commands.tables import grid, print_result
from t2t_jax.data.lines import read_lines
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
        table = grid("file", "sacreBLEU", "tokenized_split_bleu", "chrF", "p")
        for path, lines in zip(self.hypotheses, systems, strict=True):
            scores = corpus_scores(lines, references, self.language)
            p_value = ""
            if lines is not systems[0]:
                p_value = f"{paired_bootstrap(systems[0], lines, references).p_value:.4f}"
            figures = (scores.bleu, scores.tokenized_split_bleu, scores.chrf)
            table.add_row(str(path), *(f"{figure:.2f}" for figure in figures), p_value)
        print_result(table)
        print_result(f"sacreBLEU: {scores.bleu_signature}")
        print_result(f"tokenized_split_bleu: {scores.tokenized_split_bleu_signature}")
        print_result(f"chrF: {scores.chrf_signature}")
        print_result("p: sacreBLEU's paired bootstrap against the first file")
        return 0
