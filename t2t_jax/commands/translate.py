"""The command that translates text."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from t2t_jax.commands.model_flags import DecodingFlags, LanguageFlags
from t2t_jax.commands.streams import reading, writing
from t2t_jax.data.lines import read_lines
from t2t_jax.errors import UserError

if TYPE_CHECKING:
    from t2t_jax.decoding.translations import Hypothesis


@dataclass(frozen=True)
class TranslateCommand(LanguageFlags, DecodingFlags):
    """Translate UTF-8 text: each line of input gives one line of output, in order.

    Only a line feed ends a line. A line that is too long is split, or refused: in a file, before
    anything is written. With --num-best or --scores the output has lines of
    `index ||| translation ||| log-probability ||| score`, where index counts input lines from 0.
    """

    examples: ClassVar = (
        "runs/base --input test.en --output test.de",
        "runs/base runs/other --num-best 4 --beam-size 8",
    )
    command: ClassVar = "translate"
    input: Path | None = None
    """File to translate, plain or .gz; None is the standard input."""
    output: Path | None = None
    """File to write, all of it or nothing; None is the standard output."""
    num_best: int = 1
    """Number of translations of each line, best first; at most the beam size."""
    scores: bool = False
    """Write the format with scores for a single translation too."""
    prefix: str | None = None
    """Text with which every translation begins."""
    prefixes: Path | None = None
    """File with a line for each line of input: the text with which its translation begins. All of
    the input is read before the first line is translated."""

    def run(self) -> int:
        """Translate some thousand lines at a time, to bound memory, and return the exit code."""
        if self.prefix is not None and self.prefixes is not None:
            raise UserError("--prefix and --prefixes both say how translations begin; give one")
        with reading(self.input) as lines, writing(self.output) as file:
            chunks = self._with_prefixes(lines)
            translator = self.load()
            self.check_lines(translator, self.input)
            done = 0
            for texts, prefixes in chunks:
                found = translator.nbest(
                    texts, self.num_best, prefixes=prefixes, first_line=done + 1, **self.settings
                )
                written = self._format(found, first_index=done)
                file.writelines(f"{line}\n".encode() for line in written)
                file.flush()
                done += len(texts)
        return 0

    def _with_prefixes(
        self, chunks: Iterator[list[str]]
    ) -> Iterator[tuple[list[str], list[str] | None]]:
        """Return the lines some thousands at a time, with their prefixes; None for no prefixes."""
        if self.prefixes is None:
            one = self.prefix
            return ((texts, None if one is None else [one] * len(texts)) for texts in chunks)
        texts, prefixes = [*chunks], [*read_lines(self.prefixes)]
        count = sum(map(len, texts))
        if count != len(prefixes):
            raise UserError(
                f"{self.prefixes} has {len(prefixes):,} lines, and {count:,} lines are to be "
                "translated; give a prefix for each, and an empty line for none"
            )
        rest = iter(prefixes)
        return ((some, [*islice(rest, len(some))]) for some in texts)

    def _format(self, found: list[list["Hypothesis"]], first_index: int) -> Iterator[str]:
        for index, hypotheses in enumerate(found, first_index):
            for best in hypotheses:
                if self.scores or self.num_best > 1:
                    yield f"{index} ||| {best.text} ||| {best.log_prob:.4f} ||| {best.score:.4f}"
                else:
                    yield best.text
