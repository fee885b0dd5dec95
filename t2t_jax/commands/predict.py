"""The command that lets an encoder alone label text or images, or fill in what is hidden."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from t2t_jax.commands.model_flags import RunFlags, load_for
from t2t_jax.commands.streams import reading, writing
from t2t_jax.errors import UserError

if TYPE_CHECKING:
    from t2t_jax.decoding.translator import Translator
    from t2t_jax.tasks.labelling import Label


@dataclass(frozen=True)
class PredictCommand(RunFlags):
    """Label what is in the input with a model of one stack; each input gives one line, in order.

    A tagger writes a tag for each word of a line (words have spaces between them), and a classifier
    a label for the line. A model of masked language modelling fills in each <mask> of a line. Blank
    lines stay blank. A model of images reads a file of NumPy.
    """

    input: Path | None = None
    """File of lines, plain or .gz; None is the standard input. For images, an .npz file whose array
    x_test, images or x is [n, height, width] or [n, height, width, channels], of uint8."""
    output: Path | None = None
    """File to write, all of it or nothing; None is the standard output."""
    probabilities: bool = False
    """Write the probability after each label, as in NN:0.98."""

    def run(self) -> int:
        """Write a line for every input; returns the exit code."""

        with writing(self.output) as file:
            translator = load_for("predict", [self.run_directory], self)
            images = translator.config.data.task == "image_classification"
            lines = self._of_images(translator) if images else self._of_text(translator)
            for line in lines:
                file.write(f"{line}\n".encode())
        return 0

    def _of_text(self, translator: "Translator") -> Iterator[str]:
        from t2t_jax.tasks import task_of
        from t2t_jax.tasks.labelling import Labelling
        from t2t_jax.tasks.masked_language_modelling import fill

        data, done = translator.config.data, 0
        task = task_of(data.corpus, data.task)
        with reading(self.input) as chunks:
            for texts in chunks:
                if isinstance(task, Labelling):
                    yield from self._written(task.predicted(translator, texts, done + 1))
                else:
                    yield from fill(translator, texts, first_line=done + 1)
                done += len(texts)

    def _of_images(self, translator: "Translator") -> Iterator[str]:
        from t2t_jax.data.images import images_in
        from t2t_jax.tasks.image_classification import TASK

        if self.input is None:
            raise UserError("the model reads images; give a file of arrays with --input FILE.npz")
        yield from self._written(TASK.predicted(translator, images_in(self.input)))

    def _written(self, found: list[list["Label"]]) -> Iterator[str]:
        for labels in found:
            shown = (
                f"{label.name}:{label.probability:.4f}" if self.probabilities else label.name
                for label in labels
            )
            yield " ".join(shown)
