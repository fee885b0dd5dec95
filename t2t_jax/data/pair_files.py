"""Sentence pairs or documents in files of text or JSON lines.

    7.en.gz, 7.de.gz   a file for each side: line n of one translates line n of the other
    7.tsv.zst          a line for each pair, with a tab between its sides
    7.txt              a line for each document, of one language
    7.jsonl            an object for each pair, with a field for each side

Files may be compressed by gzip (`.gz`) or Zstandard (`.zst`). The reader counts and leaves out a
faulty line: text that is not UTF-8, a line with too many columns, or an object without a side. It
refuses a faulty file, such as a truncated one.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeAlias

from t2t_jax.config import DataConfig
from t2t_jax.data.lines import DAMAGE, blocks_of, check_first_block, open_text
from t2t_jax.data.splits import Chunk, chunks
from t2t_jax.errors import UserError, in_one_line
from t2t_jax.plugins import warn_once

_JSON_LINES = ".jsonl", ".json", ".ndjson"
Sides: TypeAlias = tuple[str, ...]
"""The two sides of a pair, or the text of a document."""


@dataclass
class Faults:
    """The faulty lines of a shard, which the reader leaves out and counts by reason."""

    counts: Counter[str] = field(default_factory=Counter)
    """The number of lines, by reason."""
    first: dict[str, str] = field(default_factory=dict)
    """The first line of each reason, as FILE line N."""

    def add(self, reason: str, path: Path, line_number: int) -> None:
        """Count a faulty line, and remember the first line of each reason."""
        self.counts[reason] += 1
        self.first.setdefault(reason, f"{path} line {line_number:,}")

    def warn(self) -> None:
        """Warn of the faulty lines, once for each reason."""
        for reason, line in self.first.items():
            count, fault = self.counts[reason], reason.replace("_", " ")
            lines = "1 line is" if count == 1 else f"{count:,} lines are"
            # Once, because each evaluation reads the same files again.
            warn_once(f"{lines} left out as {fault}, the first of them {line}")


@dataclass(frozen=True)
class Shard:
    """A file of pairs, two files with a side each, or a file of documents."""

    files: tuple[Path, ...]
    """The file, or the file of the sources and the file of the targets."""
    fields: tuple[str, ...]
    """The names of the fields or columns with the sides, or with the text of a document. The name
    `a.b` selects the field `b` of the field `a`."""

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
            texts = self.texts(faults)
            if len(self.fields) == 1:
                texts = (("", text) for (text,) in texts if text.strip())
            yield from chunks((source, target) for source, target in texts)
        except (OSError, *DAMAGE) as error:
            raise UserError(
                f"shard {self} cannot be read: {in_one_line(error)}; restore a whole copy, or "
                "take it out of the pattern"
            ) from error

    def texts(self, faults: Faults) -> Iterator[Sides]:
        """Yield the sides of each pair, or the text of each document."""
        if len(self.files) == 2:
            return self._parallel_texts(faults)
        [path] = self.files
        read = _read_json_lines if format_of(path) in _JSON_LINES else _read_text
        return read(path, self.fields, faults)

    def _parallel_texts(self, faults: Faults) -> Iterator[Sides]:
        sides = [_lines(path, faults) for path in self.files]
        for number, pair in enumerate(zip_longest(*sides, fillvalue=_END), start=1):
            if _END in pair:
                short_file, long_file = self.files if pair[0] is _END else self.files[::-1]
                raise UserError(
                    f"{short_file} has {number - 1:,} lines, and {long_file} has more; line n of "
                    "one must translate line n of the other"
                )
            if None not in pair:  # a faulty line drops both sides
                yield pair


_END: Any = object()


def format_of(path: Path) -> str:
    """Return the suffix that names a file's format, such as `.tsv` for `7.tsv.gz`."""
    return Path(path.stem).suffix if path.suffix in (".gz", ".zst") else path.suffix


def _lines(path: Path, faults: Faults) -> Iterator[str | None]:
    """Yield the lines of a text file.

    A line that is not UTF-8 gives None and an entry in `faults`.
    """
    line_number = 0
    with open_text(path) as file:
        for block in blocks_of(file, path):
            block = block if line_number else check_first_block(path, block)
            for line in block.removesuffix(b"\n").split(b"\n"):
                line_number += 1
                try:
                    yield line.decode().removesuffix("\r")
                except UnicodeDecodeError:
                    faults.add("not_utf8", path, line_number)
                    yield None


def _read_text(path: Path, fields: Sequence[str], faults: Faults) -> Iterator[Sides]:
    """Yield the lines of a file of documents as 1-tuples, or the columns of a file of pairs."""
    for line_number, line in enumerate(_lines(path, faults), start=1):
        if line is None or (len(fields) > 1 and not line):
            continue
        sides = tuple(line.split("\t")) if len(fields) > 1 else (line,)
        if len(sides) == len(fields):
            yield sides
        else:  # with more columns, the reader cannot tell which two are the sides
            reason = "without_a_side" if len(sides) < len(fields) else "having_too_many_columns"
            faults.add(reason, path, line_number)


def _read_json_lines(path: Path, fields: Sequence[str], faults: Faults) -> Iterator[Sides]:
    for line_number, line in enumerate(_lines(path, faults), start=1):
        if line is None or not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            faults.add("not_json", path, line_number)
            continue
        yield from texts_of([value_of(record, name) for name in fields], path, line_number, faults)


def fields_of(config: DataConfig, default: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of the fields of a line: `config.fields`, or `default` if it is empty."""
    if len(default) == 1 and config.documents == "paragraphs":
        raise UserError(
            "data.documents='paragraphs' is not for shards, one file or data from Python: a line "
            "or row is a document"
        )
    fields = config.fields or default
    if len(fields) != len(default):
        raise UserError(
            f"data.fields={' '.join(fields)} names {len(fields)}, but a line holds "
            f"{'a source and a target' if len(default) > 1 else 'one text'}; name {len(default)}"
        )
    return fields


def value_of(record: object, name: str) -> object:
    """Return a field, such as `a.b`, of a record of JSON or Parquet; None if it is missing."""
    for part in name.split("."):
        if isinstance(record, list) and record and isinstance(record[0], tuple):
            record = dict(record)  # a Parquet map is a list of key-value pairs
        record = record.get(part) if isinstance(record, dict) else None
    return record


def texts_of(values: list[Any], path: Path, line_number: int, faults: Faults) -> Iterator[Sides]:
    """Yield the fields of a line as one tuple of strings, or count the line as faulty."""
    try:
        texts = [value.decode() if isinstance(value, bytes) else value for value in values]
        "".join(texts).encode()
    except TypeError:
        faults.add("without_a_side" if None in values else "not_text", path, line_number)
    except UnicodeError:  # JSON may hold half of a surrogate pair, such as \ud83d
        faults.add("not_utf8", path, line_number)
    else:
        yield tuple(" ".join(text.splitlines()) for text in texts)
