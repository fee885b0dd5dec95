"""The splits of a corpus: a fingerprint of each one's content, and a reader."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

Chunk: TypeAlias = tuple[list[Any], list[str]]
"""Some consecutive pairs of a split: its source lines, and as many target lines. Where images are
labelled, arrays stand for the source lines."""

SPLITS = ("train", "dev", "test")

CHUNK_LINES = 50_000
"""The most pairs of a chunk."""


class Split(NamedTuple):
    """One part of a corpus: a fingerprint of its content, and a function that reads it."""

    fingerprint: Callable[[], str]
    """A function that gives a hash of the content; its first call checks the files."""
    read: Callable[[], Iterator[Chunk]]
    """A function that gives all pairs of the split in order, in chunks."""
    sample: Callable[[], Iterator[Chunk]] | None = None
    """A function that gives the pairs from which a vocabulary is learned, if these are not all."""
    shards: Sequence[Any] = ()
    """The shards of the split, each a `data.shards.reading.Shard`, if it has any."""
    hashes: Callable[[], Sequence[Sequence[str]]] = tuple
    """A function that gives the hashes of the files of each shard."""

    @staticmethod
    def of(
        fingerprint: Callable[..., str], read: Callable[..., Iterator[Chunk]], *given: Any
    ) -> "Split":
        """Return a split of two functions, both called with `given`; the first is called once."""
        return Split(cache(partial(fingerprint, *given)), partial(read, *given))


def digest(*parts: str) -> str:
    """Return a hash of strings that have no spaces."""
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()


def chunks(pairs: Iterator[tuple[Any, str]]) -> Iterator[Chunk]:
    """Yield pairs in chunks of at most `CHUNK_LINES`."""
    while chunk := list(islice(pairs, CHUNK_LINES)):
        sources, targets = zip(*chunk, strict=True)
        yield list(sources), list(targets)
