"""The splits of a corpus: a fingerprint of each one's content, and a reader."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from heapq import nsmallest
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

from t2t_jax.errors import UserError

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
    shards: Sequence[object] = ()
    """The shards of the split, if it has any."""
    pieces: Callable[..., Any] | None = None
    """A function of the section `data` of a config, a vocabulary, a `TrainText` and an `Engine`
    that gives the `Parts` of the split's own shards."""

    @staticmethod
    def of(
        fingerprint: Callable[..., str], read: Callable[..., Iterator[Chunk]], *given: object
    ) -> "Split":
        """Return a split of two functions, both called with `given`; the first is called once."""
        return Split(cache(partial(fingerprint, *given)), partial(read, *given))


def digest(*parts: str) -> str:
    """Return a hash of strings that have no spaces."""
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()


def chunks(pairs: Iterable[tuple[object, str]]) -> Iterator[Chunk]:
    """Yield pairs in chunks of at most `CHUNK_LINES`."""
    rest = iter(pairs)
    while chunk := list(islice(rest, CHUNK_LINES)):
        sources, targets = zip(*chunk, strict=True)
        yield list(sources), list(targets)


_SPARE = 10_000


def with_dev(name: str, parts: Mapping[str, Split], number: int) -> dict[str, Split]:
    """Return the splits of a corpus with `number` distinct pairs moved from train to dev."""
    label, train = f"data.dev_lines={number}", parts.get("train")
    if train is None or train.shards or "dev" in parts:
        has = "no train split" if train is None else "shards" if train.shards else "a dev split"
        raise UserError(f"{label} is not for {name}, which has {has}; leave it out")
    dev = cache(partial(_smallest, f"{label} of {name}", train, number))

    def fingerprint(split: str) -> str:
        return digest(split, *(key.hex() for key in dev()))

    remaining = Split.of(
        lambda: digest(fingerprint("train"), train.fingerprint()),
        lambda: chunks(pair for key, pair in _pairs(train) if key not in dev()),
    )
    held_out = Split.of(partial(fingerprint, "dev"), lambda: chunks(iter(dev().values())))
    return {**parts, "train": remaining, "dev": held_out}


def _pairs(train: Split) -> Iterator[tuple[bytes, tuple[object, str]]]:
    """Yield the pairs of a split with their hashes."""
    for chunk in train.read():
        for source, target in zip(*chunk, strict=True):
            first = source.encode() if isinstance(source, str) else source.tobytes()  # of an image
            # Pairs with a blank side come last: training leaves them out, and dev sets should, too.
            is_blank = not first.strip() or not target.strip()
            key = hashlib.sha256(first + b"\n" + target.encode()).digest()
            yield bytes([is_blank]) + key, (source, target)


def _smallest(label: str, train: Split, number: int) -> dict[bytes, tuple[object, str]]:
    """Return the pairs with the smallest hashes, by their hashes, in order."""
    train.fingerprint()  # checks the files
    smallest: dict[bytes, tuple[object, str]] = {}
    for key, pair in _pairs(train):
        smallest[key] = pair
        # Memory depends on `number`, not on the size of the corpus.
        if len(smallest) > 2 * number + _SPARE:
            smallest = dict(nsmallest(number + 1, smallest.items()))
    if len(smallest) <= number:
        raise UserError(
            f"{label} leaves nothing to train on: it has {len(smallest):,} distinct pairs; lower it"
        )
    return dict(nsmallest(number, smallest.items()))
