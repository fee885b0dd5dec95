"""The cleaning of a corpus: one directory of parallel text is read as a stream, another written.

OUT/train.en ...              the pairs that are kept, in order
OUT/dev.en ...                the other splits, as they were
OUT/report.json, report.md    what the rules dropped, with samples, and what is left
OUT/SOURCES.md                how the corpus was made, above what the input says of itself
"""

import copy
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from t2t_jax.data.cleaning.clean import CleanedCounts, CleaningState, clean_pairs
from t2t_jax.data.cleaning.pairs import Scores, Side
from t2t_jax.data.cleaning.report import cleaning_report, write_cleaning_report
from t2t_jax.data.cleaning.rules import PairCleaning
from t2t_jax.data.corpus import TextFile, aligned_digest
from t2t_jax.data.splits import Chunk, chunks
from t2t_jax.system.atomic_file import writing_directory

Files: TypeAlias = Mapping[str, tuple[TextFile, TextFile]]
"""The files of source and target of each split."""
_NOT_DECODED = re.compile("[\udc80-\udcff]")
_MOST_NUMBERS = 100


def clean_corpus(
    files: Files, out: Path, cleaning: PairCleaning, runs: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Write those training pairs of a corpus that the rules keep, and the other splits unchanged.

    Args:
      files: files of every split, of which train is cleaned.
      out: directory to write, which takes its name once all is complete.
      cleaning: rules with their limits; its `held_out` is set here.
      runs: names of the runs behind the scores, for the report.

    Returns:
      What `report.json` holds.

    Raises:
      UserError: the directory is there and not empty, or the two files of a split differ in lines,
        or a file cannot be read, or has changed meanwhile.
    """
    with writing_directory(out) as directory:
        inputs = {split: aligned_digest(*pair) for split, pair in files.items()}
        others = {split: pair for split, pair in files.items() if split != "train"}
        if "held-out" in cleaning.rules:
            cleaning.held_out = _near_keys(others)
        skipped: dict[str, Any] = {"pairs": 0, "lines": []}
        by_share = cleaning.limits.keep_share is not None
        used = _by_share(files["train"], cleaning) if by_share else cleaning
        counts, state = CleanedCounts(), CleaningState()
        with ExitStack() as stack:
            paths = (directory / f"train.{language}" for language in cleaning.languages)
            written = [stack.enter_context(path.open("wb")) for path in paths]
            for chunk in _decoded(files["train"], skipped):
                kept, own = clean_pairs(chunk, used, state)
                counts += own
                for side, lines in zip(written, kept, strict=True):
                    side.writelines(f"{line}\n".encode() for line in lines)
        for split, pair in others.items():
            for language, file in zip(cleaning.languages, pair, strict=True):
                _copy(file.path, directory / f"{split}.{language}")
        report = cleaning_report(cleaning, counts, inputs, skipped, runs or {})
        beside = files["train"][0].path.parent / "SOURCES.md"
        said = beside.read_text("utf-8", "replace") if beside.is_file() else ""
        write_cleaning_report(directory, report, said)
    return report


def _decoded(files: tuple[TextFile, TextFile], skipped: dict[str, Any]) -> Iterator[Chunk]:
    """Yield chunks of pairs without those that are not UTF-8, which are counted in `skipped`."""

    def pairs() -> Iterator[tuple[str, str]]:
        sides = (file.lines("surrogateescape") for file in files)
        for number, (source, target) in enumerate(zip(*sides, strict=True), 1):
            if _NOT_DECODED.search(source) or _NOT_DECODED.search(target):
                skipped["pairs"] += 1
                skipped["lines"] += [number] if len(skipped["lines"]) < _MOST_NUMBERS else []
            else:
                yield source, target

    return chunks(pairs())


def _near_keys(others: Files) -> tuple[Any, ...]:
    """Return the hashes of the sources and of the targets of splits."""
    sides = ([file.lines() for file in files] for files in zip(*others.values(), strict=True))
    return tuple(np.unique(Side([*chain.from_iterable(side)]).near_keys) for side in sides)


def _by_share(files: tuple[TextFile, TextFile], cleaning: PairCleaning) -> PairCleaning:
    """Return the cleaning with the least score that keeps a share, from a pass over the corpus.

    The scores of the pass, 8 bytes a pair, take the place of the scorer in the next one.
    """
    assert cleaning.scorer is not None
    scores: list[Scores] = []
    scorer, state, first, then = cleaning.scorer, CleaningState(), *map(copy.copy, [cleaning] * 2)

    def keep(*lines: Any) -> Scores:
        scores.append(scorer(*lines))
        return scores[-1]

    first.scorer = keep
    for chunk in _decoded(files, {"pairs": 0, "lines": []}):
        clean_pairs(chunk, first, state)
    ranked = np.sort(np.concatenate([*scores, np.zeros(0)]))[::-1]
    place = max(1, round((cleaning.limits.keep_share or 0.0) * len(ranked))) - 1
    least = float(ranked[place]) if len(ranked) else 0.0
    then.limits = replace(cleaning.limits, keep_share=None, min_score=least)
    again = iter(scores)
    then.scorer = lambda *_: next(again)
    return then


def _copy(source: Path, target: Path) -> None:
    """Copy a file, which stays packed if it is."""
    if source.suffix == ".gz":
        target = target.with_name(f"{target.name}.gz")
    with source.open("rb") as file, target.open("wb") as copied:
        shutil.copyfileobj(file, copied)
