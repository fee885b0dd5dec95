"""The command that drops noisy pairs from parallel text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import tyro

from t2t_jax.commands.groups import check_command
from t2t_jax.commands.tables import grid, print_line, print_result
from t2t_jax.data.cleaning.limits import CleaningLimits
from t2t_jax.errors import UserError
from t2t_jax.system.bucket import as_path

if TYPE_CHECKING:
    from t2t_jax.data.cleaning.rules import PairCleaning, Scorer
    from t2t_jax.data.corpus import TextFile


@dataclass(frozen=True)
class DataCleanCommand:
    """Drop noisy pairs from parallel text, and write what is left to the directory OUT.

    The text is a directory with train.en, train.de and so on, or two files, plain or .gz. Other
    splits are copied as they are. OUT/report.md says what each rule dropped.
    """

    advice: ClassVar = (
        "{program} takes a directory of parallel text, or two files, and a directory to write, as "
        "in {program} corpora/web corpora/web-clean; see --help"
    )
    examples: ClassVar = (
        "DIR corpora/clean",
        "DIR corpora/clean --rules standard language --without copies --max-words 100",
        "web.en web.fr corpora/clean --target-language fr",
    )
    lists_fields: ClassVar = False
    paths: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="TEXT OUT")] = ()
    """The directory of parallel text, or two files of it; behind it, the directory to write."""
    source_language: str = "en"
    """Language of the sources, as the names of files end."""
    target_language: str = "de"
    """Language of the targets, as the names of files end."""
    rules: tuple[str, ...] = ("standard",)
    """Rules that are applied; standard stands for those that need nothing else."""
    without: tuple[str, ...] = ()
    """Rules that are left out of them."""
    forward: Path | None = None
    """Run that translates the sources; with --backward, it adds the rule cross-entropy."""
    backward: Path | None = None
    """Run that translates the targets into the language of the sources."""
    limits: Annotated[CleaningLimits, tyro.conf.arg(name="")] = field(
        default_factory=CleaningLimits
    )

    def run(self) -> int:
        """Clean the text, print what was dropped, and return the exit code."""
        from t2t_jax.data.cleaning.report import cleaning_rows, cleaning_summary
        from t2t_jax.data.cleaning.stream import clean_corpus

        files, out = self._places()
        runs = {"forward": self.forward, "backward": self.backward} if self.forward else {}
        cleaning = self.cleaning()
        report = clean_corpus(files, out, cleaning, {name: str(run) for name, run in runs.items()})
        table = grid("rule", "pairs", "alone")
        for name, pairs, alone, _ in cleaning_rows(report):
            table.add_row(name, pairs, alone)
        print_result(table)
        print_result("pairs: the rule is the first to drop them; alone: without the other rules")
        print_line(f"{cleaning_summary(report)}; train on them with --data.corpus text:{out}")
        return 0

    def cleaning(self) -> "PairCleaning":
        """Return the rules with their limits, and the two runs loaded, if they are given."""
        from t2t_jax.data.cleaning.rules import PairCleaning

        scorer, rules = self._scorer(), self.rules
        if scorer is not None:
            rules = *rules, "cross-entropy"
        languages = self.source_language, self.target_language
        return PairCleaning(languages, self.limits, rules, without=self.without, scorer=scorer)

    def _places(self) -> "tuple[Mapping[str, tuple[TextFile, TextFile]], Path]":
        """Return the files of each split, and the directory to write."""
        from t2t_jax.data.corpus import TextFile, corpus_directory, parallel_files

        *texts, out = self.paths or [""]
        if len(texts) not in (1, 2):
            raise UserError(
                f"{' '.join(self.paths)!r} is not a directory of parallel text, or two files, and "
                "a directory to write; give them in this order"
            )
        if len(texts) == 2:
            source, target = map(as_path, texts)
            return {"train": (TextFile(source), TextFile(target))}, as_path(out)
        directory = corpus_directory(texts[0].removeprefix("text:"))
        files = parallel_files(directory, self.source_language, self.target_language)
        if "train" not in files:
            raise UserError(f"{directory} has no train split to clean, only {', '.join(files)}")
        return files, as_path(out)

    def _scorer(self) -> "Scorer | None":
        """Return what computes dual cross-entropy scores by the two runs, if they are given."""
        if self.forward is None and self.backward is None:
            return None
        if self.forward is None or self.backward is None:
            missing = "--forward" if self.forward is None else "--backward"
            raise UserError(f"{missing} is missing; the score needs runs of both directions")
        runs = self.forward, self.backward
        check_command("score", runs)
        from t2t_jax.data.cleaning.rules import dual_cross_entropy
        from t2t_jax.decoding.scoring import cross_entropies
        from t2t_jax.run.loading import load
        from t2t_jax.workdir import read_config

        pair = self.source_language, self.target_language
        for run, (source, target) in zip(runs, (pair, pair[::-1]), strict=True):
            data = read_config(run).data
            if (data.source_language, data.target_language) != (source, target):
                raise UserError(
                    f"{run} translates {data.source_language} to {data.target_language}, and not "
                    f"{source} to {target}; give runs of both directions"
                )
        forward, backward = map(load, runs)

        def scores(sources: Sequence[str], targets: Sequence[str]) -> Any:
            there = cross_entropies(forward, sources, targets)
            return dual_cross_entropy(there, cross_entropies(backward, targets, sources))

        return scores
