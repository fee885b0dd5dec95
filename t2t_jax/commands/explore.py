"""The command that writes a page on which a model can be explored."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from t2t_jax.commands.model_flags import RunFlags, load_for
from t2t_jax.commands.tables import print_line
from t2t_jax.errors import UserError
from t2t_jax.system.atomic_file import check_place


@dataclass(frozen=True)
class ExploreCommand(RunFlags):
    """Write a page that shows what a model does with a sentence: attention, search, input.

    The page is one file of HTML, which any browser opens without a network.
    """

    output: Path = tyro.MISSING
    """File to write, such as view.html; an existing file is replaced."""
    text: str | None = None
    """Sentence of the source language."""
    images: Path | None = None
    """For a model that reads images: an .npz file of images, as predict takes it."""
    number: int = 1
    """Number of the image in the file, from 1."""
    references: str | None = None
    """Translation whose attention is shown; None is the model's own."""

    def run(self) -> int:
        """Write the page, print where it is, and return the exit code."""
        from t2t_jax.inspect.explorer.page import explore

        if (self.text is None) == (self.images is None):
            raise UserError("give a sentence with --text, or a file of images with --images")
        check_place(self.output)
        translator = load_for("explore", [self.workdir], self)
        given = self.text if self.images is None else self._image(self.images)
        explore(translator, given, self.references).save(self.output)
        print_line(f"{self.output} shows it; open it in a browser")
        return 0

    def _image(self, file: Path) -> Any:
        from t2t_jax.data.images import images_in

        images = images_in(file)
        if not 1 <= self.number <= len(images):
            raise UserError(f"{file} has {len(images)} images; --number {self.number} is none")
        return images[self.number - 1]
