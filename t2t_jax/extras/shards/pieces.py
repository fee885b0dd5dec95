"""Pieces of shards: tokenised shard by shard, reused, and read as the parts of a training.

    OUT/00012-3.npy     the fourth piece of the thirteenth shard
    OUT/00012.json      the record of the shard, written once all of its pieces are there
    OUT/prepared.json   the records of all shards, written last

A piece is a file with some 100,000 pairs of a shard as one array in NumPy's format: the lengths of
the sources, those of the targets, the tokens of all sources and those of all targets. Its record
describes the contents, so that a training knows the rows of all pieces before it opens one. The
bytes depend only on the shards, the vocabulary and the config, not on the process or the order.
"""

import hashlib
import io
import json
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import NamedTuple, TypedDict

import numpy as np
from jaxtyping import Int, Integer

from t2t_jax.config import DataConfig
from t2t_jax.data import batching, cache, layout, parts, rows, splits
from t2t_jax.data.pair_files import Faults, Shard
from t2t_jax.data.tokenized import TrainText
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.errors import UserError, in_one_line, needs_extra, warn
from t2t_jax.system import atomic_file, bucket, records, sums

PREPARED = "prepared.json"
"""The file that says what a folder of pieces holds."""
_FORMAT = "2"
"""The version of the pieces, raised whenever the same text would make others."""
_CHUNKS = 2  # of 50,000 pairs, in a piece
_RETRIES = 10  # of a shard whose workers are lost
_PACKING_SEED = 0  # of every training, as packed rows are counted once
_SAMPLED_PIECES = 16
_MANY_PIECES = 100
_PACKED = records.schema({"rows": list[records.COUNT], "most": records.COUNT})
_RETRY_SECONDS = 5.0
_PATIENCE_SECONDS = 600.0
_MAKE_AGAIN = "remove it, and the same command makes it again"


class PieceRecord(TypedDict):
    """The record of a piece."""

    num_examples: records.COUNT
    source_tokens: records.COUNT
    target_tokens: records.COUNT
    bytes: records.COUNT
    """The size of the file."""
    blake2b: str
    """The hash of the file."""
    source: list[records.COUNT]
    """The `Lengths` of the sources."""
    target: list[records.COUNT]
    """The `Lengths` of the targets."""
    classes: list[records.COUNT]
    """The rows of each class in buckets: more where an example is longer than `max_length`."""


def piece_path(folder: Path, shard: int, piece: int) -> Path:
    """Return the path of a piece, by the numbers of its shard and of the piece in it."""
    return folder / f"{shard:05}-{piece}.npy"


def write_piece(
    path: Path, tokens: rows.Examples, text: TrainText, config: DataConfig
) -> records.Record:
    """Write token arrays as a piece, and return its record."""
    lengths = tokens.source_lengths, tokens.target_lengths
    arrays = *lengths, tokens.source_tokens, tokens.target_tokens
    dtype = np.result_type(tokens.target_tokens.dtype, np.min_scalar_type(config.max_length))
    file = io.BytesIO()
    np.save(file, np.concatenate([one.astype(dtype) for one in arrays]), allow_pickle=False)
    content = file.getvalue()
    atomic_file.write_whole(path, content)
    examples = text.examples(tokens)
    figures = rows.Content.of(examples)
    longest = np.maximum(examples.source_lengths, examples.target_lengths)
    ladder = layout.length_ladder(max(config.max_length, *(one.longest for one in figures[3:])))
    return {
        "num_examples": len(tokens),
        "source_tokens": len(tokens.source_tokens),
        "target_tokens": len(tokens.target_tokens),
        "bytes": len(content),
        "blake2b": hashlib.blake2b(content).hexdigest(),
        "source": list(figures.source),
        "target": list(figures.target),
        "classes": np.bincount(np.searchsorted(ladder, longest), minlength=len(ladder)).tolist(),
    }


def read_piece(content: Integer[np.ndarray, " n"], record: records.Record) -> rows.Examples:
    """Return the token arrays of a piece, which are views of its array."""
    count, sources = record["num_examples"], record["source_tokens"]
    source, target = map(rows.offsets_of, content[: 2 * count].reshape(2, count))
    tokens = content[2 * count :]
    return rows.Examples(tokens[:sources], source, tokens[sources:], target, {}, count)


