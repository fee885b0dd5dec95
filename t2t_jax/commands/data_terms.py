"""The command that makes pairs from which a model learns to use wanted terms."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import tyro

from t2t_jax.commands.tables import print_line
from t2t_jax.errors import UserError
from t2t_jax.system.bucket import as_path


@dataclass(frozen=True)
class DataTermsCommand:
    """Make pairs whose sources say how their terms are translated, to train on beside a corpus.

    A model that was trained on them gets such sources from translate --glossary and the server,
    and fits the sentence around a term to it, as by its gender (Dinu et al. 2019).
    """

    advice: ClassVar = (
        "{program} takes a corpus and a directory to write, as in {program} text:corpora/mine "
        "corpora/terms; see --help"
    )
    examples: ClassVar = (
        "text:corpora/mine corpora/terms",
        "text:corpora/mine corpora/terms --glossary general.tsv --share 0.2",
    )
    corpus: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="CORPUS")] = tyro.MISSING
    """The corpus whose train split is read, as data.corpus names it."""
    out: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")] = tyro.MISSING
    """The directory to write train files, and the glossary if that is learned, to."""
    glossary: Path | None = None
    """File of terms, as for translate; None learns words that translate each other from the
    corpus. Terms of use in translation later need not be among them."""
    share: float = 0.1
    """Share of the pairs with a term in both sides that are written."""
    source_language: str = "en"
    """Language of the sources, the file suffix."""
    target_language: str = "de"
    """Language of the targets, the file suffix."""
    seed: int = 0
    """Seed of the choice of pairs."""

    def run(self) -> int:
        """Write the pairs, say how many they are, and return the exit code."""
        from t2t_jax.config import DataConfig
        from t2t_jax.data.corpus import open_corpus
        from t2t_jax.data.terms import TERM_MARKS, learned_glossary, marked_pairs, read_glossary
        from t2t_jax.system.atomic_file import write_whole

        if not 0 < self.share <= 1:
            raise UserError(f"--share {self.share} is not above 0 and at most 1")
        out, languages = as_path(self.out), (self.source_language, self.target_language)
        if out.is_dir() and any(out.iterdir()):
            raise UserError(f"{out} exists and is not empty; choose another directory")
        corpus = open_corpus(DataConfig(self.corpus, *languages))
        if self.glossary is None:
            glossary = learned_glossary(corpus.pairs("train"))
        else:
            glossary = read_glossary(self.glossary)
        pairs = [*marked_pairs(corpus.pairs("train"), glossary, self.share, self.seed)]
        if not pairs:
            raise UserError(
                f"no pair of {self.corpus} that was drawn has one of {len(glossary.terms):,} terms "
                "in both sides; raise --share, or give other terms"
            )
        out.mkdir(parents=True, exist_ok=True)
        if self.glossary is None:
            lines = (f"{term.source}\t{term.target}\n" for term in glossary.terms)
            write_whole(out / "terms.tsv", "".join(lines).encode())
        for language, side in zip(languages, zip(*pairs, strict=True), strict=True):
            write_whole(out / f"train.{language}", "".join(f"{one}\n" for one in side).encode())
        print_line(f"{len(pairs):,} pairs with {len(glossary.terms):,} terms; train on them with")
        marks = " ".join(f"'{mark}'" for mark in TERM_MARKS)
        print_line(f"--data.corpus '{self.corpus}+text:{out}' --data.protected-tokens {marks}")
        return 0
