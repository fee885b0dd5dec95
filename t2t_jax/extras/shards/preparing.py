"""Tokenise shards into pieces, shard by shard, and reuse existing ones.

    OUT/00012-3.npy     the fourth piece of the thirteenth shard (`extras.shards.prepared`)
    OUT/00012.json      the record of the shard, written once all of its pieces are there
    OUT/prepared.json   the records of all shards, written last

The bytes depend only on the shards, the vocabulary and the config, not on the process or the order.
"""

import json
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from t2t_jax.config import DataConfig
from t2t_jax.data import batching, cache, splits
from t2t_jax.data.pair_files import Faults, Shard
from t2t_jax.data.parts import Engine
from t2t_jax.data.tokenized import TrainText
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.errors import UserError, in_one_line, needs_extra, warn
from t2t_jax.extras.shards.prepared import PieceRecord, PreparedPieces, piece_path, write_piece
from t2t_jax.system import atomic_file, bucket
from t2t_jax.system.records import COUNT, parse_object

PREPARED = "prepared.json"
"""The file that says what a folder of pieces holds."""
_FORMAT = "2"
"""The version of the pieces, raised whenever the same text would make others."""
_CHUNKS = 2  # of 50,000 pairs, in a piece

_RETRIES = 10  # of a shard whose workers are lost


class ShardRecord(TypedDict):
    """The record of a shard."""

    hashes: list[str]
    """The hashes of its files."""
    num_read: COUNT
    """The number of pairs in it."""
    skipped: dict[str, COUNT]
    """The number of pairs that were left out, by reason."""
    first: dict[str, str]
    """The first line of each reason that is at fault."""
    pieces: list[PieceRecord]
    """The records of its pieces."""


class FolderRecord(TypedDict):
    """The record of a folder of shards."""

    shards: list[ShardRecord]
    """The records of the shards."""
    token_counts: list[COUNT]
    """How often each id occurs among the targets of some pieces."""


class ShardJob(NamedTuple):
    """The tokenisation of one shard."""

    number: int
    """The number of the shard, by which its pieces are named."""
    shard: Shard
    hashes: Sequence[str]
    """The hash of each file."""
    out: Path
    """The folder of the pieces."""

    @property
    def record(self) -> Path:
        """Return the path of the shard's record."""
        return self.out / f"{self.number:05}.json"

    def done(self, there: Set[str]) -> dict[str, Any] | None:
        """Return the record, if the current content of the shard is tokenised; else None.

        Args:
          there: the names of the files in the folder of the pieces.
        """
        if self.record.name not in there:
            return None
        try:
            record = parse_object(self.record.read_bytes(), ShardRecord)
        except (FileNotFoundError, ValueError):
            return None
        names = {piece_path(self.out, self.number, n).name for n in range(len(record["pieces"]))}
        return record if names <= there and record["hashes"] == list(self.hashes) else None

    def make(self, text: TrainText, config: DataConfig) -> dict[str, Any]:
        """Tokenise the shard, write its pieces and its record, and return the record."""
        faults, skipped, read = Faults(), Counter[str](), 0
        pieces: list[dict[str, Any]] = []
        for chunks in _groups(self.shard.pairs(faults)):
            tokens = text.tokenize(chunks)
            if len(tokens):
                path = piece_path(self.out, self.number, len(pieces))
                pieces.append(write_piece(path, tokens, text, config))
            skipped.update(tokens.skipped)
            read += tokens.num_pairs_read
        skipped.update(faults.counts)
        record = {
            "hashes": list(self.hashes),
            "num_read": read + faults.counts.total(),
            "skipped": dict(skipped),
            "first": faults.first,
            "pieces": pieces,
        }
        atomic_file.write_whole(self.record, json.dumps(record).encode())
        return record


def _groups(chunks: Iterator[splits.Chunk]) -> Iterator[Iterable[splits.Chunk]]:
    for first in chunks:
        yield chain([first], islice(chunks, _CHUNKS - 1))


def open_shards(
    shards: Sequence[Shard],
    hashes: Callable[[], Sequence[Sequence[str]]],
    config: DataConfig,
    vocabulary: Vocabulary,
    text: TrainText,
    engine: Engine = map,
) -> PreparedPieces:
    """Return the pieces of shards, from the cache or tokenised now by an engine."""
    of_shards = hashes()
    about = splits.digest(_FORMAT, vocabulary.fingerprint, *map(str, text.key), *shards[0].fields)
    whole = splits.digest(about, *(one for each in of_shards for one in each))
    place = bucket.as_path(config.cache_dir)
    root = place if isinstance(place, bucket.BucketPath) else cache.cache_root(config)
    out = root / f"pieces-{whole[:24]}"
    jobs = [
        ShardJob(number, shard, own, out)
        for number, (shard, own) in enumerate(zip(shards, of_shards, strict=True))
    ]
    there = {path.name for path in out.iterdir()} if out.is_dir() else set()
    records = [job.done(there) for job in jobs]
    if PREPARED in there and None not in records:
        with suppress(ValueError):
            made = parse_object((out / PREPARED).read_bytes(), FolderRecord)
            if made["shards"] == records:
                return PreparedPieces(out, made, text, config)
    out.mkdir(parents=True, exist_ok=True)
    made = {"shards": [], "token_counts": []}
    missing = [job for job, record in zip(jobs, records, strict=True) if record is None]
    new = engine(lambda job: job.make(text, config), missing)
    for shard, done in zip(shards, records, strict=True):
        record = done or next(new)
        made["shards"].append(record)
        Faults(Counter(record["skipped"]), record["first"]).warn()
        if not record["num_read"]:
            warn(f"shard {shard} is empty; is it a whole copy?")
    prepared = PreparedPieces(out, made, text, config)
    made["token_counts"] = prepared.counted_tokens()
    atomic_file.write_whole(out / PREPARED, json.dumps(made).encode())
    if len(prepared):
        batching.Batches(prepared, config, 0)  # counts the rows, which are kept with the pieces
    return prepared


def on_ray(address: str) -> Engine:
    """Return an engine that runs the jobs on a cluster of Ray, whose machines share the files.

    Args:
      address: "" is the environment's address, or else a new cluster on this machine.
    """
    with needs_extra("ray", "--ray"):
        import ray

    def engine(make: Callable[[Any], Any], jobs: Iterable[Any]) -> Iterator[Any]:
        try:
            quiet = {"log_to_driver": False, "logging_level": logging.WARNING}
            ray.init(address or None, ignore_reinit_error=True, **quiet)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise UserError(
                f"--ray {address}: no cluster of Ray can be reached there ({error}); start one by "
                "ray start --head"
            ) from error
        # A partial function would be refused.
        there = ray.remote(num_cpus=1, max_retries=_RETRIES)(lambda job: make(job))
        waiting = deque(there.remote(job) for job in jobs)
        while waiting:
            try:
                yield ray.get(waiting.popleft())  # after which Ray can forget it
            except ray.exceptions.RayTaskError as error:
                raise error.cause from error
            except ray.exceptions.RayError as error:  # such as a worker out of memory, again
                raise UserError(
                    f"--ray {address}: a shard was lost ({type(error).__name__}: "
                    f"{in_one_line(error)[:200]}); look at the machines of the cluster and their "
                    "memory: the same command keeps the finished shards"
                ) from error

    return engine
