"""Commands of `eval.py` that decode what they are given: translate, parse, score."""

import dataclasses
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from t2t_jax.commands.streams import reading, writing
from t2t_jax.config import DecodingConfig
from t2t_jax.data.lines import read_lines
from t2t_jax.errors import UserError

if TYPE_CHECKING:
    from t2t_jax.decoding.forced import ForcedScore
    from t2t_jax.decoding.translator import Hypothesis, Translator


@dataclass(frozen=True)
class Model:
    """Which model."""

    workdir: tuple[Path, ...] = tyro.MISSING
    """Directory of the run; several are an ensemble, which predicts their mean probabilities."""
    average: int | None = None
    """How many of the last checkpoints to average (section 6.1; base: 5, big: 20); None is the
    run's checkpoint.average."""
    step: int | Literal["best"] | None = None
    """Step of the last of them, or best for the best dev score; None is the newest."""

    def load(self) -> "Translator":
        """The translator of the run, or of the ensemble."""
        from t2t_jax.run.loading import load

        return load(self.workdir, average=self.average, step=self.step)


@dataclass(frozen=True)
class Decode(Model):
    """Which model decodes, and how."""

    seed: int = 0
    """Seed of sampling (temperature above 0)."""
    decoding: Annotated[DecodingConfig, tyro.conf.arg(name="")] = field(
        default_factory=DecodingConfig
    )

    def check_lines(self, translator: "Translator", path: Path | None) -> None:
        """Refuse a file for a line in it that is too long, before any line of it is decoded.

        Of a pipe, and of the standard input, each few thousand lines are seen together.
        """
        if self.decoding.long_lines == "split" or path is None or not path.is_file():
            return
        done = 0
        with reading(path) as chunks:
            for texts in chunks:
                settings = dataclasses.asdict(self.decoding)
                translator.check_lines(texts, first_line=done + 1, **settings)
                done += len(texts)

    @property
    def settings(self) -> dict[str, Any]:
        """The keyword arguments of `Translator.translate`."""
        return {"seed": self.seed, **dataclasses.asdict(self.decoding)}


@dataclass(frozen=True)
class Translate(Decode):
    """Translate UTF-8 text: each line of input gives one line of output, in order.

    Only a line feed ends a line. One that is too long is split, or refused: of a file, before
    anything is written. With --num-best or --scores the output has lines of
    `index ||| translation ||| log-probability ||| score`, where index counts input lines from 0.
    """

    input: Path | None = None
    """File to translate; None is the standard input."""
    output: Path | None = None
    """File to write, all of it or nothing; None is the standard output."""
    num_best: int = 1
    """Translations of each line, best first; at most the beam size."""
    scores: bool = False
    """Write the format with scores for a single translation too."""

    def run(self) -> int:
        """Translate a few thousand lines at a time, so that memory is bounded."""
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


@dataclass(frozen=True)
class Parse(Decode):
    """Parse tokenised sentences: each line of input gives one line, its tree in brackets, in order.

    Words are separated by spaces, as the Penn Treebank tokenises them; ( and ) become -LRB- and
    -RRB-. Every tree is well-formed and has exactly these words: what the model gets wrong is
    repaired, and how many trees that concerned is said at the end. A blank line stays blank.
    """

    input: Path | None = None
    """File of sentences; None is the standard input."""
    output: Path | None = None
    """File to write, all of it or nothing; None is the standard output."""

    def run(self) -> int:
        """Parse a few thousand lines at a time."""
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


@dataclass(frozen=True)
class Score(Model):
    """The log-probability of given translations under a model (forced decoding).

    Each pair of lines gives a line `log-probability ||| log-probability of each subword`, in nats,
    the end of the sentence included. With --subwords each is written as `subword=log-probability`.
    """

    source: Path = tyro.MISSING
    """File of source sentences."""
    target: Path = tyro.MISSING
    """File of their translations, line by line."""
    output: Path | None = None
    """File to write, all of it or nothing; None is the standard output."""
    subwords: bool = False
    """Write the subwords too."""

    def run(self) -> int:
        """Score and write."""
        from t2t_jax.decoding.forced import score

        sources, targets = list(read_lines(self.source)), list(read_lines(self.target))
        if len(sources) != len(targets):
            raise UserError(
                f"{self.source} has {len(sources)} lines, but {self.target} has {len(targets)}; "
                "line n of one must translate line n of the other"
            )
        with writing(self.output) as file:
            translator = self.load()
            scores = score(translator, sources, targets)
            pieces = translator.vocabulary.pieces([one.tokens for one in scores])
            file.writelines(map(self._line, scores, pieces))
        return 0

    def _line(self, score: "ForcedScore", pieces: Sequence[str]) -> bytes:
        tokens = [f"{log_prob:.4f}" for log_prob in score.token_log_probs]
        if self.subwords:
            tokens = [f"{piece}={token}" for piece, token in zip(pieces, tokens, strict=True)]
        return f"{score.log_prob:.4f} ||| {' '.join(tokens)}\n".encode()
