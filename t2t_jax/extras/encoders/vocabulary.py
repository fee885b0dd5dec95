"""A vocabulary with labels for targets; sources are subwords of another vocabulary, or images."""

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from msgspec import Meta

from t2t_jax.data.vocabulary import Rows, Vocabulary, parse_vocabulary, parsed
from t2t_jax.system.records import schema

_SCHEMA = schema({"kind": str, "labels": Annotated[list[str], Meta(min_length=1)], "source": bytes})


class LabelledVocabulary(Vocabulary):
    """Labels, numbered from 0, and the vocabulary of the text that is labelled."""

    def __init__(self, serialized: bytes) -> None:
        """Read the vocabulary as `labelled_vocabulary` has written it.

        Raises:
          ValueError: the bytes are damaged; the message says in what way.
        """
        super().__init__(serialized)
        content = parsed(serialized, _SCHEMA)
        self.labels: tuple[str, ...] = tuple(content["labels"])
        """The name of each label."""
        self.source: Any = parse_vocabulary(content["source"]) if content["source"] else None
        """The vocabulary of the text; None if images are labelled."""

    def __len__(self) -> int:
        """Return the number of labels."""
        return len(self.labels)

    @property
    def source_size(self) -> int:
        """Return the number of ids of sources; 0 if they are images."""
        return self.source.source_size if self.source else 0

    @property
    def unk_id(self) -> int:
        """Return the id of source text that the vocabulary cannot spell."""
        return int(self.source.unk_id)

    @property
    def protected_tokens(self) -> frozenset[str]:
        """See `Vocabulary.protected_tokens`."""
        return self.source.protected_tokens if self.source else frozenset()

    @property
    def files(self) -> Mapping[str, bytes]:
        """Return the files of the sources' vocabulary, and labels.txt with one label a line."""
        labels = {"labels.txt": "".join(f"{label}\n" for label in self.labels).encode()}
        return {**self.source.files, **labels} if self.source else labels

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """See `Vocabulary.encode`."""
        return list(self.source.encode(lines))

    def pieces(self, ids: Rows) -> list[list[str]]:
        """See `Vocabulary.pieces`."""
        return list(self.source.pieces(ids))

    def target_pieces(self, ids: Rows) -> list[list[str]]:
        """Return the label that each number stands for, row by row."""
        return [[self.labels[number] for number in row] for row in ids]

    def spelling(self, token: int) -> bytes:
        """Return the label of a number, with a space before it."""
        return f" {self.labels[token]}".encode()

    def decode(self, ids: Rows) -> list[str]:
        """Return the labels of each row, with a space between them."""
        return [" ".join(row) for row in self.target_pieces(ids)]


def labelled_vocabulary(source: Vocabulary | None, labels: Sequence[str]) -> LabelledVocabulary:
    """Make a vocabulary from that of the text, or None for images, and the name of each label."""
    content = {
        "kind": "labelled",
        "labels": list(labels),
        "source": base64.b64encode(b"" if source is None else source.serialized).decode(),
    }
    return LabelledVocabulary(json.dumps(content, ensure_ascii=False).encode())
