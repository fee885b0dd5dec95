"""Shards that are tables in Parquet's format; one without text in a column is refused."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from t2t_jax.data.pair_files import Faults, Shard, Sides, format_of, texts_of, value_of
from t2t_jax.errors import UserError, did_you_mean, needs_extra
from t2t_jax.system.bucket import local_copy

_BATCH_ROWS = 10_000
_BINARY = "binary", "large_binary", "binary_view"
_TEXT_TYPES = "string", "large_string", "string_view", *_BINARY, "null"


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
        number = 0
        with local_copy(path) as copy:
            try:
                table = parquet.ParquetFile(copy)
                for name in self.fields:
                    _check_column(path, name, pyarrow.struct(table.schema_arrow))
                for batch in table.iter_batches(_BATCH_ROWS, columns=roots):
                    for row in batch.to_pylist():
                        number += 1
                        yield from texts_of(
                            [value_of(row, name) for name in self.fields], path, number, faults
                        )
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
