"""The splits of a corpus, each with a reader and a fingerprint of its content."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from heapq import nsmallest
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

from t2t_jax.errors import UserError

Chunk: TypeAlias = tuple[list[Any], list[str]]
"""Consecutive pairs of a split: source lines, and as many target lines. For image
classification, the sources are arrays."""

SPLITS = ("train", "dev", "test")

CHUNK_LINES = 50_000
"""The most pairs of a chunk."""


class Split(NamedTuple):
    """One split of a corpus: a reader, and a fingerprint of its content."""

    fingerprint: Callable[[], str]
    """A function that returns a hash of the content; its first call checks the files."""
    read: Callable[[], Iterator[Chunk]]
    """A function that yields all pairs of the split in order, in chunks."""
    sample: Callable[[], Iterator[Chunk]] | None = None
    """A function that yields the pairs for learning a vocabulary; None uses all pairs."""
    shards: Sequence[object] = ()
    """The shards of the split, if it has any."""
    pieces: Callable[..., Any] | None = None
    """A function that takes the section `data` of a config, a vocabulary, a `TrainText` and an
    `Engine`, and returns the `Parts` of the shards."""

    @staticmethod
    def of(
        fingerprint: Callable[..., str], read: Callable[..., Iterator[Chunk]], *args: object
    ) -> "Split":
        """Make a split from a fingerprint function and a reader, which both get `args`."""
        return Split(cache(partial(fingerprint, *args)), partial(read, *args))


def digest(*parts: str) -> str:
    """Return the SHA-256 of strings, which must have no spaces, in hexadecimal digits."""
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()


def chunks(pairs: Iterable[tuple[object, str]]) -> Iterator[Chunk]:
    """Yield pairs in chunks: lists of at most `CHUNK_LINES` sources, and as many targets."""
    iterator = iter(pairs)
    while chunk := list(islice(iterator, CHUNK_LINES)):
        sources, targets = zip(*chunk, strict=True)
        yield list(sources), list(targets)


_SPARE = 10_000  # pairs collected before the largest hashes are dropped


def with_dev(name: str, parts: Mapping[str, Split], num_pairs: int) -> dict[str, Split]:
    """Move `num_pairs` distinct pairs of a corpus from train to dev, chosen by their hashes."""
    label, train = f"data.dev_lines={num_pairs}", parts.get("train")
    if train is None or train.shards or "dev" in parts:
        reason = "no train split" if train is None else "shards" if train.shards else "a dev split"
        raise UserError(f"{label} is not for {name}, which has {reason}; leave it out")
    dev_pairs = cache(partial(_smallest, f"{label} of {name}", train, num_pairs))

    def fingerprint(split: str) -> str:
        return digest(split, *(key.hex() for key in dev_pairs()))

    train_split = Split.of(
        lambda: digest(fingerprint("train"), train.fingerprint()),
        lambda: chunks(pair for key, pair in _pairs(train) if key not in dev_pairs()),
    )
    dev_split = Split.of(partial(fingerprint, "dev"), lambda: chunks(iter(dev_pairs().values())))
    return {**parts, "train": train_split, "dev": dev_split}


def _pairs(train: Split) -> Iterator[tuple[bytes, tuple[object, str]]]:
    """Yield a hash as sort key, and the pair, for each (source, target) pair of a split.

    Pairs with a blank side have the largest keys.
    """
    for chunk in train.read():
        for source, target in zip(*chunk, strict=True):
            content = source.encode() if isinstance(source, str) else source.tobytes()  # an image
            # Pairs with a blank side sort last, because dev should leave them out as training does.
            is_blank = not content.strip() or not target.strip()
            key = hashlib.sha256(content + b"\n" + target.encode()).digest()
            yield bytes([is_blank]) + key, (source, target)


def _smallest(label: str, train: Split, num_pairs: int) -> dict[bytes, tuple[object, str]]:
    """Return the `num_pairs` (source, target) pairs with the smallest content hashes.

    Keys are the hashes, ascending. Errors begin with `label`.
    """
    train.fingerprint()  # checks the files
    smallest: dict[bytes, tuple[object, str]] = {}
    for key, pair in _pairs(train):
        smallest[key] = pair
        # The memory depends on `num_pairs`, not on the size of the corpus.
        if len(smallest) > 2 * num_pairs + _SPARE:
            smallest = dict(nsmallest(num_pairs + 1, smallest.items()))
    if len(smallest) <= num_pairs:
        raise UserError(
            f"{label} leaves nothing to train on: it has {len(smallest):,} distinct pairs; lower it"
        )
    return dict(nsmallest(num_pairs, smallest.items()))
