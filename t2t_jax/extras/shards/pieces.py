"""Tokenize shards into files called pieces, which training runs share.

    OUT/00012-3.npy     the fourth piece of the thirteenth shard
    OUT/00012.json      the record of the shard, written after all of its pieces
    OUT/prepared.json   the records of all shards, written last

The content of all files depends only on the shards, the vocabulary and the config.
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
"""The name of the file with the records of all shards, a `FolderRecord`."""
_FORMAT = "2"
"""The version of the file format, increased whenever the same text gives different pieces."""
_CHUNKS = 2  # chunks per piece, of 50,000 pairs each
_RETRIES = 10  # of a shard after its Ray worker died
_PACKING_SEED = 0  # the same for all runs, because packed rows are counted only once
_SAMPLED_PIECES = 16
_MANY_PIECES = 100
_PACKED = records.schema({"rows": list[records.COUNT], "most": records.COUNT})
_RETRY_SECONDS = 5.0
_PATIENCE_SECONDS = 600.0
_MAKE_AGAIN = "remove it, and the same command makes it again"


class PieceRecord(TypedDict):
    """The JSON statistics of a piece, a file of tokenized examples."""

    num_examples: records.COUNT
    source_tokens: records.COUNT
    target_tokens: records.COUNT
    bytes: records.COUNT
    """The size of the file in bytes."""
    blake2b: str
    """The BLAKE2b hash of the file, in hexadecimal digits."""
    source: list[records.COUNT]
    """The `Lengths` of the sources, in tokens."""
    target: list[records.COUNT]
    """The `Lengths` of the targets, in tokens."""
    classes: list[records.COUNT]
    """The number of examples in each length bucket, with more buckets beyond `max_length`."""


def piece_path(folder: Path, shard: int, piece: int) -> Path:
    """Return the path of a file of tokenized examples, such as FOLDER/00012-3.npy."""
    return folder / f"{shard:05}-{piece}.npy"


def write_piece(
    path: Path, tokens: rows.Examples, text: TrainText, config: DataConfig
) -> records.Record:
    """Write tokenized examples to a piece file, and return the statistics of the piece."""
    lengths = tokens.source_lengths, tokens.target_lengths
    # A piece is one array, which is mapped into memory: lengths and tokens of about 100,000 pairs.
    arrays = *lengths, tokens.source_tokens, tokens.target_tokens
    dtype = np.result_type(tokens.target_tokens.dtype, np.min_scalar_type(config.max_length))
    buffer = io.BytesIO()
    np.save(buffer, np.concatenate([array.astype(dtype) for array in arrays]), allow_pickle=False)
    content = buffer.getvalue()
    atomic_file.write_whole(path, content)
    examples = text.examples(tokens)
    statistics = rows.Content.of(examples)
    longest = np.maximum(examples.source_lengths, examples.target_lengths)
    buckets = layout.bucket_lengths(max(config.max_length, int(longest.max(initial=0))))
    return {
        "num_examples": len(tokens),
        "source_tokens": len(tokens.source_tokens),
        "target_tokens": len(tokens.target_tokens),
        "bytes": len(content),
        "blake2b": hashlib.blake2b(content).hexdigest(),
        "source": list(statistics.source),
        "target": list(statistics.target),
        "classes": np.bincount(np.searchsorted(buckets, longest), minlength=len(buckets)).tolist(),
    }


def read_piece(content: Integer[np.ndarray, " n"], record: records.Record) -> rows.Examples:
    """Split the array of a piece file, with the sizes in `record`, into examples without copies."""
    num_pairs, boundary = record["num_examples"], record["source_tokens"]
    source, target = map(rows.offsets_of, content[: 2 * num_pairs].reshape(2, num_pairs))
    tokens = content[2 * num_pairs :]
    return rows.Examples(tokens[:boundary], source, tokens[boundary:], target, {}, num_pairs)


@dataclass(frozen=True)
class PreparedPieces(parts.Parts):
    """Training examples in a folder of tokenized files (pieces), which are opened one by one."""

    folder: Path
    """The local or bucket directory of the pieces."""
    record: records.Record
    """The statistics of all shards, a `FolderRecord`."""
    text: TrainText
    """The function that makes examples of token arrays, with its settings."""
    config: DataConfig
    """The section `data` of the config."""

    @property
    def window(self) -> int:
        """Return how many piece files are open, and shuffled together, at a time."""
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
        """Return the pair counts and length statistics of all pieces (tokenized files)."""
        skipped, pieces = Counter[str](), [piece for _, piece in self._pieces]
        for record in self.record["shards"]:
            skipped.update(record["skipped"])
        return rows.Content(
            sum(record["num_read"] for record in self.record["shards"]),
            dict(skipped),
            sum(piece["num_examples"] for piece in pieces),
            rows.Lengths.combined(rows.Lengths(*piece["source"]) for piece in pieces),
            rows.Lengths.combined(rows.Lengths(*piece["target"]) for piece in pieces),
        )

    def __len__(self) -> int:
        """Return the number of piece files."""
        return len(self._pieces)

    def open(self, part: int) -> rows.Examples:
        """Return the examples of a piece, mapped into memory or downloaded from its bucket."""
        path, piece = self._pieces[part]
        try:
            with _on_this_machine(path) as local_path:
                if sums.digest_of(local_path, "blake2b") != piece["blake2b"]:
                    raise UserError(f"{path} is damaged: its hash is wrong; {_MAKE_AGAIN}")
                array = np.load(local_path, mmap_mode="r")  # stays mapped after the file is deleted
        except FileNotFoundError as error:
            raise UserError(f"{path} is missing; {_MAKE_AGAIN}") from error
        except OSError as error:
            reason = error.strerror or error
            raise UserError(f"{path} cannot be read ({reason}); {_MAKE_AGAIN}") from error
        return self.text.examples(read_piece(array, piece))

    def shape(self, shape: rows.BatchShape, max_examples: int) -> rows.BatchShape:
        """Return the shape of a batch's arrays, if a row has at most `max_examples` examples."""
        empty = read_piece(np.zeros(0, np.uint16), {"num_examples": 0, "source_tokens": 0})
        return self.text.examples(empty).shape(shape, max_examples)

    def packing_key(self, seed: int, part: int) -> tuple[int, int]:
        """Return two integers that seed the packing of piece `part` into rows.

        All runs share them, whatever their `seed`.
        """
        return _PACKING_SEED, part

    def row_counts(self, form: layout.Form, count: parts.CountRows) -> parts.RowCounts:
        """Return how many batch rows the pairs of each piece file fill, by batch shape.

        A file keeps the counts that `count` makes for packed rows.
        """
        if not form.packs:
            size = len(form.shapes)
            counts = [[*piece["classes"], *[0] * size][:size] for _, piece in self._pieces]
            return parts.RowCounts(np.array(counts, np.int64).reshape(-1, size), 1)
        counts_path = self.folder / f"packed-{'x'.join(map(str, form.shapes[0][1:]))}.json"
        try:
            packed = records.parse_object(counts_path.read_bytes(), _PACKED)
        except (FileNotFoundError, ValueError):
            if len(self) > _MANY_PIECES:
                warn(
                    f"packing {len(self):,} pieces in {self.folder} to count their rows, which is "
                    "done once"
                )
            row_counts = super().row_counts(form, count)
            packed = {"rows": row_counts.counts[:, 0].tolist(), "most": row_counts.max_examples}
            with suppress(UserError):  # a read-only folder: each run counts again
                atomic_file.write_whole(counts_path, json.dumps(packed).encode())
        return parts.RowCounts(np.array(packed["rows"], np.int64)[:, None], packed["most"])

    def count_tokens(self) -> list[int]:
        """Count each target id in at most 16 evenly spaced pieces."""
        stride = max(1, -(-len(self) // _SAMPLED_PIECES))
        pieces = map(self.open, range(0, len(self), stride))
        counts = [np.bincount(piece.target_tokens).tolist() for piece in pieces]
        return [*map(sum, zip_longest(*counts, fillvalue=0))]

    def token_counts(self) -> Int[np.ndarray, " vocab"]:
        """Return how often each target id occurs in at most 16 evenly spaced pieces."""
        return np.array(self.record["token_counts"], np.int64)


@contextmanager
def _on_this_machine(path: Path) -> Iterator[Path]:
    """Yield the path of a local copy of a file. Retry after storage errors."""
    deadline: float | None = None
    with ExitStack() as copies:
        while True:
            try:
                local_path = copies.enter_context(bucket.local_copy(path))
                break
            except FileNotFoundError:
                raise
            except (OSError, UserError) as error:
                if deadline is None:
                    deadline = time.monotonic() + _PATIENCE_SECONDS
                    warn(
                        f"{path} cannot be read ({in_one_line(error)}); retrying for up to ten "
                        "minutes"
                    )
                if time.monotonic() > deadline:
                    raise
                time.sleep(_RETRY_SECONDS)
        yield local_path


class ShardRecord(TypedDict):
    """The JSON statistics of a tokenized shard."""

    hashes: list[str]
    """The content hash of each file."""
    num_read: records.COUNT
    """The number of pairs in the shard, including skipped ones."""
    skipped: dict[str, records.COUNT]
    """The number of pairs that were left out, by reason."""
    first: dict[str, str]
    """The first faulty line for each reason, with its file."""
    pieces: list[PieceRecord]
    """The records of the pieces of the shard."""


class FolderRecord(TypedDict):
    """The JSON statistics of a folder of tokenized shards."""

    shards: list[ShardRecord]
    """The records of the shards."""
    token_counts: list[records.COUNT]
    """How often each target id occurs in a sample of the pieces."""


class ShardJob(NamedTuple):
    """The job of tokenizing one shard."""

    number: int
    """The index of the shard, which names the files of its pieces."""
    shard: Shard
    hashes: Sequence[str]
    """The content hash of each file of the shard."""
    out: Path
    """The folder to write pieces to."""

    @property
    def record_path(self) -> Path:
        """Return the path of the JSON record of the shard."""
        return self.out / f"{self.number:05}.json"

    def load_record(self, filenames: Set[str]) -> records.Record | None:
        """Return the record of the shard, or None if the shard must be tokenized.

        Args:
          filenames: the names of all files in the folder of the pieces.
        """
        if self.record_path.name not in filenames:
            return None
        try:
            record = records.parse_object(self.record_path.read_bytes(), ShardRecord)
        except (FileNotFoundError, ValueError):
            return None
        names = {piece_path(self.out, self.number, n).name for n in range(len(record["pieces"]))}
        return record if names <= filenames and record["hashes"] == list(self.hashes) else None

    def make(self, text: TrainText, config: DataConfig) -> records.Record:
        """Tokenize the shard into piece files; write and return its record."""
        faults, skipped, num_read = Faults(), Counter[str](), 0
        pieces: list[records.Record] = []
        for chunks in _groups(self.shard.pairs(faults)):
            tokens = text.tokenize(chunks)
            if len(tokens):
                path = piece_path(self.out, self.number, len(pieces))
                pieces.append(write_piece(path, tokens, text, config))
            skipped.update(tokens.skipped)
            num_read += tokens.num_pairs_read
        skipped.update(faults.counts)
        record = {
            "hashes": list(self.hashes),
            "num_read": num_read + faults.counts.total(),
            "skipped": dict(skipped),
            "first": faults.first,
            "pieces": pieces,
        }
        atomic_file.write_whole(self.record_path, json.dumps(record).encode())
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
    """Open the tokenized pieces of shards; tokenize shards that are new or have changed.

    Args:
      hashes: returns the hash of each file of each shard, to detect changes.
      text: the functions of the task that tokenize text and make examples.
      engine: runs the tokenizing jobs, like `map`, perhaps in several processes.
    """
    shard_hashes = hashes()
    prefix = splits.digest(_FORMAT, vocabulary.fingerprint, *map(str, text.key), *shards[0].fields)
    digest = splits.digest(prefix, *chain.from_iterable(shard_hashes))
    cache_dir = bucket.as_path(config.cache_dir)
    root = cache_dir if isinstance(cache_dir, bucket.BucketPath) else cache.cache_root(config)
    folder = root / f"pieces-{digest[:24]}"
    numbered = enumerate(zip(shards, shard_hashes, strict=True))
    jobs = [ShardJob(number, shard, digests, folder) for number, (shard, digests) in numbered]
    filenames = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    shard_records = [job.load_record(filenames) for job in jobs]
    if PREPARED in filenames and None not in shard_records:
        with suppress(ValueError):
            folder_record = records.parse_object((folder / PREPARED).read_bytes(), FolderRecord)
            if folder_record["shards"] == shard_records:
                return PreparedPieces(folder, folder_record, text, config)
    folder.mkdir(parents=True, exist_ok=True)
    folder_record = {"shards": [], "token_counts": []}
    missing_jobs = [job for job, record in zip(jobs, shard_records, strict=True) if record is None]
    new_records = engine(lambda job: job.make(text, config), missing_jobs)
    for shard, cached_record in zip(shards, shard_records, strict=True):
        record = cached_record or next(new_records)
        folder_record["shards"].append(record)
        Faults(Counter(record["skipped"]), record["first"]).warn()
        if not record["num_read"]:
            warn(f"shard {shard} is empty; was it copied completely?")
    prepared = PreparedPieces(folder, folder_record, text, config)
    folder_record["token_counts"] = prepared.count_tokens()
    atomic_file.write_whole(folder / PREPARED, json.dumps(folder_record).encode())
    if len(prepared):
        batching.Batches(prepared, config, 0)  # counts packed rows, and stores the counts
    return prepared


def on_ray(address: str) -> parts.Engine:
    """Return an engine that runs jobs on a Ray cluster, whose machines must share the files.

    Args:
      address: "" uses RAY_ADDRESS, or else starts a local cluster.
    """
    with needs_extra("ray", "--ray"):
        import ray

    def engine(make: Callable[[object], object], jobs: Iterable[object]) -> Iterator[object]:
        try:
            log_options = {"log_to_driver": False, "logging_level": logging.WARNING}
            ray.init(address or None, ignore_reinit_error=True, **log_options)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise UserError(
                f"--ray {address}: cannot reach a Ray cluster ({error}); start one with: ray start "
                "--head"
            ) from error
        # Ray refuses a partial function, so a lambda wraps it.
        remote_make = ray.remote(num_cpus=1, max_retries=_RETRIES)(lambda job: make(job))
        pending = deque(remote_make.remote(job) for job in jobs)
        while pending:
            try:
                yield ray.get(pending.popleft())  # popped, so that Ray can free the result
            except ray.exceptions.RayTaskError as error:
                raise error.cause from error
            except ray.exceptions.RayError as error:  # such as a worker that ran out of memory
                raise UserError(
                    f"--ray {address}: a shard was lost ({type(error).__name__}: "
                    f"{in_one_line(error)[:200]}); check the machines of the cluster and their "
                    "memory; the same command keeps the finished shards"
                ) from error

    return engine
