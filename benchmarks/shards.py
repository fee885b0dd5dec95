"""Measure the start and the memory of the data of a training, by the size of the corpus.

    python benchmarks/shards.py --text DIR --folder BIG --pairs 100000 1000000
    python benchmarks/shards.py --text DIR --folder BIG --pairs 1000000 --data.batching pack
    python benchmarks/shards.py --text DIR --folder BIG --pairs 1000000 --hosts 1 2 4

Every field of the config is a flag. DIR has `train.en` and `train.de` (or other languages). Their
pairs are written into BIG over and over, with a number before each round so that no two are alike:
as `whole`, one file a side that is tokenised into arrays in memory; and as `shards`, files of
100,000 pairs that are tokenised into pieces. Both are tokenised before anything is timed, which
`tokenise_seconds` says. Then a new process for each does what a training does with its data:

    start_seconds    open the corpus, check what is in the cache, and order the rows
    first_seconds    make the first batch
    batch_seconds    make a batch, as a mean over the next ones
    resident_mib     memory of the process after these, less that of one that has only imported the
                     program; `anonymous_mib` is the part that no file backs

With `--hosts`, printed is instead what each of some hosts reads of the shards in an epoch: the size
of the pieces that it opens (`least_mib`, `most_mib`), beside that of all pieces.

There is no model, so a training's memory for JAX and its parameters is not in these figures.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import count, islice
from pathlib import Path
from typing import Any, Literal

import command_line
import measuring
import numpy as np

from t2t_jax.config import Config
from t2t_jax.data.batching import Batches
from t2t_jax.data.corpus import open_corpus
from t2t_jax.extras.shards.pieces import PreparedPieces
from t2t_jax.run.preparing import training_parts
from t2t_jax.system.program import run
from t2t_jax.tasks import task_of

_SHARD_PAIRS = 100_000
_STEPS = 300


@dataclass(frozen=True)
class Shards(command_line.Benchmark):
    """Measure the data of a training by the size of the corpus."""

    text: Path = Path("corpora")
    """Folder with train.SOURCE and train.TARGET, whose pairs are repeated."""
    folder: Path = Path("big")
    """Folder to write corpora and tokens into, which stay there for the next call."""
    pairs: tuple[int, ...] = (100_000, 1_000_000)
    """Numbers of pairs."""
    forms: tuple[Literal["whole", "shards"], ...] = ("whole", "shards")
    """Forms of the corpus."""
    hosts: tuple[int, ...] = ()
    """Numbers of hosts whose reading is measured, and nothing else."""


def main(arguments: Sequence[str]) -> int:
    """Measure what the command line asks for."""
    if arguments[:1] == ["child"]:
        print(json.dumps(_measured(Config.from_json(Path(arguments[1]).read_text()))))
        return 0
    asked = command_line.command(Shards, arguments)
    columns = []
    for number in asked.pairs:
        for form in asked.forms if not asked.hosts else ("shards",):
            config = _config(asked, number, form)
            start = time.perf_counter()
            _examples(config)
            tokenised = time.perf_counter() - start
            if asked.hosts:
                columns += [{"pairs": number} | _read_by(config, hosts) for hosts in asked.hosts]
                continue
            path = asked.folder / f"{form}-{number}.json"
            path.write_text(config.to_json())
            found = [_child(path) for _ in range(asked.repeats)]
            best = {name: min(one[name] for one in found) for name in found[0]}
            columns.append({"pairs": number, "form": form, "tokenise_seconds": tokenised} | best)
    measuring.show(command_line.setting(asked), columns, asked.json)
    return 0


def _config(asked: Shards, number: int, form: str) -> Config:
    """Write a corpus, unless it is there, and return the config that reads it."""
    data = asked.fields.data
    languages = data.source_language, data.target_language
    place = asked.folder / f"{form}-{number}"
    whole = form == "whole"
    if not place.exists():
        unfinished = asked.folder / "unfinished"
        unfinished.mkdir(parents=True, exist_ok=True)
        size = number if whole else _SHARD_PAIRS
        for language in languages:
            lines = islice(_lines(asked.text / f"train.{language}"), number)
            for shard in range(-(-number // size)):
                name = f"train.{language}" if whole else f"train-{shard:05}.{language}"
                with (unfinished / name).open("w") as file:
                    file.writelines(islice(lines, size))
        unfinished.rename(place)
    name = f"text:{place}" if whole else f"shards:{place}/train-*.{{language}}"
    cache = str(asked.folder / "cache")
    return asked.fields.replace({"data.corpus": name, "data.cache_dir": cache})


def _lines(path: Path) -> Iterator[str]:
    for number in count():
        with path.open() as file:
            for line in file:
                yield f"{number} {line}"


def _child(config: Path) -> dict[str, Any]:
    command = [sys.executable, __file__, "child", str(config)]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def _examples(config: Config) -> Any:
    corpus = open_corpus(config.data)
    task = task_of(corpus.name, corpus.task)
    vocabulary = task.vocabulary(config, corpus)
    return training_parts(task, config, corpus, vocabulary)


def _measured(config: Config) -> dict[str, Any]:
    before = _memory()
    start = time.perf_counter()
    batches = Batches(_examples(config), config.data, config.training.seed)
    started = time.perf_counter()
    batches(0)
    first = time.perf_counter()
    for step in range(1, _STEPS + 1):
        batches(step)
    end = time.perf_counter()
    memory = {name: size - before[name] for name, size in _memory().items()}
    return {
        "start_seconds": started - start,
        "first_seconds": first - started,
        "batch_seconds": (end - first) / _STEPS,
        "resident_mib": memory["VmRSS"],
        "anonymous_mib": memory["RssAnon"],
    }


class _Counted(PreparedPieces):
    """Pieces that tell which of them are opened."""

    @cached_property
    def opened(self) -> list[int]:
        """Return the numbers of the pieces that were opened."""
        return []

    def open(self, part: int) -> Any:
        """Open a piece, and remember its number."""
        self.opened.append(part)
        return super().open(part)


def _read_by(config: Config, hosts: int) -> dict[str, Any]:
    """Return how much each of some hosts reads in an epoch."""
    parts = _examples(config)
    records = [piece for shard in parts.record["shards"] for piece in shard["pieces"]]
    sizes, read = [piece["bytes"] / 2**20 for piece in records], []
    for host in range(hosts):
        pieces = _Counted(**{field.name: getattr(parts, field.name) for field in fields(parts)})
        batches = Batches(pieces, config.data, config.training.seed)
        for step in range(batches.steps_per_epoch):
            batches(step, np.array_split(np.arange(batches.shape(step).rows), hosts)[host])
        read.append(sum(sizes[part] for part in pieces.opened))
    return {"hosts": hosts, "all_mib": sum(sizes), "least_mib": min(read), "most_mib": max(read)}


def _memory() -> dict[str, float]:
    rows = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    return {row[0][:-1]: int(row[1]) / 1024 for row in rows if row[0] in ("VmRSS:", "RssAnon:")}


if __name__ == "__main__":
    run(main)
