"""Corpora of a Python program: lists, datasets of Hugging Face, sources of grain.

Data are a mapping of splits to sequences, or one sequence. A row of a sequence is a (source,
target) pair, a text of one language, or a dict, of which `data.fields` names the sides::

    [("A cat.", "Eine Katze."), ...]
    [{"translation": {"en": "A cat.", "de": "Eine Katze."}}, ...]

The fingerprint of a split is the hash of its rows, which text files with the same lines have, too.
An attribute or method `fingerprint`, or the `_fingerprint` of Hugging Face, replaces this hash,
together with a sample of the rows. A resumed run then does not read the sequence again.
"""

import hashlib
import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from operator import attrgetter
from typing import Any

from t2t_jax.config import DataConfig
from t2t_jax.data.pair_files import fields_of, value_of
from t2t_jax.data.splits import Chunk, Split, chunks, digest
from t2t_jax.errors import UserError, quote

_ALIASES = {"validation": "dev", "valid": "dev", "val": "dev"}
_SURROGATE = re.compile("[\ud800-\udfff]")  # UTF-8 has none
_SAMPLE = 16
_MOST_ROWS = 1 << 40  # an endless source of grain has 2**63 - 1


def own_splits(data: object, config: DataConfig, split: str) -> dict[str, Split]:
    """Return the splits of data from Python by name.

    Args:
      split: the name of the split if `data` is one sequence.
    """
    facts, splits = config.facts, dict[str, Split]()
    languages = config.source_language, config.target_language
    sides = ("text", "label") if facts.predicts_labels else ("text",)
    fields = fields_of(config, languages if facts.writes_text else sides)
    for key, sequence in (data if isinstance(data, Mapping) else {split: data}).items():
        name = _ALIASES.get(key, key)
        if not isinstance(name, str) or name in splits:
            raise UserError(f"data has the split {quote(key)} twice or not as a str; rename it")
        rows = _Rows(name, sequence, fields, facts.predicts_labels)
        splits[name] = Split.of(attrgetter("fingerprint"), _Rows.read, rows)
    if not splits:
        raise UserError("data is an empty dict; give a sequence of rows as its train split")
    return splits


@dataclass
class _Rows:
    """The rows of a split, as the program gives them."""

    split: str
    sequence: Any
    fields: tuple[str, ...]
    """The fields of a row that is a dict: two sides, or one text."""
    has_labels: bool
    """Whether targets are labels, which may be whole numbers."""
    content: str = ""
    """The hash of the rows when they were first read."""

    @cached_property
    def fingerprint(self) -> str:
        """Check the sequence, and return its own fingerprint or the hash of its rows."""
        rows = self.sequence
        is_indexed = hasattr(rows, "__len__") and hasattr(rows, "__getitem__")
        size = len(rows) if is_indexed and not isinstance(rows, str | bytes | Mapping) else -1
        if not 0 < size < _MOST_ROWS:
            number = "an unknown number of" if size < 0 else f"{size:,}"
            raise UserError(
                f"the {self.split} split of data is a {type(rows).__name__} of {number} rows; give "
                "a sequence with rows, an end, len() and [], such as a list"
            )
        identity = getattr(rows, "fingerprint", getattr(rows, "_fingerprint", None))
        identity = identity() if callable(identity) else identity
        if isinstance(identity, str):
            # A sample shows changes of the code or the fields that an old fingerprint does not.
            sample = [self._texts(n, rows[n]) for n in range(0, size, -(-size // _SAMPLE))]
            return digest("python", repr((identity, size, sample)).encode().hex())
        deque(self.read(), maxlen=0)
        return self.content

    def read(self) -> Iterator[Chunk]:
        """Yield the pairs in chunks, and refuse a sequence whose rows change."""
        hashes = [hashlib.sha256() for _ in self.fields]
        for chunk in chunks(self._pairs()):
            for side, lines in zip(hashes, chunk[-len(hashes) :], strict=True):
                side.update("\n".join([*lines, ""]).encode())
            yield chunk
        # The hash of text files with the same lines.
        kind = () if len(hashes) == 2 else ("documents", "lines")
        content = digest(*kind, *(side.hexdigest() for side in hashes))
        if self.content not in ("", content):
            raise UserError(
                f"the {self.split} split of data has other rows when it is read again; give a "
                "sequence whose rows stay the same"
            )
        self.content = content

    def _pairs(self) -> Iterator[tuple[str, str]]:
        """Yield checked pairs; documents have empty sources, and blank documents are left out."""
        rows = self.sequence
        if not hasattr(rows, "__iter__"):  # its [] may raise no IndexError at the end
            rows = map(rows.__getitem__, range(len(rows)))
        for number, row in enumerate(rows):
            texts = self._texts(number, row)
            if len(texts) == 2 or texts[0].strip():
                yield texts[0] if len(texts) == 2 else "", texts[-1]

    def _texts(self, number: int, row: Any) -> list[str]:
        """Return the two sides of a row, or its text, each in one line."""
        if isinstance(row, tuple | list):
            values = list(row)
        elif isinstance(row, str) or not isinstance(row, Mapping):
            values = [row]
        else:
            nested = row.get("translation")  # as in datasets of Hugging Face
            if isinstance(nested, Mapping) and self.fields[0] in nested:
                row = nested
            values = [value_of(dict(row), name) for name in self.fields]
        if len(values) != len(self.fields):
            raise self._error(number, row, f"has {len(values)} values")
        if self.has_labels and isinstance(values[-1], Integral):
            values[-1] = str(values[-1])
        for index, value in enumerate(values):
            if not isinstance(value, str) or (not value.isascii() and _SURROGATE.search(value)):
                raise self._error(number, row, f"has no text as {self.fields[index]}")
            if "\n" in value:
                values[index] = value.replace("\r\n", "\n").strip("\n").replace("\n", " ")
        return values

    def _error(self, number: int, row: Any, fault: str) -> UserError:
        form = f"a pair of str ({', '.join(self.fields)})" if len(self.fields) == 2 else "a str"
        return UserError(
            f"row {number:,} (from 0) of the {self.split} split of data {fault}: it is "
            f"{quote(row)}; give {form}, or a dict with {' and '.join(self.fields)} (data.fields)"
        )
