"""A folder of pieces as the parts of a training, a window at a time.

A piece is a file with some 100,000 pairs of a shard as one array in NumPy's format: the lengths of
the sources, those of the targets, the tokens of all sources and those of all targets. Its record
describes the contents, so that a training knows the rows of all pieces before it opens one.
"""

import hashlib
import io
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from jaxtyping import Int, Integer

from t2t_jax.config import DataConfig
from t2t_jax.data import layout, parts, rows
from t2t_jax.data.tokenized import TokenizedSplit, TrainText
from t2t_jax.errors import UserError, in_one_line, warn
from t2t_jax.system import atomic_file, bucket, records, sums

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
    path: Path, tokens: TokenizedSplit, text: TrainText, config: DataConfig
) -> dict[str, Any]:
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


def read_piece(content: Integer[np.ndarray, " n"], record: Mapping[str, Any]) -> TokenizedSplit:
    """Return the token arrays of a piece, which are views of its array."""
    count, sources = record["num_examples"], record["source_tokens"]
    lengths = content[: 2 * count].reshape(2, count)
    tokens = content[2 * count :]
    sides = (
        (tokens[:sources], rows.offsets_of(lengths[0])),
        (tokens[sources:], rows.offsets_of(lengths[1])),
    )
    return TokenizedSplit(*sides[0], *sides[1], {}, count)


@dataclass(frozen=True)
class PreparedPieces(parts.Parts):
    """The pieces of a folder."""

    folder: Path
    """The folder, on this machine or in a bucket."""
    record: Mapping[str, Any]
    """What the folder holds; see `extras.shards.preparing`."""
    text: TrainText
    """How examples are made of a piece."""
    config: DataConfig
    """The section `data` of the config."""

    @property
    def window(self) -> int:
        """Return the number of pieces whose examples are mixed."""
        return self.config.window

    @cached_property
    def _pieces(self) -> list[tuple[Path, Mapping[str, Any]]]:
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
            counts = np.zeros((len(self), len(form.shapes)), np.int64)
            for own, (_, piece) in zip(counts, self._pieces, strict=True):
                known = piece["classes"][: len(own)]
                own[: len(known)] = known
            return parts.RowCounts(counts, 1)
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
