"""The cleaning of a corpus: shards of parallel text are read as a stream, others are written.

OUT/train.en ...              the pairs of two files that are kept, in order, or
OUT/train-00000.en.gz ...     those of each shard
OUT/dev.en ...                the other splits, as they were
OUT/report.json, report.md    what the rules dropped, with samples, and what is left
OUT/SOURCES.md                how the corpus was made, above what the input says of itself

An engine applies the rules to each shard. Which pairs are repeated is decided here, shard after
shard, from the keys alone; then the engine reads each shard again and writes what is left of it. So
the bytes do not depend on the engine.
"""

import gzip
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from t2t_jax.data.cleaning.clean import (
    CleanedCounts,
    CleaningState,
    Examined,
    LeftScores,
    Reasons,
    drop_improbable,
    drop_repeated,
    examine,
    kept_and_counted,
    least_score,
    scores_of_left,
)
from t2t_jax.data.cleaning.pairs import Keys, Side
from t2t_jax.data.cleaning.report import cleaning_report, write_cleaning_report
from t2t_jax.data.cleaning.rules import SCORED, PairCleaning
from t2t_jax.data.shards.engines import Engine, in_this_process
from t2t_jax.data.shards.listing import written_shard
from t2t_jax.data.shards.reading import Faults, Shard
from t2t_jax.data.splits import Chunk, Split
from t2t_jax.errors import UserError
from t2t_jax.system.atomic_file import writing_directory, writing_whole
from t2t_jax.system.bucket import BucketPath

_PACKING_LEVEL = 6


class _Writing(NamedTuple):
    """The writing of what is left of a shard."""

    shard: Shard
    files: tuple[Path, ...]
    """The files of source and target."""
    examined: Examined | None = None
    """Which pairs are dropped; None if all are kept."""


def clean_corpus(
    splits: Mapping[str, Split],
    out: Path,
    cleaning: PairCleaning,
    runs: Mapping[str, str] | None = None,
    engine: Engine = in_this_process,
    *,
    numbered: bool = False,
) -> dict[str, Any]:
    """Write those training pairs of a corpus that the rules keep, and all pairs of other splits.

    Args:
      splits: splits that have shards, of which train is cleaned.
      out: directory to write, which takes its name once all is complete; or a place in a bucket.
      cleaning: rules with their limits; its `held_out` is set here.
      runs: names of the runs behind the scores, for the report.
      engine: what applies the rules to shards, and writes shards.
      numbered: whether each shard is written as two packed files with its number, as otherwise the
        only shard of each split is written as two plain files.

    Returns:
      What `report.json` holds.

    Raises:
      UserError: the directory is there and not empty, or a shard cannot be read as a whole, or a
        line of another split than train is at fault.
    """
    with _filling(out) as directory:
        inputs = {split: part.fingerprint() for split, part in splits.items()}

        def files(split: str, number: int) -> tuple[Path, ...]:
            if numbered:
                return tuple(written_shard(directory, split, number, cleaning.languages))
            return tuple(directory / f"{split}.{language}" for language in cleaning.languages)

        others = [
            _Writing(shard, files(split, number))
            for split, part in splits.items()
            for number, shard in enumerate(part.shards)
            if split != "train"
        ]
        for _, faults in engine(partial(_write, ()), others):
            _refuse(faults)
        if "held-out" in cleaning.rules:
            cleaning.held_out = _near_keys([job.shard for job in others])
        shards = splits["train"].shards
        examined = enumerate(_examined(shards, cleaning, engine))
        jobs = (_Writing(shards[n], files("train", n), found) for n, found in examined)
        counts, skipped = CleanedCounts.of_alone(dict.fromkeys(cleaning.rules, 0)), Faults()
        for own, faults in engine(partial(_write, cleaning.rules), jobs):
            counts += own
            skipped += faults
        report = cleaning_report(cleaning, counts, inputs, skipped, runs or {})
        beside = shards[0].files[0].parent / "SOURCES.md"
        said = beside.read_text("utf-8", "replace") if beside.is_file() else ""
        write_cleaning_report(directory, report, said)
    return report


