"""The command `data`: download a public corpus and prepare it as text."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import tyro

from t2t_jax.commands.tables import grid, print_result, progress
from t2t_jax.errors import UserError
from t2t_jax.extras.corpora.catalogue import CORPORA, Archive, Cleaning
from t2t_jax.system.bucket import check_local


@dataclass(frozen=True)
class DataCommand:
    """Download a public corpus and write it as text files for --data.corpus text:DIR.

    Downloaded archives stay in DIR/archives. To resume after an interruption, run the same command.
    """

    advice: ClassVar = (
        f"{{program}} takes a corpus ({', '.join(CORPORA)}) and a directory, as in {{program}} "
        "multi30k-en-de corpora/multi30k; see --help"
    )
    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="CORPUS")] = tyro.MISSING
    """Corpus: wmt14-en-de, wmt14-en-fr, wmt16-en-ro, multi30k-en-de or iwslt14-de-en."""
    directory: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")] = tyro.MISSING
    """Directory to write the corpus to."""
    mirror: str | None = None
    """URL of a mirror of the archives, such as https://mirror.example/wmt or file:///data/wmt; None
    is the original servers. DIR/SOURCES.md lists the file names."""
    max_words: int | None = None
    """Maximum number of words per side of a training pair. Without --max-words and --max-ratio, the
    usual limits of the corpus apply."""
    max_ratio: float | None = None
    """Maximum ratio between the numbers of words of the two sides of a training pair. Without
    --max-words and --max-ratio, the usual limits of the corpus apply."""

    def run(self) -> int:
        """Prepare the corpus, print its sizes, and return the exit code."""
        from rich.progress import BarColumn, DownloadColumn, TransferSpeedColumn

        from t2t_jax.extras.corpora.prepare import prepare_corpus
        from t2t_jax.extras.corpora.transfer import fetch_archive

        if self.max_words is not None and self.max_words < 1:
            raise UserError(f"--max-words={self.max_words} would leave no pairs; give 1 or more")
        if self.max_ratio is not None and not 1 <= self.max_ratio < math.inf:
            raise UserError(f"--max-ratio={self.max_ratio} is invalid; give 1 or more")
        check_local(self.directory)
        is_custom = self.max_words is not None or self.max_ratio is not None
        cleaning = Cleaning(self.max_words, self.max_ratio) if is_custom else None
        columns = "{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn()
        with progress(*columns) as bars:

            def fetch_visibly(archive: Archive, directory: Path) -> Path:
                task = bars.add_task(archive.name, total=archive.size)
                return fetch_archive(
                    archive, directory, self.mirror, lambda n: bars.update(task, completed=n)
                )

            split_counts = prepare_corpus(self.name, self.directory, fetch_visibly, cleaning)
        table = grid("split", "pairs", "source words", "target words", "left out")
        for split, totals in split_counts.items():
            figures = (f"{n:,}" for n in (totals.pairs, totals.source_words, totals.target_words))
            table.add_row(split, *figures, totals.reasons)
        print_result(table)
        # With custom limits, the files are not the standard corpus of this name.
        scheme = "text" if is_custom else self.name
        print_result(f"train on it with --data.corpus {scheme}:{self.directory}")
        return 0
