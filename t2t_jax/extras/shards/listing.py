"""The shards that a pattern names, in any format, and the hashes by which they are known.

The place after `shards:` is a path with wildcards. `{split}` in it stands for train, dev and test
(or validation), and `{language}` for the source language, and then for the target language::

    shards:corpora/paracrawl/{split}-*.{language}.zst
    shards:s3://bucket/wmt/{split}-*.parquet
    shards:hf://datasets/NAME/DATASET/{split}-*.parquet
    shards:corpora/news-*.txt

Without `{split}`, all shards are of train. Without `{language}`, a file has both sides.
"""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from t2t_jax.config import DataConfig
from t2t_jax.data.cache import cache_root
from t2t_jax.data.pair_files import Faults, Shard, Sides, fields_of, format_of, texts_of, value_of
from t2t_jax.data.splits import SPLITS, Chunk, Split, digest
from t2t_jax.errors import UserError, did_you_mean, needs_extra
from t2t_jax.extras.shards.pieces import open_shards
from t2t_jax.system import atomic_file, bucket, records, regular_file
from t2t_jax.system.hub import fetch_dataset
from t2t_jax.system.sums import digest_of

_OTHER_NAMES = {"dev": ("validation", "valid")}
_MOST_SAMPLED = 128
_WILDCARD = re.compile(r"[*?]|\[[^]]+\]")
_BATCH_ROWS = 10_000
_BINARY = "binary", "large_binary", "binary_view"
_TEXT_TYPES = "string", "large_string", "string_view", *_BINARY, "null"
_HASHES = records.schema({"hashes": dict[str, list]})


def pair_splits(name: str, config: DataConfig) -> dict[str, Split]:
    """Return the splits of shards of pairs; see `TaskFacts.corpora`."""
    return _shard_splits(name, config, (config.source_language, config.target_language))


def document_splits(name: str, config: DataConfig) -> dict[str, Split]:
    """Return the splits of shards of documents of one language; see `TaskFacts.corpora`."""
    return _shard_splits(name, config, ())


def _shard_splits(name: str, config: DataConfig, languages: tuple[str, ...]) -> dict[str, Split]:
    place = name.partition(":")[2]
    fields = fields_of(config, languages or ("text",))
    if place.startswith("hf:"):
        there = fetch_dataset(place, lambda path: [*chain(*_of_splits(path, languages).values())])
    else:
        there = os.path.expanduser(place)
    found = {}
    for split, patterns in _of_splits(there).items():
        every = chain.from_iterable(_shards(one, languages, fields) for one in patterns)
        shards = list(dict.fromkeys(every))  # valid* fits the files of validation* too
        if shards:
            hashes = cache(partial(_hashes, config, shards))
            found[split] = Split(
                cache(partial(_fingerprint, shards[0].fields, hashes)),
                partial(_read, shards),
                partial(_read, _spread(shards), quietly=True),  # the tokenisation warns
                tuple(shards),
                partial(open_shards, shards, hashes),
            )
    if not found:
        raise UserError(
            f"corpus={name} fits no file; give a path with wildcards, such as "
            "shards:corpora/{split}-*.parquet, in quotes"
        )
    return found


def _of_splits(place: str, languages: Sequence[str] = ()) -> dict[str, list[str]]:
    """Return the paths with wildcards of each split, also with its other names."""
    found = {}
    for split in SPLITS if "{split}" in place else ("train",):
        names = (split, *_OTHER_NAMES.get(split, ()))
        paths = [place.replace("{split}", name) for name in names]
        found[split] = [
            path.replace("{language}", language)
            for path in paths
            for language in languages or ("{language}",)
        ]
    return found


def _shards(pattern: str, languages: Sequence[str], fields: tuple[str, ...]) -> Iterator[Shard]:
    if "{language}" not in pattern or not languages:
        yield from (shard_of(path, fields) for path in _paths(pattern))
        return
    source, target = (str(bucket.as_path(pattern.replace("{language}", one))) for one in languages)
    shape = re.compile("([^/]*)".join(map(re.escape, _WILDCARD.split(source))))
    between = _WILDCARD.split(target)
    others = {str(path): path for path in _paths(target)}
    for path in _paths(source):
        match = shape.fullmatch(str(path))
        parts = match.groups() if match else _WILDCARD.findall(target)
        name = "".join(map("".join, zip_longest(between, parts, fillvalue="")))
        other = others.pop(name, None)
        if other is None:
            raise UserError(f"shard {path} has no {name} beside it with the other side")
        yield Shard((path, other), fields)
    if others:
        raise UserError(f"shard {next(iter(others))} has no file beside it with the other side")


