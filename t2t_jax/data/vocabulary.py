"""The interface of every kind of vocabulary, and the table of the kinds.

Padding is id 0 and the end of a sentence id 1 in every vocabulary: arrays, masks and searches rest
on that. A vocabulary from another program is numbered anew when it is imported, and so are the rows
of the model's matrices.
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
"""Rows of ids, as sequences or as one array."""

_MAX_BYTES = 1 << 30


class Vocabulary(ABC):
    """A map from text to subword ids and back; the ids of sources and of targets may differ."""

    def __init__(self, serialized: bytes) -> None:
        """Keep the bytes that stand for the vocabulary."""
        self._serialized = serialized

    @property
    def serialized(self) -> bytes:
        """Return the bytes that `save` writes and `parse_vocabulary` reads."""
        return self._serialized

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the vocabulary as its bytes."""
        return type(self), (self.serialized,)

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of ids that a token of a target can have."""

    @property
    def source_size(self) -> int:
        """Return the number of ids that a token of a source can have."""
        return len(self)

    @property
    @abstractmethod
    def unk_id(self) -> int:
        """Return the id of text that the vocabulary cannot spell."""

    @property
    def protected_tokens(self) -> frozenset[str]:
        """Return the strings that are neither split nor joined with others."""
        return frozenset()

    @property
    def source_frame(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the ids before the subwords of a source that is not empty, and those after."""
        return (), (EOS_ID,)

    @property
    def target_begin(self) -> tuple[int, ...]:
        """Return the ids before the subwords of a target that is not empty, as its language's."""
        return ()

    @property
    def marked_languages(self) -> tuple[str, ...]:
        """Return the codes of the languages that the vocabulary marks texts with, if it does."""
        return ()

    @property
    def speller(self) -> "Vocabulary":
        """Return the vocabulary, one for all that `between` gives, that spells ids as they do.

        Callers can cache by it what they compute from the spelling of all ids.
        """
        return self

    def between(self, source: str, target: str) -> "Vocabulary":
        """Return the vocabulary for texts of two of its languages.

        Args:
          source: the language of sources: its code, or the part of that before an underscore.
          target: the language of targets, in the same way.
        """
        raise UserError(
            f"the model translates one pair of languages, and has no mark for {source} or "
            f"{target}; leave the languages out, or use a model of several, as of m2m100"
        )

    @property
    @abstractmethod
    def files(self) -> Mapping[str, bytes]:
        """Return the files, by name, from which other programs split text as this one does."""

    @abstractmethod
    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the subword ids of each source, then `EOS_ID`; an empty line is `[EOS_ID]`."""

    def encode_targets(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the subword ids of each target, then `EOS_ID`; an empty line is `[EOS_ID]`."""
        return self.encode(lines)

    @abstractmethod
    def pieces(self, ids: Rows) -> list[list[str]]:
        """Return the subword that each id of a source stands for, row by row."""

    def target_pieces(self, ids: Rows) -> list[list[str]]:
        """Return the subword that each id of a target stands for, row by row."""
        return self.pieces(ids)

    @abstractmethod
    def spelling(self, token: int) -> bytes:
        """Return the bytes that a target's id adds to a text, with spaces; special ids add none.

        White space that is spelt as a byte counts as a space.
        """

    def source_spelling(self, token: int) -> bytes:
        """Return the bytes that an id of a source stands for; see `spelling`."""
        return self.spelling(token)

    @abstractmethod
    def decode(self, ids: Rows) -> list[str]:
        """Return the text of each row of target ids up to `EOS_ID`, without special ids."""

    @property
    def fingerprint(self) -> str:
        """Return a hash of the serialized vocabulary."""
        return hashlib.sha256(self.serialized).hexdigest()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the vocabulary to a file, which a reader finds whole or not at all."""
        atomic_file.write_whole(path, self.serialized)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> "Vocabulary":
        """Read a vocabulary that `save` wrote.

        Raises:
          UserError: the file is missing or damaged, or a library is missing that it needs.
        """
        there = bucket.as_path(path)
        regular_file.check_regular(there)
        try:
            if there.stat().st_size > _MAX_BYTES:
                raise ValueError("no vocabulary, but far too large")
            return parse_vocabulary(there.read_bytes())
        except UserError as error:
            raise UserError(f"vocabulary {path}: {error}") from error
        except OSError as error:
            raise UserError(f"vocabulary {path} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise UserError(f"vocabulary {path} is {error}") from error


_OF_IMPORTS = "t2t_jax.extras.interchange.vocabularies"
# Known without the extras too, so that an error can name them.
_KINDS = {
    "paired": f"{_OF_IMPORTS}.paired:PairedVocabulary",
    "labelled": "t2t_jax.extras.encoders.vocabulary:LabelledVocabulary",
    "pretrained": f"{_OF_IMPORTS}.pretrained:PretrainedVocabulary",
    "framed": f"{_OF_IMPORTS}.framed:FramedVocabulary",
}


def parse_vocabulary(serialized: bytes) -> Vocabulary:
    """Return the vocabulary of the bytes that `Vocabulary.serialized` gives.

    A SentencePiece model stands for itself. Any other vocabulary is an object of JSON, whose field
    `kind` names its class.

    Raises:
      ValueError: the bytes are of no vocabulary; the message says what they are.
      UserError: an extra or a library is missing that the vocabulary needs, or version 0.3 removed
        its kind.
    """
    place = "t2t_jax.data.vocabularies.shared:SharedVocabulary"
    if serialized.startswith(b"{"):
        name, *_ = serialized[:40].partition(b'"kind": "')[2].partition(b'"')
        kind = name.decode("ascii", "replace")
        if kind == "moses":
            raise removed_feature("a vocabulary of the kind moses", "Moses vocabularies")
        if kind not in _KINDS:
            raise ValueError("of a kind that this version of t2t_jax does not know")
        place = _KINDS[kind]
    return load_named(place)(serialized)


def parsed(serialized: bytes, schema: records.Schema) -> records.Record:
    """Return the JSON object of a vocabulary, with base64 decoded to bytes.

    Raises:
      ValueError: the bytes do not fit the schema.
    """
    try:
        return msgspec.convert(records.parse_object(serialized, schema), schema)
    except ValueError as error:
        raise ValueError(f"damaged: {error}") from error


def before_end(ids: Rows, without: Sequence[int] = (PAD_ID,)) -> list[list[int]]:
    """Return rows of ids up to their first `EOS_ID`, without some special ids."""
    rows = (takewhile(lambda token: token != EOS_ID, map(int, row)) for row in ids)
    return [[token for token in row if token not in without] for row in rows]
