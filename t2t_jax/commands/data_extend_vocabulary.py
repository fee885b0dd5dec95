"""The command that extends the vocabulary of a trained model by subwords of new text."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import tyro

from t2t_jax.commands.model_flags import RunFlags
from t2t_jax.commands.tables import grid, print_line, print_result
from t2t_jax.config import DataConfig
from t2t_jax.errors import UserError

if TYPE_CHECKING:
    from t2t_jax.data.vocabularies.extending import Extension
    from t2t_jax.data.vocabularies.shared import SharedVocabulary

_MOST_FREQUENT = 10


@dataclass(frozen=True)
class DataExtendVocabularyCommand(RunFlags):
    """Add subwords of new text, such as of another language, to a trained model's vocabulary.

    NEW has the model of RUN with rows for the new subwords. It translates at once, and a training
    starts from it by --training.init-from NEW. All of it is written, or nothing.
    """

    examples: ClassVar = ("runs/base runs/extended --corpus text:DIR --num-new 2000",)
    output: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="NEW")] = tyro.MISSING
    """The directory to write."""
    corpus: str = tyro.MISSING
    """Corpus whose train split the subwords are learned from, as data.corpus names it; in a
    mixture, each corpus counts by its weight."""
    num_new: int = tyro.MISSING
    """Number of new subwords, and of new characters among them."""
    source_language: str | None = None
    """Source language of that corpus; None is the run's data.source_language."""
    target_language: str | None = None
    """Target language of that corpus; None is the run's data.target_language."""

    def run(self) -> int:
        """Write the extended model, print what has changed, and return the exit code."""
        if self.num_new < 1:
            raise UserError(f"--num-new={self.num_new} adds nothing; give 1 or more")
        from t2t_jax.data.corpus import open_corpus
        from t2t_jax.data.vocabularies.extending import check_extensible, extend_vocabulary
        from t2t_jax.interchange import run
        from t2t_jax.interchange.extended import extended_model
        from t2t_jax.interchange.portable import portable_model
        from t2t_jax.system.atomic_file import writing_directory
        from t2t_jax.system.opening import check_directory_name
        from t2t_jax.workdir import read_config, read_vocabulary

        config = read_config(self.workdir)
        old = check_extensible(read_vocabulary(self.workdir), self.workdir)
        languages = {"source": self.source_language, "target": self.target_language}
        fields = {f"data.{side}_language": name for side, name in languages.items() if name}
        fields["data.corpus"] = self.corpus
        new = config.replace(fields)
        corpus = open_corpus(new.data)
        check_directory_name(self.output)
        with writing_directory(self.output) as place:
            model = portable_model(
                self.workdir, average=self.average, step=self.step, parallel=self.parallel
            )
            extension = extend_vocabulary(old, corpus.pairs("train"), self.num_new)
            run.write(extended_model(model, extension), place)
        _print(old, extension, {"new": _sample(new.data), "old": _sample(config.data)})
        start = dict.fromkeys(("config", "training.init_from"), str(self.output))
        flags = ((f"--{name.replace('_', '-')}", value) for name, value in (start | fields).items())
        command = shlex.join(["t2t-jax", "train", "FINE", *chain.from_iterable(flags)])
        print_line(f"{self.output} has the extended model; train it with: {command}")
        return 0


def _sample(data: DataConfig) -> list[str]:
    """Return lines of both sides of a corpus, of dev if it has one; [] if it is not at hand."""
    from t2t_jax.data.corpus import open_corpus

    try:
        corpus = open_corpus(data)
        split = "dev" if "dev" in corpus.splits else "train"
        sources, targets = next(corpus.pairs(split), ([], []))
    except UserError:
        return []
    return [*sources, *targets]


def _print(old: "SharedVocabulary", extension: "Extension", texts: dict[str, list[str]]) -> None:
    """Print how both vocabularies split texts, and the most frequent new subwords."""
    new = extension.vocabulary
    table = grid("", "before", "after")
    table.add_row("entries of the vocabulary", f"{len(old):,}", f"{len(new):,}")
    for name, lines in texts.items():
        before, after = _figures(old, lines), _figures(new, lines)
        for figure in before:
            table.add_row(f"{name} text: {figure}", before[figure], after[figure])
    print_result(table)
    found = zip(extension.counts, extension.pieces, strict=True)
    often = sorted(found, key=lambda item: (-item[0], item[1]))[:_MOST_FREQUENT]
    listed = ", ".join(f"{piece} ({count:,})" for count, piece in often)
    print_line(f"most frequent new subwords: {listed}")


def _figures(vocabulary: "SharedVocabulary", lines: Sequence[str]) -> dict[str, str]:
    """Return how finely a vocabulary splits lines, as text by the name of each figure."""
    from t2t_jax.data.vocabularies.extending import spare_ids

    ids = [token for row in vocabulary.encode(lines) for token in row[:-1]]  # without the end
    if not ids:
        return {}
    number, spare = len(ids), spare_ids(vocabulary)
    words, characters = (sum(map(len, each)) for each in (map(str.split, lines), lines))
    return {
        "subwords per word": f"{number / words:.2f}",
        "subwords per 100 characters": f"{100 * number / characters:.1f}",
        "unknown or in bytes": f"{sum(token in spare for token in ids) / number:.2%}",
    }