def _paths(pattern: str) -> list[Path]:
    place = bucket.as_path(pattern)
    parts = place.parts
    wild = next((n for n, part in enumerate(parts) if re.search(r"[*?\[]", part)), len(parts) - 1)
    base = bucket.as_path(Path(*parts[:wild]))
    return sorted(path for path in base.glob("/".join(parts[wild:])) if path.is_file())


def _spread(shards: Sequence[Shard]) -> Sequence[Shard]:
    """Return at most 128 evenly spaced shards."""
    count = min(len(shards), _MOST_SAMPLED)
    return [shards[number * len(shards) // count] for number in range(count)]


def _read(shards: Sequence[Shard], *, quietly: bool = False) -> Iterator[Chunk]:
    is_empty = True
    for shard in shards:
        faults = Faults()
        for chunk in shard.pairs(faults):
            is_empty = False
            yield chunk
        if is_empty or not quietly:
            faults.warn()


def _fingerprint(fields: Sequence[str], hashes: Callable[[], Sequence[Sequence[str]]]) -> str:
    return digest("shards", *fields, *chain.from_iterable(hashes()))


def _hashes(config: DataConfig, shards: Sequence[Shard]) -> list[list[str]]:
    """Return a hash of the content of each file of each shard.

    The cache keeps the hashes of local files, and only files that are new, or whose size or time of
    change differs, are read. For objects, the store has hashes.
    """
    paths = [path for shard in shards for path in shard.files]
    names = digest(*map(str, paths))
    kept = cache_root(config) / f"hashes-{names[:24]}.json"
    try:
        known = records.parse_object(kept.read_bytes(), _HASHES)["hashes"]
    except (OSError, ValueError):
        known = {}
    with ThreadPoolExecutor() as pool:  # hashing leaves the other cores to other threads
        found = dict(zip(map(str, paths), pool.map(partial(_hash, known), paths), strict=True))
    if found != known:
        atomic_file.write_whole(kept, json.dumps({"hashes": found}).encode())
    return [[str(found[str(path)][-1]) for path in shard.files] for shard in shards]


def _hash(known: Mapping[str, list[int | str]], path: Path) -> list[int | str]:
    """Return the size, the time of change and the hash of a file; of an object, only the hash."""
    try:
        if isinstance(path, bucket.BucketPath):
            return [0, 0, path.checksum()]
        regular_file.check_regular(path)
        status = path.stat()
        version = [status.st_size, status.st_mtime_ns]
        before = known.get(str(path))
        if before is not None and before[:2] == version:
            return before
        return [*version, digest_of(path, "blake2b")]
    except OSError as error:
        raise UserError(f"shard {path} cannot be read: {error.strerror or error}") from error


@dataclass(frozen=True)
class ParquetShard(Shard):
    """A table of which two columns are the sides of pairs, or one has documents."""

    def texts(self, faults: Faults) -> Iterator[Sides]:
        """Yield the sides of each pair, or each document; binary columns are read as UTF-8."""
        [path] = self.files
        with needs_extra("shards", str(path)):
            import pyarrow
            from pyarrow import parquet
        roots = list(dict.fromkeys(name.partition(".")[0] for name in self.fields))
        with bucket.local_copy(path) as copy:
            try:
                table = parquet.ParquetFile(copy)
                for name in self.fields:
                    _check_column(path, name, pyarrow.struct(table.schema_arrow))
                batches = table.iter_batches(_BATCH_ROWS, columns=roots)
                rows = chain.from_iterable(batch.to_pylist() for batch in batches)
                for number, row in enumerate(rows, 1):
                    values = [value_of(row, name) for name in self.fields]
                    yield from texts_of(values, path, number, faults)
            except (pyarrow.ArrowException, UnicodeDecodeError) as error:
                raise OSError(str(error)) from error


def shard_of(path: Path, fields: tuple[str, ...]) -> Shard:
    """Return the shard in a file, of any format."""
    return (ParquetShard if format_of(path) == ".parquet" else Shard)((path,), fields)


def _check_column(path: Path, name: str, kind: Any) -> None:
    """Refuse a Parquet file whose rows, of some kind of struct, have no text of a name."""
    from pyarrow import types

    for part in name.split("."):
        known = [one.name for one in kind] if types.is_struct(kind) else []
        if not types.is_map(kind) and known.count(part) != 1:
            hint = did_you_mean(part, known, f"it has {', '.join(known) or kind}")
            raise UserError(f"{path} has no column {part!r}, which data.fields names; {hint}")
        kind = kind.item_type if types.is_map(kind) else kind.field(part).type
    kind = kind.value_type if types.is_dictionary(kind) else kind
    if str(kind) not in _TEXT_TYPES:
        raise UserError(f"{path} has no text in the column {name!r}, but {kind}; name another one")
