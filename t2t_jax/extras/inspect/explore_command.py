"""The command that writes a page on which a model can be explored."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from t2t_jax.commands.model_flags import RunFlags, load_for
from t2t_jax.commands.tables import print_line
from t2t_jax.system.atomic_file import check_place


@dataclass(frozen=True)
class ExploreCommand(RunFlags):
    """Write a page that shows what a model does with a sentence: attention, search, input.

    The page is one file of HTML, which any browser opens without a network.
    """

    output: Path = tyro.MISSING
    """File to write, such as view.html; an existing file is replaced."""
    text: str = tyro.MISSING
    """Sentence of the source language."""
    references: str | None = None
    """Translation whose attention is shown; None is the model's own."""

    def run(self) -> int:
        """Write the page, print where it is, and return the exit code."""
        from t2t_jax.extras.inspect.explorer.page import explore

        check_place(self.output)
        translator = load_for("explore", [self.workdir], self)
        explore(translator, self.text, self.references).save(self.output)
        print_line(f"{self.output} shows it; open it in a browser")
        return 0
