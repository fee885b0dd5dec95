"""The command that parses sentences into constituency trees."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from t2t_jax.commands.model_flags import DecodingFlags
from t2t_jax.commands.streams import reading, writing


@dataclass(frozen=True)
class ParseCommand(DecodingFlags):
    """Parse tokenised sentences: each line of input gives one line, its tree in brackets, in order.

    Words are separated by spaces, as the Penn Treebank tokenises them; ( and ) become -LRB- and
    -RRB-. Every tree is well-formed and has exactly these words: what the model gets wrong is
    repaired, and the number of repaired trees is printed at the end. A blank line stays blank.
    """

    examples: ClassVar = ("runs/parser --input sentences --output trees.mrg",)
    command: ClassVar = "parse"
    input: Path | None = None
    """File of sentences, plain or .gz; None is the standard input."""
    output: Path | None = None
    """File to write, all of it or nothing; None is the standard output."""

    def run(self) -> int:
        """Parse some thousand lines at a time, to bound the memory, and return the exit code."""
        from t2t_jax.data.trees import format_tree
        from t2t_jax.tasks.parsing import parse

        done = repaired = 0
        with reading(self.input) as chunks, writing(self.output) as file:
            translator = self.load()
            self.check_lines(translator, self.input)
            for texts in chunks:
                parsed = parse(translator, texts, first_line=done + 1, **self.settings)
                written = (format_tree(tree) if tree.children else "" for tree, _ in parsed)
                file.writelines(f"{line}\n".encode() for line in written)
                file.flush()
                done += len(texts)
                repaired += sum(repairs > 0 for _, repairs in parsed)
        print(f"{repaired} of {done} trees were repaired", file=sys.stderr)
        return 0
