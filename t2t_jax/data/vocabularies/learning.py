"""Training of the shared subword vocabulary (section 5.1) with SentencePiece's BPE.

A large vocabulary spells rare characters in bytes, which take 256 entries, and so spells every
text. A small vocabulary has every character of its training text instead.
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

# The only normalization: these characters become spaces, and runs of spaces one space. NFKC, the
# usual choice, turns … into three dots and ² into 2, so a model could never write the reference.
_SPACES = "\t\n\v\f\r\x85\u2028\u2029"
_MAX_TRAINING_PAIRS = 500_000
_MAX_LINE_BYTES = 4192  # SentencePiece ignores longer lines, so we cut them
_PART = re.compile(r".{1,1047}(?: |$)|.{1,1048}", re.DOTALL)  # a character has at most 4 bytes
_RESERVED = "\u2585"  # SentencePiece ignores lines with this character
# From this size on, the 256 bytes take no more than an eighth of the vocabulary.
_SMALLEST_SIZE_WITH_BYTES = 2048


def train_vocabulary(
    chunks: Iterable[tuple[list[str], list[str]]],
    size: int,
    *,
    across_scripts: bool = False,
    protected_tokens: Sequence[str] = (),
) -> SharedVocabulary:
    """Learn a BPE vocabulary from both sides of a corpus, or an even sample of a large one.

    The same text gives the same bytes.

    Args:
      chunks: source and target lines, as from `Corpus.pairs`.
      size: the number of entries, special ids included.
      across_scripts: whether a subword may hold both letters and punctuation, such as the symbol
        `(NP` of a tree. In text, subwords would join words with the punctuation after them.
      protected_tokens: strings that always are one token.
    """
    model = io.BytesIO()
    with_bytes = size >= _SMALLEST_SIZE_WITH_BYTES
    characters: set[str] | None = None if with_bytes else set()
    lines = chain.from_iterable(_sample_pairs(chunks, _MAX_TRAINING_PAIRS, characters))
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
                # Rarer characters are spelled in bytes.
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
            raise _training_error(error, size) from error
    vocabulary = SharedVocabulary(_without_traces(model.getvalue()))
    if characters:
        _warn_of_unknown(characters, vocabulary)
    return vocabulary


def _parts(line: str) -> list[str]:
    """Cut a line, at spaces if possible, into parts short enough for SentencePiece.

    Replace the character `_RESERVED` by a space, because SentencePiece ignores lines with it.
    """
    line = line.replace(_RESERVED, " ")
    return _PART.findall(line) if len(line.encode()) > _MAX_LINE_BYTES else [line]


def _warn_of_unknown(characters: set[str], vocabulary: SharedVocabulary) -> None:
    [pieces] = vocabulary.pieces([range(UNK_ID + 1, len(vocabulary))])
    if unknown := sorted(characters.difference(_SPACES, " ", *pieces)):
        codes = ", ".join(f"U+{ord(character):04X}" for character in unknown[:5])
        warn(
            f"the vocabulary cannot spell {len(unknown):,} characters of the corpus ({codes}), "
            f"which become <unk>; from vocab_size={_SMALLEST_SIZE_WITH_BYTES} on, bytes spell them"
        )


@contextmanager
def _normalization_rules() -> Iterator[str]:
    """Write the rules that turn characters into spaces to a temporary file, and yield its name."""
    # SentencePiece reads such rules only from a file.
    rules = "".join(f"{ord(space):X}\t20\n" for space in _SPACES)
    with ExitStack() as stack:
        try:
            # A buffer would fail a second time when it is closed.
            file = stack.enter_context(tempfile.NamedTemporaryFile(suffix=".tsv", buffering=0))
            file.write(rules.encode())
        except OSError as error:
            raise UserError(
                f"a temporary file cannot be written ({error.strerror or error}); make room, or "
                "set TMPDIR to another directory"
            ) from error
        yield file.name


def _sample_pairs(
    chunks: Iterable[tuple[list[str], list[str]]], limit: int, characters: set[str] | None = None
) -> list[tuple[str, str]]:
    """Sample at most `limit` evenly spaced pairs: all pairs, every second, every fourth and so on.

    Args:
      characters: a set to which the characters of all pairs are added.
    """
    sample: list[tuple[str, str]] = []
    stride, num_read = 1, 0
    for sources, targets in chunks:
        offset = -num_read % stride
        sample.extend(zip(sources[offset::stride], targets[offset::stride], strict=True))
        num_read += len(sources)
        if characters is not None:
            characters.update(*sources, *targets)
        while len(sample) > limit:
            sample = sample[::2]
            stride *= 2
    return sample


def _without_traces(model: bytes) -> bytes:
    """Remove the fields that differ between machines from a SentencePiece model."""
    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    proto.normalizer_spec.ClearField("normalization_rule_tsv")
    proto.trainer_spec.ClearField("num_threads")
    return proto.SerializeToString(deterministic=True)


def _training_error(error: RuntimeError, size: int) -> UserError:
    message = str(error)
    if match := re.search(r"value <= (\d+)", message):
        return UserError(f"vocab_size={size} is too large for this corpus; use at most {match[1]}")
    if match := re.search(r"required_chars\. \d+ vs (\d+)", message):
        return UserError(f"vocab_size={size} cannot hold all characters; use at least {match[1]}")
    if "sentences_.empty()" in message or "all_chars_count" in message:
        return UserError("the corpus has no text to learn a vocabulary from")
    return UserError(f"SentencePiece cannot learn a vocabulary from this corpus: {message}")
