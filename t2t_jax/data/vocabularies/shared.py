"""A vocabulary of one SentencePiece model for sources and targets, as in section 5.1."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from t2t_jax.batch import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from t2t_jax.data.vocabulary import Rows, Vocabulary, before_end

_FEW_ROWS = 64


class SharedVocabulary(Vocabulary):
    """A SentencePiece model whose ids 0 to 3 are padding, end, beginning and unknown."""

    def __init__(self, serialized: bytes) -> None:
        """Load a serialized SentencePiece model.

        Raises:
          ValueError: the bytes are not a model, or it has other special ids.
        """
        super().__init__(serialized)
        try:
            self._processor = processor = processor_of(serialized)
        except RuntimeError as error:
            raise ValueError("not a SentencePiece model") from error
        ids = processor.pad_id(), processor.eos_id(), processor.bos_id(), processor.unk_id()
        if ids != (PAD_ID, EOS_ID, BOS_ID, UNK_ID):
            raise ValueError(f"a SentencePiece model with pad, eos, bos, unk = {ids}, not 0 to 3")

    def __len__(self) -> int:
        """Return the number of ids."""
        return self._processor.get_piece_size()

    @property
    def unk_id(self) -> int:
        """Return the id of unknown text."""
        return UNK_ID

    @property
    def protected_tokens(self) -> frozenset[str]:
        """Return the strings that always are one token."""
        pieces = sentencepiece_model_pb2.ModelProto.FromString(self.serialized).pieces
        return frozenset(piece.piece for piece in pieces if piece.type == piece.USER_DEFINED)

    @property
    def files(self) -> Mapping[str, bytes]:
        """Return the SentencePiece model as `vocabulary.model`."""
        return {"vocabulary.model": self.serialized}

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the subword ids of each line, then `EOS_ID`."""
        # The model itself trims and collapses white space.
        return in_threads(partial(self._processor.encode, add_eos=True), lines)

    def pieces(self, ids: Rows) -> list[list[str]]:
        """Return the subword of each id, row by row."""
        return [self._processor.id_to_piece(list(map(int, row))) for row in ids]

    def spelling(self, token: int) -> bytes:
        """Return the bytes that an id adds to a text."""
        return spelling_of(self._processor, token)

    def decode(self, ids: Rows) -> list[str]:
        """Return the text of each row of ids, up to `EOS_ID`."""
        return in_threads(self._processor.decode, before_end(ids, dropped_ids=(PAD_ID, BOS_ID)))


def processor_of(model: bytes) -> sentencepiece.SentencePieceProcessor:
    """Load a serialized SentencePiece model.

    Raises:
      RuntimeError: the bytes are not a model.
    """
    processor = sentencepiece.SentencePieceProcessor()
    processor.LoadFromSerializedProto(model)
    return processor


def in_threads(function: Callable[[Any], Any], rows: Sequence[object]) -> list[Any]:
    """Apply a SentencePiece function to each row: to few rows one by one, to many as one list."""
    # A list starts a thread for each core, which takes longer than encoding a few rows, and much
    # longer on busy cores.
    return [*map(function, rows)] if len(rows) < _FEW_ROWS else function(list(rows))


def spelling_of(processor: sentencepiece.SentencePieceProcessor, token: int) -> bytes:
    """Return the bytes that a SentencePiece id adds to a text, with the space before a word."""
    if processor.is_control(token):
        return b""
    if processor.is_unknown(token):
        return str(processor.decode([token])).encode()
    piece = str(processor.id_to_piece(token))
    if processor.is_byte(token):
        byte = bytes([int(piece[1:-1], 16)])
        return b" " if byte.isspace() else byte
    return piece.replace("\u2581", " ").encode()
