"""The command that scores files of trees against a treebank."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from t2t_jax.commands.streams import check_heard
from t2t_jax.commands.tables import grid, print_result
from t2t_jax.errors import UserError


@dataclass(frozen=True)
class CompareTreesCommand:
    """Score files of trees against a treebank: labelled recall, precision and F1 as EVALB's."""

    gold: Path = tyro.MISSING
    """Treebank, with or without function tags and empty elements."""
    predicted: tuple[Path, ...] = tyro.MISSING
    """Files of trees, each with one tree for each tree of the treebank."""

    def run(self) -> int:
        """Print the scores of each file of trees, and return the exit code."""
        from t2t_jax.data.trees import clean_tree, read_trees
        from t2t_jax.tasks.measures.parseval import parseval

        check_heard()
        if not self.predicted:
            raise UserError("no file of trees is given; name some with --predicted")
        gold = [clean_tree(tree) for tree in read_trees(self.gold)]
        table = grid("file", "recall", "precision", "F1", "complete", "skipped", "errors")
        for path in self.predicted:
            try:
                scores = parseval(gold, list(read_trees(path)))
            except UserError as error:
                raise UserError(f"{path} and {self.gold}: {error}") from error
            percents = (scores.recall, scores.precision, scores.f1, scores.complete_match)
            counts = (scores.num_skipped, scores.num_errors)
            table.add_row(str(path), *(f"{p:.2f}" for p in percents), *map(str, counts))
        print_result(table)
        print_result(f"in percent, as {scores.signature}")
        return 0