@dataclass(frozen=True)
class PreparedPieces(parts.Parts):
    """The pieces of a folder."""

    folder: Path
    """The folder, on this machine or in a bucket."""
    record: records.Record
    """What the folder holds, a `FolderRecord`."""
    text: TrainText
    """How examples are made of a piece."""
    config: DataConfig
    """The section `data` of the config."""

    @property
    def window(self) -> int:
        """Return the number of pieces whose examples are mixed."""
        return self.config.window

    @cached_property
    def _pieces(self) -> list[tuple[Path, records.Record]]:
        return [
            (piece_path(self.folder, shard, number), piece)
            for shard, record in enumerate(self.record["shards"])
            for number, piece in enumerate(record["pieces"])
        ]

    @cached_property
    def content(self) -> rows.Content:
        """Return the figures of all pieces together."""
        skipped, pieces = Counter[str](), [piece for _, piece in self._pieces]
        for record in self.record["shards"]:
            skipped.update(record["skipped"])
        return rows.Content(
            sum(record["num_read"] for record in self.record["shards"]),
            dict(skipped),
            sum(piece["num_examples"] for piece in pieces),
            rows.Lengths.joined((rows.Lengths(*piece["source"]), 1) for piece in pieces),
            rows.Lengths.joined((rows.Lengths(*piece["target"]), 1) for piece in pieces),
        )

    def __len__(self) -> int:
        """Return the number of pieces."""
        return len(self._pieces)

    def open(self, part: int) -> rows.Examples:
        """Return the examples of a piece, mapped into memory or downloaded from its bucket."""
        path, piece = self._pieces[part]
        try:
            with _on_this_machine(path) as local:
                if sums.digest_of(local, "blake2b") != piece["blake2b"]:
                    raise UserError(f"{path} is damaged, as its hash says; {_MAKE_AGAIN}")
                array = np.load(local, mmap_mode="r")  # and stays mapped when its name is gone
        except FileNotFoundError as error:
            raise UserError(f"{path} is missing; {_MAKE_AGAIN}") from error
        except OSError as error:
            reason = error.strerror or error
            raise UserError(f"{path} cannot be read ({reason}); {_MAKE_AGAIN}") from error
        return self.text.examples(read_piece(array, piece))

    def shape(self, shape: rows.BatchShape, most: int) -> rows.BatchShape:
        """See `Parts.shape`."""
        nothing = {"num_examples": 0, "source_tokens": 0}
        return self.text.examples(read_piece(np.zeros(0, np.uint16), nothing)).shape(shape, most)

    def packing_key(self, seed: int, part: int) -> tuple[int, int]:
        """Return the piece, and one seed for all trainings, as rows are packed once."""
        return _PACKING_SEED, part

    def row_counts(self, form: layout.Form, count: parts.CountRows) -> parts.RowCounts:
        """See `Parts.row_counts`.

        Packed rows are counted once for each of their shapes, and stored with the pieces.
        """
        if not form.packs:
            size = len(form.shapes)
            counts = [[*piece["classes"], *[0] * size][:size] for _, piece in self._pieces]
            return parts.RowCounts(np.array(counts, np.int64).reshape(-1, size), 1)
        kept = self.folder / f"packed-{'x'.join(map(str, form.shapes[0][1:]))}.json"
        try:
            packed = records.parse_object(kept.read_bytes(), _PACKED)
        except (FileNotFoundError, ValueError):
            if len(self) > _MANY_PIECES:
                warn(
                    f"the rows of {len(self):,} pieces in {self.folder} are packed once, to be "
                    "counted"
                )
            found = super().row_counts(form, count)
            packed = {"rows": found.counts[:, 0].tolist(), "most": found.most}
            with suppress(UserError):  # in a place that cannot be written, it is counted each time
                atomic_file.write_whole(kept, json.dumps(packed).encode())
        return parts.RowCounts(np.array(packed["rows"], np.int64)[:, None], packed["most"])

    def counted_tokens(self) -> list[int]:
        """Count the ids of the targets of at most 16 pieces, at even distances."""
        every = max(1, -(-len(self) // _SAMPLED_PIECES))
        pieces = map(self.open, range(0, len(self), every))
        counts = [np.bincount(piece.target_tokens).tolist() for piece in pieces]
        return [*map(sum, zip_longest(*counts, fillvalue=0))]

    def token_counts(self) -> Int[np.ndarray, " vocab"]:
        """Return how often each id occurs among the targets of some pieces."""
        return np.array(self.record["token_counts"], np.int64)


@contextmanager
def _on_this_machine(path: Path) -> Iterator[Path]:
    """Return a context with the path of a local file, and wait for an unreachable store."""
    latest: float | None = None
    with ExitStack() as copies:
        while True:
            try:
                local = copies.enter_context(bucket.local_copy(path))
                break
            except FileNotFoundError:
                raise
            except (OSError, UserError) as error:
                if latest is None:
                    latest = time.monotonic() + _PATIENCE_SECONDS
                    warn(
                        f"{path} cannot be read ({in_one_line(error)}); it is tried again for ten "
                        "minutes"
                    )
                if time.monotonic() > latest:
                    raise
                time.sleep(_RETRY_SECONDS)
        yield local


class ShardRecord(TypedDict):
    """The record of a shard."""

    hashes: list[str]
    """The hashes of its files."""
    num_read: records.COUNT
    """The number of pairs in it."""
    skipped: dict[str, records.COUNT]
    """The number of pairs that were left out, by reason."""
    first: dict[str, str]
    """The first line of each reason that is at fault."""
    pieces: list[PieceRecord]
    """The records of its pieces."""


class FolderRecord(TypedDict):
    """The record of a folder of shards."""

    shards: list[ShardRecord]
    """The records of the shards."""
    token_counts: list[records.COUNT]
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

    def done(self, there: Set[str]) -> records.Record | None:
        """Return the record, if the current content of the shard is tokenised; else None.

        Args:
          there: the names of the files in the folder of the pieces.
        """
        if self.record.name not in there:
            return None
        try:
            record = records.parse_object(self.record.read_bytes(), ShardRecord)
        except (FileNotFoundError, ValueError):
            return None
        names = {piece_path(self.out, self.number, n).name for n in range(len(record["pieces"]))}
        return record if names <= there and record["hashes"] == list(self.hashes) else None

    def make(self, text: TrainText, config: DataConfig) -> records.Record:
        """Tokenise the shard, write its pieces and its record, and return the record."""
        faults, skipped, read = Faults(), Counter[str](), 0
        pieces: list[records.Record] = []
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
    engine: parts.Engine = map,
) -> PreparedPieces:
    """Return the pieces of shards, from the cache or tokenised now by an engine."""
    of_shards = hashes()
    about = splits.digest(_FORMAT, vocabulary.fingerprint, *map(str, text.key), *shards[0].fields)
    whole = splits.digest(about, *(one for each in of_shards for one in each))
    place = bucket.as_path(config.cache_dir)
    root = place if isinstance(place, bucket.BucketPath) else cache.cache_root(config)
    out = root / f"pieces-{whole[:24]}"
    numbered = enumerate(zip(shards, of_shards, strict=True))
    jobs = [ShardJob(number, shard, own, out) for number, (shard, own) in numbered]
    there = {path.name for path in out.iterdir()} if out.is_dir() else set()
    found = [job.done(there) for job in jobs]
    if PREPARED in there and None not in found:
        with suppress(ValueError):
            made = records.parse_object((out / PREPARED).read_bytes(), FolderRecord)
            if made["shards"] == found:
                return PreparedPieces(out, made, text, config)
    out.mkdir(parents=True, exist_ok=True)
    made = {"shards": [], "token_counts": []}
    missing = [job for job, record in zip(jobs, found, strict=True) if record is None]
    new = engine(lambda job: job.make(text, config), missing)
    for shard, done in zip(shards, found, strict=True):
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


def on_ray(address: str) -> parts.Engine:
    """Return an engine that runs the jobs on a cluster of Ray, whose machines share the files.

    Args:
      address: "" is the environment's address, or else a new cluster on this machine.
    """
    with needs_extra("ray", "--ray"):
        import ray

    def engine(make: Callable[[object], object], jobs: Iterable[object]) -> Iterator[object]:
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
