"""Pieces: files of token arrays, each of some 100,000 pairs of a shard.

A piece is one array in NumPy's format: the lengths of the sources, those of the targets, the tokens
of all sources and those of all targets. Its record describes the contents, so that a training knows
the rows of all pieces before it opens one.
"""

import hashlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from jaxtyping import Integer

from t2t_jax.config import DataConfig
from t2t_jax.data import layout
from t2t_jax.data.rows import Content, offsets_of
from t2t_jax.data.tokenized import TokenizedSplit, TrainText
from t2t_jax.system import atomic_file, records


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
    figures = Content.of(examples)
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
    sides = (tokens[:sources], offsets_of(lengths[0])), (tokens[sources:], offsets_of(lengths[1]))
    return TokenizedSplit(*sides[0], *sides[1], {}, count)
