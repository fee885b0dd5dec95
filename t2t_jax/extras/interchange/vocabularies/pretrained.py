"""Vocabularies of Hugging Face's library tokenizers, as in GPT-2 and NLLB.

The file tokenizer.json defines how text is split. A table maps our ids to the ids in the file.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from t2t_jax.batch import BOS_ID, EOS_ID, PAD_ID
from t2t_jax.data.vocabulary import Rows, Vocabulary, before_end, parse_content
from t2t_jax.errors import in_one_line, needs_extra
from t2t_jax.system.records import schema

_SCHEMA = schema({"kind": str, "tokenizer": str, "order": list[int], "unknown": int})
_NONE = -1
_SPACE = "\u2581"  # SentencePiece writes a space as this character
# Visible Latin-1 characters are written unchanged. The other bytes are written as the
# characters from U+0100 on.
_VISIBLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_HIDDEN = [byte for byte in range(256) if byte not in _VISIBLE]
_BYTES = {chr(byte): byte for byte in _VISIBLE}
_BYTES |= {chr(256 + n): byte for n, byte in enumerate(_HIDDEN)}
"""The byte of each character of byte-level BPE (Radford et al. 2019, section 2.2)."""
_UNKNOWN_TEXT = "\u0378 a \U000e0fff"


class PretrainedVocabulary(Vocabulary):
    """A tokenizer of Hugging Face's library tokenizers, whose entries get new ids."""

    def __init__(self, serialized: bytes) -> None:
        """Parse the bytes of a vocabulary that `pretrained_vocabulary` made.

        Raises:
          ValueError: the bytes are damaged.
          UserError: the library tokenizers is missing.
        """
        super().__init__(serialized)
        content = parse_content(serialized, _SCHEMA)
        self._definition: str = content["tokenizer"]
        # Whether each character of an entry stands for a byte, as in GPT-2.
        self._spells_bytes = '"ByteLevel"' in self._definition
        self._tokenizer = _tokenizer(self._definition)
        self.order: list[int] = content["order"]
        """The file's id of each entry; -1 for an entry that the file lacks."""
        self._unknown: int = content["unknown"]
        tokenizer_size = self._tokenizer.get_vocab_size()
        if not all(_NONE <= file_id < tokenizer_size for file_id in (*self.order, self._unknown)):
            raise ValueError("damaged: it has entries that its tokenizer does not have")
        self._ids = {file_id: n for n, file_id in enumerate(self.order) if file_id != _NONE}

    def __len__(self) -> int:
        """Return the number of ids."""
        return len(self.order)

    @property
    def unk_id(self) -> int:
        """Return the id of unknown text."""
        return self._unknown

    @property
    def files(self) -> Mapping[str, bytes]:
        """Return the file tokenizer.json, by its name."""
        return {"tokenizer.json": self._definition.encode()}

    @cached_property
    def protected_tokens(self) -> frozenset[str]:
        """Return the entries that are never split, such as <mask>."""
        added = self._tokenizer.get_added_tokens_decoder().values()
        return frozenset(token.content for token in added)

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the subword ids of each line, then `EOS_ID`."""
        rows = self._tokenizer.encode_batch(list(lines), add_special_tokens=False)
        return [[*(self._ids.get(n, self._unknown) for n in row.ids), EOS_ID] for row in rows]

    def pieces(self, ids: Rows) -> list[list[str]]:
        """Return the subword of each id, row by row."""
        return [[self._piece(int(token)) for token in row] for row in ids]

    def spelling(self, token: int) -> bytes:
        """Return the bytes that an id spells."""
        piece = self._piece(token)
        if token in (PAD_ID, EOS_ID, BOS_ID) or piece in self.protected_tokens:
            return b""
        if self._spells_bytes:
            return bytes(_BYTES[char] for char in piece)
        return piece.replace(_SPACE, " ").encode()

    def decode(self, ids: Rows) -> list[str]:
        """Return the text of each row of ids."""
        rows = before_end(ids, dropped_ids=(PAD_ID, BOS_ID))
        file_rows = [[self.order[token] for token in row] for row in rows]
        texts: list[str] = self._tokenizer.decode_batch(file_rows, skip_special_tokens=True)
        return texts

    def _piece(self, token: int) -> str:
        number = self.order[token]
        return "<pad>" if number == _NONE else str(self._tokenizer.id_to_token(number))


def _tokenizer(definition: str) -> Any:
    with needs_extra("interchange", "a vocabulary of transformers"):
        from tokenizers import Tokenizer
    try:
        tokenizer = Tokenizer.from_str(definition)
        # The file may set truncation and padding, but the caller needs every token of a line.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        if hasattr(tokenizer.model, "dropout"):  # BPE-dropout (Provilkov et al. 2020) is random
            tokenizer.model.dropout = None
        tokenizer.encode(_UNKNOWN_TEXT)  # raises if the file lacks its own unknown token
    except BaseException as error:  # the library raises Exception itself, and panics of Rust
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = in_one_line(error)
        raise ValueError(f"no tokenizer of the library tokenizers: {reason:.200}") from error
    return tokenizer


def pretrained_vocabulary(
    definition: str, order: Sequence[int], unknown: int
) -> PretrainedVocabulary:
    """Make a vocabulary from a tokenizer and the order of its entries.

    Args:
      definition: the contents of tokenizer.json.
      order: the tokenizer's id of each entry; -1 for an entry that it lacks.
      unknown: the id of text that cannot be spelled.

    Raises:
      ValueError: the arguments do not fit together.
      UserError: the library tokenizers is missing.
    """
    content = {
        "kind": "pretrained",
        "tokenizer": definition,
        "order": list(map(int, order)),
        "unknown": int(unknown),
    }
    return PretrainedVocabulary(json.dumps(content, ensure_ascii=False).encode())
