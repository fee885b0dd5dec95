"""The command `predict`: label text or images, or fill in masked words."""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from t2t_jax.commands.model_flags import RunFlags, load_for
from t2t_jax.commands.streams import open_input, open_output
from t2t_jax.config import ImageEncoderConfig
from t2t_jax.errors import UserError


@dataclass(frozen=True)
class PredictCommand(RunFlags):
    """Label text or images, or fill in masked words, with an encoder: one output line per input.

    A tagger writes one tag per space-separated word, and a classifier one label per line. A masked
    language model fills in each <mask> of a line. Blank lines stay blank. An image model reads a
    NumPy .npz file.
    """

    input: Path | None = None
    """Text file with one input per line, plain or .gz; None is the standard input. For images, an
    .npz file with a uint8 array x_test, images or x, of shape [n, height, width] or [n, height,
    width, channels]."""
    output: Path | None = None
    """Output file, written atomically; None is the standard output."""
    probabilities: bool = False
    """Append the probability to each label, as in NN:0.98."""

    def run(self) -> int:
        """Write an output line for every input, and return the exit code."""
        from t2t_jax.extras.encoders.images import images_in
        from t2t_jax.tasks import task_of

        with open_output(self.output) as file:
            translator = load_for("predict", [self.workdir], self)
            config, first = translator.config, 1
            task: Any = task_of(config.data.corpus, config.data.task)
            stream: AbstractContextManager[Iterable[Sequence[object]]] = open_input(self.input)
            if isinstance(config.model, ImageEncoderConfig):
                if self.input is None:
                    raise UserError("the model reads images; give a file with --input FILE.npz")
                stream = nullcontext([images_in(self.input)])
            with stream as chunks:
                for inputs in chunks:
                    lines = task.lines(translator, inputs, first, self.probabilities)
                    file.writelines(f"{line}\n".encode() for line in lines)
                    first += len(inputs)
        return 0