@contextmanager
def _filling(out: Path) -> Iterator[Path]:
    """Give the directory to fill, which in a bucket has its name from the start."""
    if not isinstance(out, BucketPath):
        with writing_directory(out) as directory:
            yield directory
        return
    if any(out.objects()):
        raise UserError(f"{out} exists and is not empty; choose another place")
    yield out


def _examined(
    shards: Sequence[Shard], cleaning: PairCleaning, engine: Engine
) -> Iterator[Examined]:
    """Yield what the rules drop of each shard."""
    state = CleaningState()

    def known() -> Iterator[Examined]:
        for found in engine(partial(_examine, cleaning), shards):
            examined = found._replace(reasons=found.reasons.copy())  # those of Ray are read-only
            drop_repeated(examined, cleaning, state)
            yield examined._replace(keys={})

    if SCORED not in cleaning.rules:
        yield from known()
        return
    found = list(known())
    scores = [_scores(*each, cleaning) for each in zip(shards, found, strict=True)]
    least = least_score(np.concatenate([*scores, np.zeros(0)]), cleaning.limits)
    for examined, own in zip(found, scores, strict=True):
        drop_improbable(examined, own, least, cleaning)
        yield examined


def _examine(cleaning: PairCleaning, shard: Shard) -> Examined:
    return Examined.joined([examine(chunk, cleaning) for chunk in shard.pairs()])


def _scores(shard: Shard, examined: Examined, cleaning: PairCleaning) -> LeftScores:
    """Return the scores of the pairs that are left of a shard."""
    of_chunks = (scores_of_left(*each, cleaning) for each in _with_reasons(shard, examined))
    return np.concatenate([*of_chunks, np.zeros(0)])


def _write(rules: Sequence[str], job: _Writing) -> tuple[CleanedCounts, Faults]:
    """Write what is left of a shard, and return the numbers and the lines at fault."""
    counts, faults = CleanedCounts(), Faults()
    with ExitStack() as stack:
        written = [_opened(path, stack) for path in job.files]
        for chunk, reasons in _with_reasons(job.shard, job.examined, faults):
            kept, own = kept_and_counted(chunk, reasons, rules)
            counts += own
            for file, lines in zip(written, kept, strict=True):
                file.write("".join(f"{line}\n" for line in lines).encode())
    return counts + CleanedCounts.of_alone(job.examined.alone if job.examined else {}), faults


def _opened(path: Path, stack: ExitStack) -> Any:
    file = stack.enter_context(writing_whole(path))
    if path.suffix != ".gz":
        return file
    return stack.enter_context(gzip.GzipFile("", "wb", _PACKING_LEVEL, file, mtime=0))


def _with_reasons(
    shard: Shard, examined: Examined | None, faults: Faults | None = None
) -> Iterator[tuple[Chunk, Reasons]]:
    """Yield the chunks of a shard, and which rule drops each pair of them."""
    start = 0
    for chunk in shard.pairs(faults):
        size = len(chunk[0])
        none = np.zeros(size, np.uint8)
        yield chunk, none if examined is None else examined.reasons[start : start + size]
        start += size


def _refuse(faults: Faults) -> None:
    for reason, line in faults.first.items():
        raise UserError(f"{line} is {reason.replace('_', ' ')}; only lines of train are left out")


def _near_keys(shards: Sequence[Shard]) -> tuple[Keys, ...]:
    """Return the hashes of the sources and of the targets of shards."""
    chunks = (chunk for shard in shards for chunk in shard.pairs())
    keys = ([Side(lines).near_keys for lines in chunk] for chunk in chunks)
    return tuple(np.unique(np.concatenate(side)) for side in zip(*keys, strict=True))
