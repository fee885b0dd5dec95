"""The shared subword vocabulary (section 5.1): SentencePiece BPE, and the special ids.

These are the choices where the paper says nothing:

- Text is not normalised beyond white space. NFKC, the usual choice, turns … into three dots and ²
  into 2: a model trained on it can never write what the reference says. Tabs and the line ends of
  Unicode become spaces, and runs of spaces become one.
- A large vocabulary spells rare characters in bytes, so every text can be written in it. Bytes
  take 256 entries. A small vocabulary has no room for them and holds every character of its
  training text instead.
"""

import hashlib
import io
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from typing import Any

import numpy as np
import sentencepiece
from jaxtyping import Integer
from sentencepiece import sentencepiece_model_pb2

from t2t_jax.batch import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from t2t_jax.errors import UserError
from t2t_jax.system.atomic_file import write_whole
from t2t_jax.system.bucket import as_path

RECIPE_VERSION = 1
"""Raised whenever `train_vocabulary` would make another vocabulary from the same text."""

_SPACES = "\t\n\v\f\r\x85\u2028\u2029"
_MAX_TRAINING_PAIRS = 500_000
_MAX_MODEL_BYTES = 1 << 30
# From this size on, the 256 bytes take no more than an eighth of the vocabulary.
_SMALLEST_SIZE_WITH_BYTES = 2048


class Vocabulary:
    """Text to subword ids and back. Ids 0 to 3 are padding, end, begin and unknown."""

    def __init__(self, model: bytes) -> None:
        """Wraps a serialized SentencePiece model.

        Raises:
          ValueError: the bytes are no such model, or it has other special ids.
        """
        self._model = model
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(model)
        except RuntimeError as error:
            raise ValueError("not a SentencePiece model") from error
        processor = self._processor
        ids = processor.pad_id(), processor.eos_id(), processor.bos_id(), processor.unk_id()
        if ids != (PAD_ID, EOS_ID, BOS_ID, UNK_ID):
            raise ValueError(f"a SentencePiece model with pad, eos, bos, unk = {ids}, not 0 to 3")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the vocabulary as its serialized model."""
        return Vocabulary, (self._model,)

    def __len__(self) -> int:
        """The number of ids."""
        return self._processor.get_piece_size()

    @staticmethod
    def load(path: str | os.PathLike[str]) -> "Vocabulary":
        """The vocabulary that `save` wrote.

        Raises:
          UserError: the file is missing or damaged.
        """
        try:
            there = as_path(path)
            if there.is_fifo() or there.stat().st_size > _MAX_MODEL_BYTES:
                raise ValueError("no SentencePiece model, but a pipe or far too large")
            return Vocabulary(there.read_bytes())
        except OSError as error:
            raise UserError(f"vocabulary {path} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise UserError(f"vocabulary {path} is {error}") from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the vocabulary. A reader finds the whole file or none."""
        write_whole(path, self._model)

    @property
    def serialized(self) -> bytes:
        """The SentencePiece model, as `save` writes it."""
        return self._model

    @property
    def fingerprint(self) -> str:
        """A hash of the serialized model."""
        return hashlib.sha256(self._model).hexdigest()

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """Subword ids of each line, ended by `EOS_ID`. An empty line is `[EOS_ID]`."""
        # One thread per core. White space is trimmed and collapsed by the model itself.
        return self._processor.encode(list(lines), add_eos=True, num_threads=-1)

    def pieces(self, ids: Sequence[Sequence[int]]) -> list[list[str]]:
        """The subword that each id stands for, row by row."""
        return [self._processor.id_to_piece(list(map(int, row))) for row in ids]

    def spelling(self, token: int) -> bytes:
        """The bytes that an id adds to a text, with a space before a word; of a special id, none.

        White space that is spelt as a byte counts as a space.
        """
        processor = self._processor
        if processor.is_control(token):
            return b""
        if processor.is_unknown(token):
            return self.decode([[token]])[0].encode()
        piece = processor.id_to_piece(token)
        if processor.is_byte(token):
            byte = bytes([int(piece[1:-1], 16)])
            return b" " if byte.isspace() else byte
        return piece.replace("\u2581", " ").encode()

    def decode(
        self, ids: Sequence[Sequence[int]] | Integer[np.ndarray, "rows length"]
    ) -> list[str]:
        """Text of each row of ids, up to its first `EOS_ID`; padding and begin are left out."""
        rows = [list(map(int, row)) for row in ids]
        ends = [row.index(EOS_ID) if EOS_ID in row else len(row) for row in rows]
        return self._processor.decode(
            [
                [token for token in row[:end] if token not in (PAD_ID, BOS_ID)]
                for row, end in zip(rows, ends, strict=True)
            ]
        )


