"""The pairs of a file, from text or JSON lines.

    7.en.gz, 7.de.gz   a file for each side: line n of one translates line n of the other
    7.tsv.zst          a line for each pair, with a tab between its sides
    7.txt              a line for each document, of one language
    7.jsonl            an object for each pair, of which two fields are the sides

They may be packed by gzip (`.gz`) or Zstandard (`.zst`). A line at fault, such as one that is not
UTF-8, one with more columns than sides, or an object without a side, is counted and left out. A
file at fault, such as one that is cut short, is refused.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeAlias

from t2t_jax.config import DataConfig
from t2t_jax.data.lines import DAMAGE, blocks_of, checked_beginning, open_text
from t2t_jax.data.splits import Chunk, chunks
from t2t_jax.errors import UserError, in_one_line
from t2t_jax.plugins import warn_once

_JSON_LINES = ".jsonl", ".json", ".ndjson"
Sides: TypeAlias = tuple[str, ...]
"""The text of a pair, or of a document by itself."""


@dataclass
class Faults:
    """The unreadable lines of a shard, which were left out."""

    counts: Counter[str] = field(default_factory=Counter)
    """Their number, by reason."""
    first: dict[str, str] = field(default_factory=dict)
    """The first one of each reason, as FILE line N."""

    def add(self, reason: str, path: Path, number: int) -> None:
        """Count a line, which is counted from 1."""
        self.counts[reason] += 1
        self.first.setdefault(reason, f"{path} line {number:,}")

    def warn(self) -> None:
        """Warn of the lines of each reason, in one line that names the first."""
        for reason, line in self.first.items():
            count, what = self.counts[reason], reason.replace("_", " ")
            # Evaluations read the same files again and again.
            lines = "1 line is" if count == 1 else f"{count:,} lines are"
            warn_once(f"{lines} left out as {what}, the first of them {line}")


@dataclass(frozen=True)
class Shard:
    """A file with pairs, two files with a side each, or a file of documents."""

    files: tuple[Path, ...]
    """The file, or that of the sources and that of the targets."""
    fields: tuple[str, ...]
    """The names of the fields or columns with the sides, or with the text of a document. A name
    `a.b` is the field `b` of the field `a`."""

    def __str__(self) -> str:
        """Return the paths of the files."""
        return " and ".join(map(str, self.files))

    def pairs(self, faults: Faults | None = None) -> Iterator[Chunk]:
        """Yield the pairs in order, in chunks; documents have empty sources.

        Args:
          faults: collects the lines that are left out.
        """
        faults = Faults() if faults is None else faults
        try:
            found = self.texts(faults)
            if len(self.fields) == 1:
                found = (("", text) for (text,) in found if text.strip())
            yield from chunks((source, target) for source, target in found)
        except (OSError, *DAMAGE) as error:
            raise UserError(
                f"shard {self} cannot be read: {in_one_line(error)}; bring back a whole copy, or "
                "take it out of the pattern"
            ) from error

    def texts(self, faults: Faults) -> Iterator[Sides]:
        """Yield the sides of each pair, or each document."""
        if len(self.files) == 2:
            return self._of_two(faults)
        [path] = self.files
        read = _read_json_lines if format_of(path) in _JSON_LINES else _read_text
        return read(path, self.fields, faults)

    def _of_two(self, faults: Faults) -> Iterator[Sides]:
        read = [_lines(path, faults) for path in self.files]
        for number, pair in enumerate(zip_longest(*read, fillvalue=_END), start=1):
            if _END in pair:
                short, long = self.files if pair[0] is _END else self.files[::-1]
                raise UserError(
                    f"{short} has {number - 1:,} lines, and {long} has more; line n of one must "
                    "translate line n of the other"
                )
            if None not in pair:
                yield pair


_END: Any = object()


def format_of(path: Path) -> str:
    """Return the suffix of a file's format, without its compression suffix."""
    return Path(path.stem).suffix if path.suffix in (".gz", ".zst") else path.suffix


def _lines(path: Path, faults: Faults) -> Iterator[str | None]:
    """Yield the lines of a text, and None for a line that is not UTF-8."""
    number = 0
    with open_text(path) as file:
        for block in blocks_of(file, path):
            block = block if number else checked_beginning(path, block)
            for line in block.removesuffix(b"\n").split(b"\n"):
                number += 1
                try:
                    yield line.decode().removesuffix("\r")
                except UnicodeDecodeError:
                    faults.add("not_utf8", path, number)
                    yield None


def _read_text(path: Path, fields: Sequence[str], faults: Faults) -> Iterator[Sides]:
    """Yield the lines of a text of documents, or the columns of lines of pairs."""
    for number, line in enumerate(_lines(path, faults), start=1):
        if line is None or (len(fields) > 1 and not line):
            continue
        sides = tuple(line.split("\t")) if len(fields) > 1 else (line,)
        if len(sides) == len(fields):
            yield sides
        else:  # with more columns, nothing says which of them are the sides
            is_short = len(sides) < len(fields)
            faults.add("without_a_side" if is_short else "having_too_many_columns", path, number)


def _read_json_lines(path: Path, fields: Sequence[str], faults: Faults) -> Iterator[Sides]:
    for number, line in enumerate(_lines(path, faults), start=1):
        if line is None or not line.strip():
            continue
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            faults.add("not_json", path, number)
            continue
        yield from texts_of([value_of(found, name) for name in fields], path, number, faults)


def fields_of(config: DataConfig, usual: tuple[str, ...]) -> tuple[str, ...]:
    """Return the fields of a line: `config.fields`, or else the usual ones."""
    if len(usual) == 1 and config.documents == "paragraphs":
        raise UserError(
            "data.documents='paragraphs' is not for shards or one file: a line is a document"
        )
    fields = config.fields or usual
    if len(fields) != len(usual):
        raise UserError(
            f"data.fields={' '.join(fields)} are {len(fields)}, but a line holds "
            f"{'a source and a target' if len(usual) > 1 else 'one text'}; name {len(usual)}"
        )
    return fields


def value_of(record: object, name: str) -> object:
    """Return a field of a record or of a nested record; None if there is none."""
    for part in name.split("."):
        if isinstance(record, list) and record and isinstance(record[0], tuple):
            record = dict(record)  # a map of Parquet, as pairs of a key and a value
        record = record.get(part) if isinstance(record, dict) else None
    return record


def texts_of(values: list[Any], path: Path, number: int, faults: Faults) -> Iterator[Sides]:
    """Yield the texts of a pair, or count its line among the faults."""
    try:
        texts = [value.decode() if isinstance(value, bytes) else value for value in values]
        "".join(texts).encode()
    except TypeError:
        faults.add("without_a_side" if None in values else "not_text", path, number)
    except UnicodeError:  # JSON can have halves of characters, as \ud83d
        faults.add("not_utf8", path, number)
    else:
        yield tuple(" ".join(text.splitlines()) for text in texts)
