"""The interface of all vocabularies, and the table of their kinds.

Padding is id 0 and the end of sentence id 1 in every vocabulary, as arrays, masks and beam search
assume. The import of another program's vocabulary renumbers its ids and the model's embeddings.
"""

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import takewhile

import msgspec
import numpy as np
from jaxtyping import Integer

from t2t_jax.batch import EOS_ID, PAD_ID
from t2t_jax.errors import UserError
from t2t_jax.plugins import load_named
from t2t_jax.system import atomic_file, bucket, records, regular_file
from t2t_jax.version import removed_feature

Rows = Sequence[Sequence[int]] | Integer[np.ndarray, "rows length"]
"""Rows of ids, as lists or as one array."""

_MAX_BYTES = 1 << 30


class Vocabulary(ABC):
    """A map from text to subword ids and back; sources and targets may have different ids."""

    def __init__(self, serialized: bytes) -> None:
        """Store the serialized vocabulary."""
        self._serialized = serialized

    @property
    def serialized(self) -> bytes:
        """Return the bytes that `save` writes and `parse_vocabulary` reads."""
        return self._serialized

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the serialized bytes."""
        return type(self), (self.serialized,)

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of target ids."""

    @property
    def source_size(self) -> int:
        """Return the number of source ids."""
        return len(self)

    @property
    @abstractmethod
    def unk_id(self) -> int:
        """Return the id of text that the vocabulary cannot spell."""

    @property
    def protected_tokens(self) -> frozenset[str]:
        """Return the strings that always are one token."""
        return frozenset()

    @property
    def source_frame(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the ids before and after the subwords of a source that is not empty."""
        return (), (EOS_ID,)

    @property
    def target_begin(self) -> tuple[int, ...]:
        """Return the ids before the subwords of a non-empty target, such as a language tag."""
        return ()

    @property
    def marked_languages(self) -> tuple[str, ...]:
        """Return the codes of the languages that have tags in the vocabulary."""
        return ()

    @property
    def speller(self) -> "Vocabulary":
        """Return the object, shared by all language pairs, by which callers cache spellings."""
        return self

    def between(self, source: str, target: str) -> "Vocabulary":
        """Return the vocabulary for a pair of languages; the part before an underscore suffices."""
        raise UserError(
            f"the model translates one pair of languages, and has no tag for {source} or "
            f"{target}; leave the languages out, or use a multilingual model, such as m2m100"
        )

    @property
    @abstractmethod
    def files(self) -> Mapping[str, bytes]:
        """Return the files, by name, with which other programs tokenize text identically."""

    @abstractmethod
    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the subword ids of each source, then `EOS_ID`; an empty line is `[EOS_ID]`."""

    def encode_targets(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the subword ids of each target, like `encode`."""
        return self.encode(lines)

    @abstractmethod
    def pieces(self, ids: Rows) -> list[list[str]]:
        """Return the subword of each source id, row by row."""

    def target_pieces(self, ids: Rows) -> list[list[str]]:
        """Return the subword of each target id, row by row."""
        return self.pieces(ids)

    @abstractmethod
    def spelling(self, token: int) -> bytes:
        """Return the bytes that a target id adds to a text, with spaces; special ids add none.

        A byte of white space becomes a space.
        """

    def source_spelling(self, token: int) -> bytes:
        """Return the bytes that a source id adds to a text; see `spelling`."""
        return self.spelling(token)

    @abstractmethod
    def decode(self, ids: Rows) -> list[str]:
        """Return the text of each row of target ids, up to `EOS_ID`."""

    @property
    def fingerprint(self) -> str:
        """Return a hash of the serialized vocabulary."""
        return hashlib.sha256(self.serialized).hexdigest()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the vocabulary to a file atomically."""
        atomic_file.write_whole(path, self.serialized)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> "Vocabulary":
        """Read a vocabulary that `save` wrote.

        Raises:
          UserError: the file, or a library that it needs, is missing or damaged.
        """
        file = bucket.as_path(path)
        regular_file.check_regular(file)
        try:
            if file.stat().st_size > _MAX_BYTES:
                raise ValueError("too large for a vocabulary")
            return parse_vocabulary(file.read_bytes())
        except UserError as error:
            raise UserError(f"vocabulary {path}: {error}") from error
        except OSError as error:
            raise UserError(f"vocabulary {path} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise UserError(f"vocabulary {path} is {error}") from error


_IMPORTED = "t2t_jax.extras.interchange.vocabularies"
# Known without the extras too, so that an error can name them.
_KINDS = {
    "paired": f"{_IMPORTED}.paired:PairedVocabulary",
    "labelled": "t2t_jax.extras.encoders.vocabulary:LabelledVocabulary",
    "pretrained": f"{_IMPORTED}.pretrained:PretrainedVocabulary",
    "framed": f"{_IMPORTED}.framed:FramedVocabulary",
}


def parse_vocabulary(serialized: bytes) -> Vocabulary:
    """Parse the bytes of `Vocabulary.serialized`: a SentencePiece model, or a JSON object.

    Raises:
      ValueError: the bytes are not a vocabulary; the message completes "the vocabulary is".
      UserError: an extra or a library that the vocabulary needs is missing, or version 0.3 removed
        its kind.
    """
    path = "t2t_jax.data.vocabularies.shared:SharedVocabulary"
    if serialized.startswith(b"{"):
        # The field `kind` comes first, so large vocabularies are parsed only by their class.
        name, *_ = serialized[:40].partition(b'"kind": "')[2].partition(b'"')
        kind = name.decode("ascii", "replace")
        if kind == "moses":
            raise removed_feature("a vocabulary of the kind moses", "Moses vocabularies")
        if kind not in _KINDS:
            raise ValueError("of a kind that this version of t2t_jax does not know")
        path = _KINDS[kind]
    return load_named(path)(serialized)


def parse_content(serialized: bytes, schema: records.Schema) -> records.Record:
    """Parse the JSON object of a vocabulary, and decode base64 to bytes.

    Raises:
      ValueError: the bytes do not fit the schema.
    """
    try:
        return msgspec.convert(records.parse_object(serialized, schema), schema)
    except ValueError as error:
        raise ValueError(f"damaged: {error}") from error


def before_end(ids: Rows, dropped_ids: Sequence[int] = (PAD_ID,)) -> list[list[int]]:
    """Cut rows of ids before their first `EOS_ID`, and drop the ids in `dropped_ids`."""
    rows = (takewhile(lambda token: token != EOS_ID, map(int, row)) for row in ids)
    return [[token for token in row if token not in dropped_ids] for row in rows]
