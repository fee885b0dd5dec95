"""A SentencePiece model for sources and one for targets, with separate ids, as in Marian.

A source may begin with a tag for the target language, such as `>>fra<<`: one token, if the source
vocabulary has it.
"""

import base64
import json
import re
from collections.abc import Mapping, Sequence
from functools import partial

from t2t_jax.batch import EOS_ID, PAD_ID
from t2t_jax.data.vocabularies.shared import in_threads, processor_of, spelling_of
from t2t_jax.data.vocabulary import Rows, Vocabulary, before_end, parse_content
from t2t_jax.system.records import schema

_SCHEMA = schema(
    {
        "kind": str,
        "source_model": bytes,
        "target_model": bytes,
        "source_pieces": list[str],
        "target_pieces": list[str],
    }
)
_SIDES = "source", "target"
_SPECIAL, _UNKNOWN = ["<pad>", "</s>"], "<unk>"
_TAG = re.compile(r"\s*(>>\S+?<<)")


class PairedVocabulary(Vocabulary):
    """A vocabulary with a SentencePiece model and a table of ids for each side."""

    def __init__(self, serialized: bytes) -> None:
        """Parse the bytes of a vocabulary that `paired_vocabulary` made.

        Raises:
          ValueError: the bytes are damaged.
        """
        super().__init__(serialized)
        content = parse_content(serialized, _SCHEMA)
        self._pieces: list[list[str]] = [content[f"{side}_pieces"] for side in _SIDES]
        for pieces in self._pieces:
            if pieces[: len(_SPECIAL)] != _SPECIAL:
                raise ValueError(f"damaged: it does not begin with {' '.join(_SPECIAL)}")
        self._ids = [
            {piece: number for number, piece in enumerate(pieces)} for pieces in self._pieces
        ]
        self._models: list[bytes] = [content[f"{side}_model"] for side in _SIDES]
        try:
            self._splitters = [processor_of(model) for model in self._models]
        except RuntimeError as error:
            raise ValueError(f"damaged: {error}") from error
        if not all(_UNKNOWN in ids for ids in self._ids):
            raise ValueError(f"damaged: it has no {_UNKNOWN}")

    def __len__(self) -> int:
        """Return the number of target ids."""
        return len(self._pieces[1])

    @property
    def source_size(self) -> int:
        """Return the number of source ids."""
        return len(self._pieces[0])

    @property
    def unk_id(self) -> int:
        """Return the target id of unknown text."""
        return self._ids[1][_UNKNOWN]

    @property
    def files(self) -> Mapping[str, bytes]:
        """Return both SentencePiece models, by file name."""
        return dict(zip(("source.spm", "target.spm"), self._models, strict=True))

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the subword ids of each source, then `EOS_ID`."""
        tags = [self._tag(line) for line in lines]
        texts = [line[len(tag) :] for line, tag in zip(lines, tags, strict=True)]
        rows = self._encoded(0, texts)
        ids = self._ids[0]
        return [
            [ids[tag.strip()], *row] if tag else row for tag, row in zip(tags, rows, strict=True)
        ]

    def encode_targets(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the subword ids of each target, then `EOS_ID`."""
        return self._encoded(1, lines)

    def pieces(self, ids: Rows) -> list[list[str]]:
        """Return each source id's subword, row by row."""
        return [[self._pieces[0][token] for token in row] for row in ids]

    def target_pieces(self, ids: Rows) -> list[list[str]]:
        """Return each target id's subword, row by row."""
        return [[self._pieces[1][token] for token in row] for row in ids]

    def spelling(self, token: int) -> bytes:
        """Return the bytes that a target id spells."""
        return self._spelling(1, token)

    def source_spelling(self, token: int) -> bytes:
        """Return the bytes that a source id spells."""
        return self._spelling(0, token)

    def _spelling(self, side: int, token: int) -> bytes:
        if token in (PAD_ID, EOS_ID):
            return b""
        splitter = self._splitters[side]
        return spelling_of(splitter, splitter.piece_to_id(self._pieces[side][token]))

    def decode(self, ids: Rows) -> list[str]:
        """Return the text of each row of target ids."""
        rows = self.target_pieces(before_end(ids, dropped_ids=(PAD_ID,)))
        return [text.strip() for text in in_threads(self._splitters[1].decode_pieces, rows)]

    def _tag(self, line: str) -> str:
        """Return the tag at the start of a source, with leading white space, or ""."""
        match = _TAG.match(line)
        return match[0] if match and match[1] in self._ids[0] else ""

    def _encoded(self, side: int, lines: Sequence[str]) -> list[list[int]]:
        rows = in_threads(partial(self._splitters[side].encode, out_type=str), lines)
        ids = self._ids[side]
        unknown = ids[_UNKNOWN]
        return [[*(ids.get(piece, unknown) for piece in row), EOS_ID] for row in rows]


def paired_vocabulary(
    models: tuple[bytes, bytes], pieces: tuple[Sequence[str], Sequence[str]]
) -> PairedVocabulary:
    """Make a vocabulary from two SentencePiece models and the subword of each id.

    Args:
      models: the serialized SentencePiece models of sources and targets.
      pieces: the subwords of sources and targets, ordered by id: `<pad>`, `</s>` and others,
        including `<unk>`.

    Raises:
      ValueError: the arguments do not fit together.
    """
    content = {
        "kind": "paired",
        "source_model": base64.b64encode(models[0]).decode(),
        "target_model": base64.b64encode(models[1]).decode(),
        "source_pieces": list(pieces[0]),
        "target_pieces": list(pieces[1]),
    }
    return PairedVocabulary(json.dumps(content, ensure_ascii=False).encode())
