"""The parts of a corpus: what tells whether one has changed, and how it is read."""

import hashlib
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

Chunk: TypeAlias = tuple[list[Any], list[str]]
"""Some consecutive pairs of a split: its source lines, and as many target lines. Where images are
labelled, arrays stand for the source lines."""

SPLITS = ("train", "dev", "test")

CHUNK_LINES = 50_000
"""Most pairs of a chunk."""


class Split(NamedTuple):
    """One part of a corpus: what identifies its content, and a way to read it from the start."""

    fingerprint: Callable[[], str]
    """Gives a hash of the content; the first call checks the files, and later ones remember."""
    read: Callable[[], Iterator[Chunk]]
    """Gives all pairs of the split in order, in chunks."""


def digest(*parts: str) -> str:
    """A hash of strings that have no spaces."""
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()


def chunks(pairs: Iterator[tuple[Any, str]]) -> Iterator[Chunk]:
    """The chunks of pairs."""
    while chunk := list(islice(pairs, CHUNK_LINES)):
        sources, targets = zip(*chunk, strict=True)
        yield list(sources), list(targets)
