"""The command that translates or parses text."""

import sys
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
    from t2t_jax.decoding.translator import Hypothesis, Translator


@dataclass(frozen=True)
class TranslateCommand(LanguageFlags, DecodingFlags):
    """Translate or parse UTF-8 text: each line of input gives one line of output, in order.

    A parser reads words with spaces between them, and writes a tree in brackets with exactly these
    words. ( and ) become -LRB- and -RRB-. An output that is not a tree is repaired.

    Only a line feed ends a line. A line that is too long is split, or refused: in a file, before
    anything is written. With --num-best or --scores the output has lines of
    `index ||| translation ||| log-probability ||| score`, where index counts input lines from 0.
    """

    examples: ClassVar = (
        "runs/base --input test.en --output test.de",
        "runs/base runs/other --num-best 4 --beam-size 8",
        "runs/parser --input sentences --output trees.mrg",
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
        from t2t_jax.tasks import task_of
        from t2t_jax.tasks.text_to_text import TextToText

        with reading(self.input) as lines, writing(self.output) as file:
            chunks = self._prefixed(lines)
            translator = self.load()
            data = translator.config.data
            task = task_of(data.corpus, data.task)
            assert isinstance(task, TextToText)  # as `translate` is a command for these models
            self._check_lines(translator)
            done = repaired = 0
            for texts, prefixes in chunks:
                sources = [task.as_source(text) for text in texts]
                found = translator.nbest(
                    sources, self.num_best, prefixes=prefixes, first_line=done + 1, **self.settings
                )
                for index, (source, ranked) in enumerate(zip(sources, found, strict=True)):
                    for hypothesis in ranked:
                        text, is_repaired = task.answer(source, hypothesis.text)
                        repaired += is_repaired and hypothesis is ranked[0]
                        if self.scores or self.num_best > 1:
                            text = _with_scores(text, done + index, hypothesis)
                        file.write(f"{text}\n".encode())
                file.flush()
                done += len(texts)
        if repaired:
            print(f"{repaired} of {done} trees were repaired", file=sys.stderr)
        return 0

    def _check_lines(self, translator: "Translator") -> None:
        """Refuse a file with a line that is too long, before any of its lines is decoded.

        Lines of a pipe or of the standard input are checked later, some thousands at a time.
        """
        path = self.input
        if self.decoding.long_lines == "split" or path is None or not path.is_file():
            return
        done = 0
        with reading(path) as chunks:
            for texts in chunks:
                translator.check_lines(texts, first_line=done + 1, decoding=self.decoding)
                done += len(texts)

    def _prefixed(self, lines: Iterator[list[str]]) -> Iterator[tuple[list[str], list[str] | None]]:
        """Return the lines some thousands at a time, with their prefixes; None for no prefixes."""
        if self.prefixes is None:
            one = self.prefix
            return ((texts, None if one is None else [one] * len(texts)) for texts in lines)
        texts, prefixes = [*lines], [*read_lines(self.prefixes)]
        count = sum(map(len, texts))
        if count != len(prefixes):
            raise UserError(
                f"{self.prefixes} has {len(prefixes):,} lines, and {count:,} lines are to be "
                "translated; give a prefix for each, and an empty line for none"
            )
        rest = iter(prefixes)
        return ((some, [*islice(rest, len(some))]) for some in texts)


def _with_scores(text: str, index: int, hypothesis: "Hypothesis") -> str:
    return f"{index} ||| {text} ||| {hypothesis.log_prob:.4f} ||| {hypothesis.score:.4f}"
