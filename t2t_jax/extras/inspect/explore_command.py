"""The command `explore`: write a web page that shows how a model translates a sentence."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from t2t_jax.commands.model_flags import RunFlags, load_for
from t2t_jax.system.atomic_file import check_file_writable


@dataclass(frozen=True)
class ExploreCommand(RunFlags):
    """Write a web page that shows how a model translates a sentence: attention, beam search, input.

    The page is a single HTML file that works offline.
    """

    output: Path = tyro.MISSING
    """File to write, such as view.html; an existing file is replaced."""
    text: str = tyro.MISSING
    """Source sentence."""
    references: str | None = None
    """Translation to show attention for; None is the translation by the model."""

    def run(self) -> int:
        """Write the page, print its path, and return the exit code."""
        from t2t_jax.extras.inspect.explorer.page import explore

        check_file_writable(self.output)
        translator = load_for("explore", [self.workdir], self)
        explore(translator, self.text, self.references).save(self.output)
        print(f"wrote {self.output}; open it in a browser")
        return 0
