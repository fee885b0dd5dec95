"""The command `translate`: translate or parse text."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from t2t_jax.commands.model_flags import DecodingFlags, LanguageFlags
from t2t_jax.commands.streams import open_input, open_output
from t2t_jax.data.lines import read_lines
from t2t_jax.errors import UserError

if TYPE_CHECKING:
    from t2t_jax.decoding.translator import Hypothesis, Translator


@dataclass(frozen=True)
class TranslateCommand(LanguageFlags, DecodingFlags):
    """Translate or parse UTF-8 text line by line.

    A parser reads space-separated words and writes a bracketed tree with exactly these words; ( and
    ) become -LRB- and -RRB-. Output that is not a tree is repaired.

    Only a line feed ends a line. A line that is too long is split or refused; in a file, it is
    refused before any output is written. With --num-best or --scores, an output line is
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
    """Output file, written atomically; None is the standard output."""
    num_best: int = 1
    """Number of translations per line, best first; at most the beam size."""
    scores: bool = False
    """Write scores even for a single translation per line."""
    prefix: str | None = None
    """Text that every translation starts with."""
    prefixes: Path | None = None
    """File with a prefix for each input line: the text that its translation starts with. The whole
    input is read before translation starts."""

    def run(self) -> int:
        """Translate the input in chunks of lines to bound memory, and return the exit code."""
        if self.prefix is not None and self.prefixes is not None:
            raise UserError("--prefix and --prefixes cannot be combined; give only one of them")
        from t2t_jax.tasks import task_of
        from t2t_jax.tasks.text_to_text import TextToText

        with open_input(self.input) as line_chunks, open_output(self.output) as file:
            chunks = self._prefixed(line_chunks)
            translator = self.load()
            data = translator.config.data
            task = task_of(data.corpus, data.task)
            assert isinstance(task, TextToText)  # as `translate` is a command for these models
            self._check_lines(translator)
            count = num_repaired = 0
            for texts, prefixes in chunks:
                sources = [task.as_source(text) for text in texts]
                nbest = translator.nbest(
                    sources, self.num_best, prefixes=prefixes, first_line=count + 1, **self.settings
                )
                for index, (source, ranked) in enumerate(zip(sources, nbest, strict=True)):
                    for hypothesis in ranked:
                        text, is_repaired = task.answer(source, hypothesis.text)
                        num_repaired += is_repaired and hypothesis is ranked[0]
                        if self.scores or self.num_best > 1:
                            text = _with_scores(text, count + index, hypothesis)
                        file.write(f"{text}\n".encode())
                file.flush()  # for interactive use
                count += len(texts)
        if num_repaired:
            print(f"{num_repaired} of {count} trees were repaired", file=sys.stderr)
        return 0

    def _check_lines(self, translator: "Translator") -> None:
        """Raise a `UserError` before any translation if a line of the input file is too long."""
        path = self.input
        if self.decoding.long_lines == "split" or path is None or not path.is_file():
            return
        num_lines = 0
        with open_input(path) as chunks:
            for texts in chunks:
                translator.check_lines(texts, first_line=num_lines + 1, decoding=self.decoding)
                num_lines += len(texts)

    def _prefixed(
        self, chunks: Iterator[list[str]]
    ) -> Iterator[tuple[list[str], list[str] | None]]:
        """Yield chunks of lines with their prefixes; None without --prefix and --prefixes."""
        if self.prefixes is None:
            prefix = self.prefix
            return ((texts, None if prefix is None else [prefix] * len(texts)) for texts in chunks)
        all_chunks, prefixes = [*chunks], [*read_lines(self.prefixes)]
        if (count := sum(map(len, all_chunks))) != len(prefixes):
            raise UserError(
                f"{self.prefixes} has {len(prefixes):,} lines, but the input has {count:,}; "
                "give one prefix per input line, and an empty line for no prefix"
            )
        remaining = iter(prefixes)
        return ((chunk, [*islice(remaining, len(chunk))]) for chunk in all_chunks)


def _with_scores(text: str, index: int, hypothesis: "Hypothesis") -> str:
    return f"{index} ||| {text} ||| {hypothesis.log_prob:.4f} ||| {hypothesis.score:.4f}"
