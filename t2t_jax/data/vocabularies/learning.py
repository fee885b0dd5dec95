"""Learning of the shared subword vocabulary (section 5.1) with SentencePiece's BPE.

These are the choices where the paper says nothing:

- Text is not normalised beyond white space. NFKC, the usual choice, turns … into three dots and ²
  into 2: a model trained on it can never write what the reference says. Tabs and the line ends of
  Unicode become spaces, and runs of spaces become one.
- A large vocabulary spells rare characters in bytes, so every text can be written in it. Bytes
  take 256 entries. A small vocabulary has no room for them and holds every character of its
  training text instead.
- SentencePiece ignores lines of more than 4,192 bytes and lines with U+2585. Longer lines are cut,
  and a space replaces U+2585, so all other text counts.
"""

import io
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain

import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from t2t_jax.batch import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from t2t_jax.data.vocabularies.shared import SharedVocabulary
from t2t_jax.errors import UserError, warn

RECIPE_VERSION = 2
"""The version of `train_vocabulary`, raised whenever the same text would give another result."""

_SPACES = "\t\n\v\f\r\x85\u2028\u2029"
_MAX_TRAINING_PAIRS = 500_000
_MAX_LINE_BYTES = 4192  # the default of SentencePiece's max_sentence_length
_PART = re.compile(r".{1,1047}(?: |$)|.{1,1048}", re.DOTALL)  # a character has at most 4 bytes
_RESERVED = "\u2585"  # SentencePiece marks unknown characters with it while it learns
# From this size on, the 256 bytes take no more than an eighth of the vocabulary.
_SMALLEST_SIZE_WITH_BYTES = 2048


def train_vocabulary(
    chunks: Iterable[tuple[list[str], list[str]]],
    size: int,
    *,
    across_scripts: bool = False,
    protected_tokens: Sequence[str] = (),
) -> SharedVocabulary:
    """Learn a BPE vocabulary over both sides of a corpus: the same text gives the same bytes.

    From a large corpus, evenly spread pairs are used, as few suffice for BPE's merges to settle.

    Args:
      chunks: aligned source and target lines, as `Corpus.pairs` gives them.
      size: the number of entries, special ids included.
      across_scripts: whether a subword may hold both letters and punctuation, as the symbol `(NP`
        of a tree does. In text, it would join words with the punctuation after them.
      protected_tokens: strings that are one entry each, never split and never joined with others.
    """
    model = io.BytesIO()
    with_bytes = size >= _SMALLEST_SIZE_WITH_BYTES
    characters: set[str] | None = None if with_bytes else set()
    lines = chain.from_iterable(_spread(chunks, _MAX_TRAINING_PAIRS, characters))
    with _normalization_rules() as rules:
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=chain.from_iterable(map(_parts, lines)),
                model_writer=model,
                model_type="bpe",
                vocab_size=size,
                byte_fallback=with_bytes,
                split_by_unicode_script=not across_scripts,
                user_defined_symbols=list(protected_tokens),
                # The others are spelled in bytes.
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
    vocabulary = SharedVocabulary(_without_traces(model.getvalue()))
    if characters:
        _warn_of_lost(characters, vocabulary)
    return vocabulary


def _parts(line: str) -> list[str]:
    """Return a line in parts that SentencePiece does not ignore; a word stays whole if it fits."""
    line = line.replace(_RESERVED, " ")
    return _PART.findall(line) if len(line.encode()) > _MAX_LINE_BYTES else [line]


def _warn_of_lost(characters: set[str], vocabulary: SharedVocabulary) -> None:
    [pieces] = vocabulary.pieces([range(UNK_ID + 1, len(vocabulary))])
    if lost := sorted(characters.difference(_SPACES, " ", *pieces)):
        shown = ", ".join(f"U+{ord(one):04X}" for one in lost[:5])
        warn(
            f"the vocabulary cannot spell {len(lost):,} characters of the corpus ({shown}), which "
            f"become <unk>; from vocab_size={_SMALLEST_SIZE_WITH_BYTES} on, bytes spell them"
        )


@contextmanager
def _normalization_rules() -> Iterator[str]:
    """Write a temporary file of the characters that become a space, and give its name.

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


def _spread(
    chunks: Iterable[tuple[list[str], list[str]]], limit: int, characters: set[str] | None = None
) -> list[tuple[str, str]]:
    """Return at most `limit` evenly spread pairs: every, every second, every fourth and so on.

    Args:
      characters: collects the characters of all pairs.
    """
    kept: list[tuple[str, str]] = []
    stride, seen = 1, 0
    for source, target in chunks:
        first = -seen % stride
        kept.extend(zip(source[first::stride], target[first::stride], strict=True))
        seen += len(source)
        if characters is not None:
            characters.update(*source, *target)
        while len(kept) > limit:
            kept = kept[::2]
            stride *= 2
    return kept


def _without_traces(model: bytes) -> bytes:
    """Remove the temporary file's name and the number of threads from a SentencePiece model."""
    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    proto.normalizer_spec.ClearField("normalization_rule_tsv")
    proto.trainer_spec.ClearField("num_threads")
    return proto.SerializeToString(deterministic=True)


def _explain(error: RuntimeError, size: int) -> UserError:
    message = str(error)
    if match := re.search(r"value <= (\d+)", message):
        return UserError(f"vocab_size={size} is more than this corpus supports; at most {match[1]}")
    if match := re.search(r"required_chars\. \d+ vs (\d+)", message):
        return UserError(f"vocab_size={size} cannot hold all characters; at least {match[1]}")
    if "sentences_.empty()" in message or "all_chars_count" in message:
        return UserError("the corpus has no text to learn a vocabulary from")
    return UserError(f"SentencePiece cannot learn a vocabulary from this corpus: {message}")
