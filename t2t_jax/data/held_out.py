"""Dev sets of distinct pairs of train, those with the smallest hashes of their text."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Set
from functools import cache, partial
from heapq import nsmallest
from typing import Any

from t2t_jax.data.splits import Chunk, Split, chunks, digest
from t2t_jax.errors import UserError

_SPARE = 10_000


def with_dev(name: str, parts: Mapping[str, Split], number: int) -> dict[str, Split]:
    """Return the splits of a corpus with `number` pairs of train as its dev split."""
    label = f"data.dev_lines={number}"
    if "dev" in parts:
        raise UserError(f"{label} has no effect, as {name} has a dev split; leave it out")
    if "train" not in parts or parts["train"].shards:
        reason = "train split has shards" if "train" in parts else "corpus has no train split"
        raise UserError(f"{label} is not for {name}: the {reason}; leave it out")
    train = parts["train"]
    keys = cache(partial(_smallest, f"{label} of {name}", train, number))
    dev, rest = (Split.of(*each, train, keys) for each in ((_dev_digest, _dev), (_digest, _rest)))
    return {**parts, "train": rest, "dev": dev}


def _key(source: Any, target: str) -> bytes:
    first = source.encode() if isinstance(source, str) else source.tobytes()  # of an image
    # Pairs with a blank side come last: training leaves them out, and dev sets should, too.
    is_blank = not first.strip() or not target.strip()
    return bytes([is_blank]) + hashlib.sha256(first + b"\n" + target.encode()).digest()


def _pairs(train: Split) -> Iterator[tuple[bytes, tuple[Any, str]]]:
    for chunk in train.read():
        for pair in zip(*chunk, strict=True):
            yield _key(*pair), pair


def _smallest(label: str, train: Split, number: int) -> Set[bytes]:
    train.fingerprint()  # has checked the files
    smallest: set[bytes] = set()
    for key, _ in _pairs(train):
        smallest.add(key)
        # So the memory does not depend on the number of pairs.
        if len(smallest) > 2 * number + _SPARE:
            smallest = set(nsmallest(number + 1, smallest))
    if len(smallest) <= number:
        raise UserError(
            f"{label} leaves nothing to train on: it has {len(smallest):,} distinct pairs; lower it"
        )
    return frozenset(nsmallest(number, smallest))


def _dev_digest(train: Split, keys: Callable[[], Set[bytes]]) -> str:
    return digest("dev", *(key.hex() for key in sorted(keys())))


def _digest(train: Split, keys: Callable[[], Set[bytes]]) -> str:
    return digest("train", train.fingerprint(), _dev_digest(train, keys))


def _rest(train: Split, keys: Callable[[], Set[bytes]]) -> Iterator[Chunk]:
    return chunks(pair for key, pair in _pairs(train) if key not in keys())


def _dev(train: Split, keys: Callable[[], Set[bytes]]) -> Iterator[Chunk]:
    # In the order of their hashes, so that the order of the lines does not matter.
    held_out = {key: pair for key, pair in _pairs(train) if key in keys()}
    return chunks(pair for _, pair in sorted(held_out.items()))
