"""The command that drops noisy pairs from parallel text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import tyro

from t2t_jax.commands.flag_table import MAY_STAND_ALONE
from t2t_jax.commands.groups import check_command
from t2t_jax.commands.tables import grid, print_line, print_result
from t2t_jax.data.cleaning.limits import CleaningLimits
from t2t_jax.errors import UserError
from t2t_jax.system.bucket import as_path

if TYPE_CHECKING:
    from t2t_jax.data.cleaning.rules import PairCleaning, Scorer
    from t2t_jax.data.splits import Split
    from t2t_jax.data.text_files import TextFile

_SHARDS = "shards:"


@dataclass(frozen=True)
class DataCleanCommand:
    """Drop noisy pairs from parallel text, and write what is left to the directory OUT.

    The text is a directory with train.en, train.de and so on, two files, plain or .gz, or
    shards:PATTERN. Other splits are written as they are. OUT/report.md says what each rule dropped.
    """

    advice: ClassVar = (
        "{program} takes a directory of parallel text, or two files, and a directory to write, as "
        "in {program} corpora/web corpora/web-clean; see --help"
    )
    examples: ClassVar = (
        "DIR corpora/clean",
        "DIR corpora/clean --rules standard language --without copies --max-words 100",
        "web.en web.fr corpora/clean --target-language fr",
        "'shards:web/{split}-*.parquet' corpora/clean --ray",
    )
    lists_fields: ClassVar = False
    paths: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="TEXT OUT")] = ()
    """The directory of parallel text, two files of it, or shards; behind it, the directory to write
    or, for shards, a place in a bucket."""
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
    fields: tuple[str, ...] = ()
    """Names of the columns of shards with source and target; else they are the languages."""
    ray: Annotated[str | None, MAY_STAND_ALONE] = None
    """Address of a cluster of Ray whose machines clean shards; see data prepare --help."""
    limits: Annotated[CleaningLimits, tyro.conf.arg(name="")] = field(
        default_factory=CleaningLimits
    )

    def run(self) -> int:
        """Clean the text, print what was dropped, and return the exit code."""
        from t2t_jax.data.cleaning.report import cleaning_rows, cleaning_summary
        from t2t_jax.data.cleaning.stream import clean_corpus
        from t2t_jax.data.shards.engines import in_this_process, on_ray
        from t2t_jax.data.shards.listing import written_place

        *texts, out = self.paths or [""]
        numbered = texts[:1] != [] and texts[0].startswith(_SHARDS)
        splits, cleaning = self.splits(texts), self.cleaning()
        runs = {"forward": self.forward, "backward": self.backward} if self.forward else {}
        named = {name: str(run) for name, run in runs.items()}
        engine = in_this_process if self.ray is None else on_ray(self.ray)
        report = clean_corpus(splits, as_path(out), cleaning, named, engine, numbered=numbered)
        table = grid("rule", "pairs", "alone")
        for name, pairs, alone, _ in cleaning_rows(report):
            table.add_row(name, pairs, alone)
        print_result(table)
        print_result("pairs: the rule is the first to drop them; alone: without the other rules")
        name = f"'{written_place(out)}'" if numbered else f"text:{out}"
        print_line(f"{cleaning_summary(report)}; train on them with --data.corpus {name}")
        return 0

    def cleaning(self) -> "PairCleaning":
        """Return the rules with their limits, and the two runs loaded, if they are given."""
        from t2t_jax.data.cleaning.rules import PairCleaning

        scorer, rules = self._scorer(), self.rules
        if scorer is not None:
            rules = *rules, "cross-entropy"
        languages = self.source_language, self.target_language
        return PairCleaning(languages, self.limits, rules, without=self.without, scorer=scorer)

    def splits(self, texts: Sequence[str]) -> "Mapping[str, Split]":
        """Return the splits of the text, each with its shards."""
        from t2t_jax.config import DataConfig
        from t2t_jax.data.corpus import open_corpus
        from t2t_jax.data.text_files import TextFile, corpus_directory, parallel_files

        languages = self.source_language, self.target_language
        if len(texts) not in (1, 2):
            raise UserError(
                f"{' '.join(self.paths)!r} is not a directory of parallel text, two files, or "
                "shards, and a directory to write; give them in this order"
            )
        if len(texts) == 2:
            source, target = map(as_path, texts)
            return {"train": _split((TextFile(source), TextFile(target)), languages)}
        [place] = texts
        if place.startswith(_SHARDS):
            corpus = open_corpus(DataConfig(place, *languages, fields=self.fields))
            found = corpus.parts
            if any(often > 1 or not one.parts["train"].shards for one, often in corpus.mixed):
                raise UserError(
                    f"{place} has weights, or text that is no shards; clean each corpus by itself"
                )
        else:
            place = str(corpus_directory(place.removeprefix("text:")))
            files = parallel_files(as_path(place), *languages)
            found = {name: _split(pair, languages) for name, pair in files.items()}
        if "train" not in found:
            raise UserError(f"{place} has no train split to clean, only {', '.join(found)}")
        return found

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


def _split(files: "tuple[TextFile, TextFile]", languages: tuple[str, str]) -> "Split":
    from t2t_jax.data.shards.reading import Shard
    from t2t_jax.data.splits import Split
    from t2t_jax.data.text_files import aligned_digest

    shard = Shard(tuple(file.path for file in files), languages)
    return Split(partial(aligned_digest, *files), shard.pairs, shards=(shard,))