def train_vocabulary(
    chunks: Iterable[tuple[list[str], list[str]]], size: int, *, across_scripts: bool = False
) -> Vocabulary:
    """Learns a BPE vocabulary over both sides of a corpus: the same text gives the same bytes.

    Of a large corpus, pairs spread evenly over it are used: BPE's merges settle long before.

    Args:
      chunks: aligned source and target lines, as `Corpus.pairs` gives them.
      size: entries, special ids included.
      across_scripts: whether a subword may hold letters and punctuation, as the symbols of trees
        do: so `(NP` is one. In text that would join words and what follows them.

    Raises:
      UserError: the corpus is too small for so many entries, or has too many characters for so few.
    """
    model = io.BytesIO()
    with_bytes = size >= _SMALLEST_SIZE_WITH_BYTES
    with _normalization_rules() as rules:
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=chain.from_iterable(_spread(chunks, _MAX_TRAINING_PAIRS)),
                model_writer=model,
                model_type="bpe",
                vocab_size=size,
                byte_fallback=with_bytes,
                split_by_unicode_script=not across_scripts,
                character_coverage=0.9999 if with_bytes else 1.0,
                normalization_rule_tsv=rules,
                pad_id=PAD_ID,
                eos_id=EOS_ID,
                bos_id=BOS_ID,
                unk_id=UNK_ID,
                num_threads=os.cpu_count() or 1,
                minloglevel=2,
            )
        except RuntimeError as error:
            raise _explain(error, size) from error
    return Vocabulary(_without_traces(model.getvalue()))


@contextmanager
def _normalization_rules() -> Iterator[str]:
    """A context with the name of a file that lists the characters which become a space.

    SentencePiece takes such rules from a file only.
    """
    rules = "".join(f"{ord(space):X}\t20\n" for space in _SPACES)
    with ExitStack() as stack:
        try:
            # Without a buffer, which would fail a second time when it is closed.
            file = stack.enter_context(tempfile.NamedTemporaryFile(suffix=".tsv", buffering=0))
            file.write(rules.encode())
        except OSError as error:
            raise UserError(
                f"no temporary file can be written ({error.strerror or error}); make room, or set "
                "TMPDIR to another directory"
            ) from error
        yield file.name


def _spread(chunks: Iterable[tuple[list[str], list[str]]], limit: int) -> list[tuple[str, str]]:
    """At most `limit` pairs, spread evenly: every pair, every second, every fourth and so on."""
    kept: list[tuple[str, str]] = []
    stride, seen = 1, 0
    for source, target in chunks:
        first = -seen % stride
        kept.extend(zip(source[first::stride], target[first::stride], strict=True))
        seen += len(source)
        while len(kept) > limit:
            kept = kept[::2]
            stride *= 2
    return kept


def _without_traces(model: bytes) -> bytes:
    """A SentencePiece model without the name of its temporary file and the number of threads."""
    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    proto.normalizer_spec.ClearField("normalization_rule_tsv")
    proto.trainer_spec.ClearField("num_threads")
    return proto.SerializeToString(deterministic=True)


def _explain(error: RuntimeError, size: int) -> UserError:
    """Turn an error of SentencePiece into one that says which vocabulary sizes work."""
    message = str(error)
    if match := re.search(r"value <= (\d+)", message):
        most = match.group(1)
        return UserError(f"vocab_size={size} is more than this corpus supports; at most {most}")
    if match := re.search(r"required_chars\. \d+ vs (\d+)", message):
        least = match.group(1)
        return UserError(f"vocab_size={size} cannot hold all characters; at least {least}")
    if "sentences_.empty()" in message or "all_chars_count" in message:
        return UserError("the corpus has no text to learn a vocabulary from")
    return UserError(f"SentencePiece cannot learn a vocabulary from this corpus: {message}")
