"""Pairs of which a model has written one side: back-translation and distillation.

OUT/train-00000.en.gz ...     the sources of 10,000 lines each, as shards
OUT/train-00000.de.gz ...     their targets
OUT/train-00000.json ...      what the rules of cleaning dropped of these lines, written last
OUT/synthetic.json            how the pairs were made

What is there is not made again, so that an interrupted run goes on.
"""

import gzip
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import count, islice
from pathlib import Path
from typing import Any

from t2t_jax.data.cleaning.clean import CleanedCounts, CleaningState, Dropped, clean_pairs
from t2t_jax.data.cleaning.rules import PairCleaning
from t2t_jax.data.shards.listing import written_shard
from t2t_jax.errors import UserError
from t2t_jax.system.atomic_file import write_whole

LINES = 10_000
"""The lines of a shard."""


def synthesise(
    lines: Iterator[str],
    out: Path,
    translate: Callable[[list[str], int], list[str]],
    cleaning: PairCleaning,
    about: Mapping[str, Any],
    *,
    backward: bool,
    tag: str = "",
) -> CleanedCounts:
    """Translate lines, and write those pairs that the rules of cleaning keep, as shards.

    Args:
      lines: the text.
      out: directory, or a place in a bucket.
      translate: translates lines, given the number of the first, into as many lines.
      cleaning: rules with their limits, and the languages of sources and targets.
      about: how the pairs are made, in values of JSON.
      backward: whether the translations are the sources of the pairs (Sennrich et al. 2016,
        "Improving Neural Machine Translation Models with Monolingual Data"); else they are the
        targets (Kim and Rush 2016).
      tag: a token before each source (Caswell et al. 2019, "Tagged Back-Translation").

    Returns:
      What the rules have dropped of all lines.

    Raises:
      UserError: the directory holds pairs that were made otherwise, or cannot be written.
    """
    _check_directory(out, about)
    counts = CleanedCounts.of_alone(dict.fromkeys(cleaning.rules, 0))
    for number in count():
        texts = [*islice(lines, LINES)]
        if not texts:
            return counts
        record = out / f"train-{number:05}.json"
        if record.is_file():
            counts += _read(record)
            continue
        translations = translate(texts, number * LINES + 1)
        pairs = (translations, texts) if backward else (texts, translations)
        (sources, targets), own = clean_pairs(pairs, cleaning, CleaningState())
        sides = [f"{tag} {one}" if tag else one for one in sources], targets
        paths = written_shard(out, "train", number, cleaning.languages)
        for path, side in zip(paths, sides, strict=True):
            content = "".join(f"{one}\n" for one in side).encode()
            write_whole(path, gzip.compress(content, mtime=0))
        write_whole(record, json.dumps(asdict(own), ensure_ascii=False).encode())
        counts += own
    raise AssertionError


def _check_directory(out: Path, about: Mapping[str, Any]) -> None:
    """Make the directory, or refuse one whose pairs were made otherwise."""
    path, content = out / "synthetic.json", json.dumps(about, indent=1)
    if path.is_file():
        before, now = json.loads(path.read_bytes()), json.loads(content)
        if before != now:
            differing = sorted(name for name in now if before.get(name) != now[name])
            raise UserError(
                f"{out} has pairs that were made with another {', '.join(differing) or 'setting'}; "
                "choose another directory, or ask as before"
            )
        return
    if out.is_dir() and any(out.iterdir()):
        raise UserError(f"{out} exists and is not empty; choose another directory")
    out.mkdir(parents=True, exist_ok=True)
    write_whole(path, content.encode())


def _read(record: Path) -> CleanedCounts:
    found = json.loads(record.read_bytes())
    dropped = {
        name: Dropped(one["pairs"], one["alone"], tuple(map(_sample, one["samples"])))
        for name, one in found["dropped"].items()
    }
    return CleanedCounts(tuple(found["read"]), tuple(found["kept"]), dropped)


def _sample(values: Sequence[Any]) -> tuple[int, str, str]:
    key, source, target = values
    return int(key), source, target
