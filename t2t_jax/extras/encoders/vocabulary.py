"""A vocabulary of labels for targets, combined with a vocabulary of subwords for sources."""

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from msgspec import Meta

from t2t_jax.data.vocabulary import Rows, Vocabulary, parse_content, parse_vocabulary
from t2t_jax.system.records import schema

_SCHEMA = schema({"kind": str, "labels": Annotated[list[str], Meta(min_length=1)], "source": bytes})


class LabelledVocabulary(Vocabulary):
    """A vocabulary whose target ids are labels and whose source ids are subwords."""

    def __init__(self, serialized: bytes) -> None:
        """Read a vocabulary that `labelled_vocabulary` serialized.

        Raises:
          ValueError: the bytes are damaged.
        """
        super().__init__(serialized)
        content = parse_content(serialized, _SCHEMA)
        self.labels: tuple[str, ...] = tuple(content["labels"])
        """The label names, by id."""
        self.source: Any = parse_vocabulary(content["source"]) if content["source"] else None
        """The vocabulary of the source text; None for images."""

    def __len__(self) -> int:
        """Return the number of labels."""
        return len(self.labels)

    @property
    def source_size(self) -> int:
        """Return the number of source ids, or 0 for images."""
        return self.source.source_size if self.source else 0

    @property
    def unk_id(self) -> int:
        """Return the id of unknown source text."""
        return int(self.source.unk_id)

    @property
    def protected_tokens(self) -> frozenset[str]:
        """Return the source strings that always are one token."""
        return self.source.protected_tokens if self.source else frozenset()

    @property
    def files(self) -> Mapping[str, bytes]:
        """Return the files of the source vocabulary, and labels.txt with one label per line."""
        labels = {"labels.txt": "".join(f"{label}\n" for label in self.labels).encode()}
        return {**self.source.files, **labels} if self.source else labels

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the subword ids of each source, then `EOS_ID`."""
        return list(self.source.encode(lines))

    def pieces(self, ids: Rows) -> list[list[str]]:
        """Return each source id's subword, row by row."""
        return list(self.source.pieces(ids))

    def target_pieces(self, ids: Rows) -> list[list[str]]:
        """Return the label name of each label id, row by row."""
        return [[self.labels[label_id] for label_id in row] for row in ids]

    def spelling(self, token: int) -> bytes:
        """Return the name of a label id as bytes, after a space."""
        return f" {self.labels[token]}".encode()

    def decode(self, ids: Rows) -> list[str]:
        """Join the label names of each row with spaces."""
        return [" ".join(row) for row in self.target_pieces(ids)]


def labelled_vocabulary(source: Vocabulary | None, labels: Sequence[str]) -> LabelledVocabulary:
    """Combine the vocabulary of the source text (None for images) with label names."""
    content = {
        "kind": "labelled",
        "labels": list(labels),
        "source": base64.b64encode(b"" if source is None else source.serialized).decode(),
    }
    return LabelledVocabulary(json.dumps(content, ensure_ascii=False).encode())
