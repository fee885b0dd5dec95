"""The command that translates text."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from t2t_jax.commands.model_flags import DecodingFlags
from t2t_jax.commands.streams import reading, writing

if TYPE_CHECKING:
    from t2t_jax.decoding.translator import Hypothesis


@dataclass(frozen=True)
class TranslateCommand(DecodingFlags):
    """Translate UTF-8 text: each line of input gives one line of output, in order.

    Only a line feed ends a line. One that is too long is split, or refused: of a file, before
    anything is written. With --num-best or --scores the output has lines of
    `index ||| translation ||| log-probability ||| score`, where index counts input lines from 0.
    """

    input: Path | None = None
    """File to translate, plain or .gz; None is the standard input."""
    output: Path | None = None
    """File to write, all of it or nothing; None is the standard output."""
    num_best: int = 1
    """Translations of each line, best first; at most the beam size."""
    scores: bool = False
    """Write the format with scores for a single translation too."""

    def run(self) -> int:
        """Translate some thousand lines at a time, to bound the memory; returns the exit code."""
        with reading(self.input) as chunks, writing(self.output) as file:
            translator = self.load()
            self.check_lines(translator, self.input)
            done = 0
            for texts in chunks:
                found = translator.nbest(texts, self.num_best, first_line=done + 1, **self.settings)
                written = self._format(found, first_index=done)
                file.writelines(f"{line}\n".encode() for line in written)
                file.flush()
                done += len(texts)
        return 0

    def _format(self, found: list[list["Hypothesis"]], first_index: int) -> Iterator[str]:
        for index, hypotheses in enumerate(found, first_index):
            for best in hypotheses:
                if self.scores or self.num_best > 1:
                    yield f"{index} ||| {best.text} ||| {best.log_prob:.4f} ||| {best.score:.4f}"
                else:
                    yield best.text
