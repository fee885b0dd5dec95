"""The files of a checkpoint that hold a process's part of the arrays.

If each process writes its files, an array is a directory in the format of Zarr 2: `.zarray` has its
shape and chunk shape, and the chunk at index (1, 0) of the grid is in the file `1.0`. Checkpoints
that were copied from a directory have another format, which is read whole.
"""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import orbax.checkpoint as ocp

from t2t_jax.system.bucket import BucketPath

_SHAPES = ".zarray"
_CHUNK = re.compile(r"\d+(\.\d+)*")

Chunks = Callable[[Path, ocp.args.Composite], Iterator[BucketPath]]


def is_chunk(path: Path) -> bool:
    """Return whether a file of a checkpoint is a chunk of an array, by its name."""
    return _CHUNK.fullmatch(path.name) is not None


def files_to_read(place: BucketPath, items: Iterable[str]) -> tuple[list[BucketPath], Chunks]:
    """List the objects to download to read some items of a checkpoint.

    Returns:
      The objects to download first, and a function. It takes their local directory and the
      requested items, and returns the remaining objects: chunks of arrays.
    """
    depth, names = len(place.parts), {*items}
    first, chunks = [], defaultdict(list)
    for path in place.objects():
        if len(path.parts) > depth + 1 and path.parts[depth] not in names:
            continue
        if is_chunk(path):
            chunks[path.parent].append(path)
        else:
            first.append(path)

    def needed(local: Path, args: ocp.args.Composite) -> Iterator[BucketPath]:
        asked = {place / name / key: x for name, item in args.items() for key, x in _arrays(item)}
        for folder, paths in chunks.items():
            shapes = local / str(folder).removeprefix(f"{place}/") / _SHAPES
            if shapes.is_file() and folder in asked:
                yield from _touched(paths, json.loads(shapes.read_bytes()), asked[folder])
            else:
                yield from paths

    return first, needed


def _arrays(item: ocp.args.CheckpointArgs) -> Iterator[tuple[str, Any]]:
    """Yield the requested arrays of an item, with the names of their directories."""
    tree = getattr(item, "item", None)
    if tree is not None:
        for key, x in ocp.tree.to_flat_dict(tree, sep=".").items():
            if getattr(x, "sharding", None) is not None:
                yield key, x


def _touched(paths: Iterable[BucketPath], stored: Any, x: Any) -> Iterator[BucketPath]:
    """Yield the chunks of an array that overlap the part of this process's devices."""
    indices = x.sharding.addressable_devices_indices_map(x.shape).values()
    bounds = {tuple(s.indices(n)[:2] for s, n in zip(i, x.shape, strict=True)) for i in indices}
    for path in paths:
        place = [int(number) for number in path.name.split(".")]
        sides = [*zip(place, stored["chunks"], strict=False)]  # none, of a number without axes
        if any(
            all(at * size < end and begin < (at + 1) * size for (at, size), (begin, end) in each)
            for each in (zip(sides, part, strict=False) for part in bounds)
        ):
            yield path
