"""Find and hash the files (shards) that match the pattern of a `shards:` corpus.

In the pattern, `{split}` matches train, dev and test (or validation), and `{language}` matches the
source and the target language::

    shards:corpora/paracrawl/{split}-*.{language}.zst
    shards:s3://bucket/wmt/{split}-*.parquet
    shards:hf://datasets/NAME/DATASET/{split}-*.parquet
    shards:corpora/news-*.txt

Without `{split}`, all shards belong to train. Without `{language}`, each file holds both sides.
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

_SYNONYMS = {"dev": ("validation", "valid")}
_MOST_SAMPLED = 128
_WILDCARD = re.compile(r"[*?]|\[[^]]+\]")
_BATCH_ROWS = 10_000
_BINARY = "binary", "large_binary", "binary_view"
_TEXT_TYPES = "string", "large_string", "string_view", *_BINARY, "null"
_HASHES = records.schema({"hashes": dict[str, list]})


def pair_splits(name: str, config: DataConfig) -> dict[str, Split]:
    """Return the splits by name of a corpus of sentence pairs, such as shards:PATTERN."""
    return _shard_splits(name, config, (config.source_language, config.target_language))


def document_splits(name: str, config: DataConfig) -> dict[str, Split]:
    """Return the splits by name of a corpus of documents, such as shards:PATTERN."""
    return _shard_splits(name, config, ())


def _shard_splits(name: str, config: DataConfig, languages: tuple[str, ...]) -> dict[str, Split]:
    pattern = name.partition(":")[2]
    fields = fields_of(config, languages or ("text",))
    if pattern.startswith("hf:"):
        glob = fetch_dataset(pattern, lambda path: [*chain(*_patterns(path, languages).values())])
    else:
        glob = os.path.expanduser(pattern)
    splits = {}
    for split, patterns in _patterns(glob).items():
        matches = chain.from_iterable(_shards(path, languages, fields) for path in patterns)
        shards = list(dict.fromkeys(matches))  # valid* also matches the files of validation*
        if shards:
            hashes = cache(partial(_hashes, config, shards))
            splits[split] = Split(
                cache(partial(_fingerprint, shards[0].fields, hashes)),
                partial(_read, shards),
                partial(_read, _spread(shards), quietly=True),  # tokenization warns
                tuple(shards),
                partial(open_shards, shards, hashes),
            )
    if not splits:
        raise UserError(
            f"corpus={name} matches no file; give a path with wildcards, such as "
            "shards:corpora/{split}-*.parquet, in quotes"
        )
    return splits


def _patterns(pattern: str, languages: Sequence[str] = ()) -> dict[str, list[str]]:
    """Return globs by split: replace `{split}`, also by synonyms, and `{language}` in `pattern`."""
    patterns = {}
    for split in SPLITS if "{split}" in pattern else ("train",):
        names = (split, *_SYNONYMS.get(split, ()))
        paths = [pattern.replace("{split}", name) for name in names]
        patterns[split] = [
            path.replace("{language}", language)
            for path in paths
            for language in languages or ("{language}",)
        ]
    return patterns


def _shards(pattern: str, languages: Sequence[str], fields: tuple[str, ...]) -> Iterator[Shard]:
    if "{language}" not in pattern or not languages:
        yield from (shard_of(path, fields) for path in _paths(pattern))
        return
    source, target = (str(bucket.as_path(pattern.replace("{language}", x))) for x in languages)
    regex = re.compile("([^/]*)".join(map(re.escape, _WILDCARD.split(source))))
    literals = _WILDCARD.split(target)
    target_paths = {str(path): path for path in _paths(target)}
    for path in _paths(source):
        match = regex.fullmatch(str(path))
        wildcard_texts = match.groups() if match else _WILDCARD.findall(target)
        # The target file has the same text in place of each wildcard as the source file.
        target_name = "".join(map("".join, zip_longest(literals, wildcard_texts, fillvalue="")))
        target_path = target_paths.pop(target_name, None)
        if target_path is None:
            raise UserError(f"shard {path} has no {target_name} beside it with the other side")
        yield Shard((path, target_path), fields)
    for path in target_paths.values():
        raise UserError(f"shard {path} has no file beside it with the other side")


def _paths(pattern: str) -> list[Path]:
    parts = bucket.as_path(pattern).parts
    depth = next((n for n, part in enumerate(parts) if re.search(r"[*?\[]", part)), len(parts) - 1)
    base = bucket.as_path(Path(*parts[:depth]))
    return sorted(path for path in base.glob("/".join(parts[depth:])) if path.is_file())


def _spread(shards: Sequence[Shard]) -> Sequence[Shard]:
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
    """Return the content hash of each file of each shard.

    A local file is hashed again only if its size or modification time changed.
    """
    paths = [path for shard in shards for path in shard.files]
    path_digest = digest(*map(str, paths))
    cache_path = cache_root(config) / f"hashes-{path_digest[:24]}.json"
    try:
        entries = records.parse_object(cache_path.read_bytes(), _HASHES)["hashes"]
    except (OSError, ValueError):
        entries = {}
    with ThreadPoolExecutor() as pool:  # hashlib releases the GIL, so threads use all cores
        hashes = dict(zip(map(str, paths), pool.map(partial(_hash, entries), paths), strict=True))
    if hashes != entries:
        atomic_file.write_whole(cache_path, json.dumps({"hashes": hashes}).encode())
    return [[str(hashes[str(path)][-1]) for path in shard.files] for shard in shards]


def _hash(old_hashes: Mapping[str, list[int | str]], path: Path) -> list[int | str]:
    # [size in bytes, modification time in ns, hash]; [0, 0, hash] for an object in a bucket
    try:
        if isinstance(path, bucket.BucketPath):
            return [0, 0, path.checksum()]
        regular_file.check_regular(path)
        status = path.stat()
        version = [status.st_size, status.st_mtime_ns]
        old_hash = old_hashes.get(str(path))
        if old_hash is not None and old_hash[:2] == version:
            return old_hash
        return [*version, digest_of(path, "blake2b")]
    except OSError as error:
        raise UserError(f"shard {path} cannot be read: {error.strerror or error}") from error


@dataclass(frozen=True)
class ParquetShard(Shard):
    """A Parquet file: two columns hold the sides of pairs, or one column holds documents."""

    def texts(self, faults: Faults) -> Iterator[Sides]:
        """Yield the UTF-8 texts of each pair or document; count unusable rows in `faults`."""
        [path] = self.files
        with needs_extra("shards", str(path)):
            import pyarrow
            from pyarrow import parquet
        root_columns = list(dict.fromkeys(name.partition(".")[0] for name in self.fields))
        with bucket.local_copy(path) as copy:
            try:
                parquet_file = parquet.ParquetFile(copy)
                for name in self.fields:
                    _check_column(path, name, pyarrow.struct(parquet_file.schema_arrow))
                batches = parquet_file.iter_batches(_BATCH_ROWS, columns=root_columns)
                rows = chain.from_iterable(batch.to_pylist() for batch in batches)
                for row_number, row in enumerate(rows, 1):
                    values = [value_of(row, name) for name in self.fields]
                    yield from texts_of(values, path, row_number, faults)
            except (pyarrow.ArrowException, UnicodeDecodeError) as error:
                raise OSError(str(error)) from error


def shard_of(path: Path, fields: tuple[str, ...]) -> Shard:
    """Return the shard of a file; `fields` names the columns or keys that hold its texts."""
    return (ParquetShard if format_of(path) == ".parquet" else Shard)((path,), fields)


def _check_column(path: Path, name: str, dtype: Any) -> None:
    from pyarrow import types

    for part in name.split("."):
        columns = [column.name for column in dtype] if types.is_struct(dtype) else []
        if not types.is_map(dtype) and columns.count(part) != 1:
            hint = did_you_mean(part, columns, f"it has {', '.join(columns) or dtype}")
            raise UserError(f"{path} has no column {part!r}, which data.fields names; {hint}")
        dtype = dtype.item_type if types.is_map(dtype) else dtype.field(part).type
    dtype = dtype.value_type if types.is_dictionary(dtype) else dtype
    if str(dtype) not in _TEXT_TYPES:
        raise UserError(f"{path} has no text in the column {name!r}, but {dtype}; name another one")
