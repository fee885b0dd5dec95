"""A corpus tokenised once into memory-mapped arrays.

A cache keeps vocabularies and arrays under the fingerprints of their inputs. So a second start only
hashes the corpus and the arrays, which is quick, and tokenises nothing.
"""

import functools
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import chain
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int32, Int64, Integer

from t2t_jax.batch import BOS_ID, EOS_ID, Batch
from t2t_jax.config import DataConfig
from t2t_jax.data.cache import Contents, entry
from t2t_jax.data.corpus import Corpus
from t2t_jax.data.rows import BatchShape, Chosen, Examples, StepRows, filled, offsets_of, ranges
from t2t_jax.data.splits import Chunk
from t2t_jax.data.vocabularies.learning import RECIPE_VERSION, train_vocabulary
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.system.records import COUNT, parse_object, schema

_FORMAT_VERSION = 2
"""The version of the arrays, raised whenever the same text would make other arrays or files."""

# A line of training text that is longer than both limits is too long, whatever is in it.
_MANY_CHARACTERS = 1_000_000
_LONGEST_SUBWORD = 16  # characters, which is what SentencePiece learns by default

_VOCABULARY, _COUNTS = "vocabulary.model", "counts.json"
_COUNTS_SCHEMA = schema({"skipped": dict[str, COUNT], "num_pairs_read": COUNT})


class FlatSentences(NamedTuple):
    """The sources, or the targets, of consecutive pairs."""

    tokens: Integer[np.ndarray, " tokens"]
    """The tokens of all sentences, one after the other."""
    lengths: Int32[np.ndarray, " pairs"]
    """The number of tokens of each sentence."""


@dataclass(frozen=True)
class TokenizedSplit:
    """The pairs of a split as flat token arrays; pair i is `tokens[offsets[i] : offsets[i + 1]]`.

    Every sentence ends with `EOS_ID`. The arrays may be memory-mapped and are read only.
    """

    source_tokens: Integer[np.ndarray, " source_total"]
    source_offsets: Int64[np.ndarray, " offsets"]
    target_tokens: Integer[np.ndarray, " target_total"]
    target_offsets: Int64[np.ndarray, " offsets"]
    skipped: dict[str, int]
    """Number of pairs left out, by reason: `empty_source`, `empty_target`, `too_long`."""
    num_pairs_read: int
    """Number of pairs in the corpus: those kept and those left out."""

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self.source_offsets) - 1

    @functools.cached_property
    def source_lengths(self) -> Int32[np.ndarray, " pairs"]:
        """Return the number of tokens of each source sentence, end of sentence included."""
        return np.diff(self.source_offsets).astype(np.int32)

    @functools.cached_property
    def target_lengths(self) -> Int32[np.ndarray, " pairs"]:
        """Return the number of tokens of each target sentence, end of sentence included."""
        return np.diff(self.target_offsets).astype(np.int32)

    def shape(self, shape: BatchShape, most: int) -> BatchShape:
        """Return the shape unchanged, because the arrays are as long as the rows."""
        return shape

    def batch(self, chosen: Chosen, shape: BatchShape, rows: StepRows) -> Batch:
        """Return the arrays of a batch, in which examples depend on neither step nor row."""
        source = np.asarray(self.source_tokens), np.asarray(self.source_offsets)
        target = np.asarray(self.target_tokens), np.asarray(self.target_offsets)
        inputs = filled(*source, chosen, (shape.rows, shape.source_length))
        return Batch(inputs, filled(*target, chosen, (shape.rows, shape.target_length)))


_ARRAYS = tuple(field.name for field in fields(TokenizedSplit))[:4]


def prepare_vocabulary(
    config: DataConfig, corpus: Corpus, *, across_scripts: bool = False, needed: str | None = None
) -> Vocabulary:
    """Return the vocabulary of a corpus's train split, from the cache or learned now.

    Args:
      across_scripts: whether a subword may hold both letters and punctuation, for the corpus's
        task. The key of the cache omits it, since a corpus is for one task.
      needed: an entry that the task needs, which is the last of the protected tokens.
    """
    tokens = config.protected_tokens
    if needed is not None:
        tokens = (*(token for token in tokens if token != needed), needed)
    options = [tokens] if tokens else []  # without any, the key is that of earlier releases
    key = _hash(RECIPE_VERSION, corpus.fingerprint("train"), config.vocab_size, *options)

    def learn() -> Contents:
        pairs = corpus.sample("train")
        learned = train_vocabulary(
            pairs, config.vocab_size, across_scripts=across_scripts, protected_tokens=tokens
        )
        return {_VOCABULARY: learned.serialized}

    return Vocabulary.load(entry(config, f"vocabulary-{key}", learn) / _VOCABULARY)


def prepare_pairs(
    config: DataConfig, corpus: Corpus, vocabulary: Vocabulary, split: str
) -> TokenizedSplit:
    """Return a split as token arrays, from the cache or tokenised now.

    Each corpus of a mixture is tokenised once, whatever its weight, into a separate entry.

    Train leaves out and counts pairs with an empty side or more than `config.max_length` tokens.
    Every other split keeps all its pairs, in which an empty side is `[EOS_ID]`.
    """
    max_length = config.max_length if split == "train" else None

    def make() -> TokenizedSplit:
        if split == "train" and corpus.mixed:
            return mix(
                [(prepare_pairs(config, one, vocabulary, split), n) for one, n in corpus.mixed]
            )
        return tokenize(corpus.pairs(split), vocabulary, max_length)

    key = corpus.fingerprint(split), vocabulary.fingerprint, str(max_length)
    return kept(config, key, make)


def prepare_text(
    config: DataConfig, corpus: Corpus, vocabulary: Vocabulary, split: str, *, bidirectional: bool
) -> TokenizedSplit:
    """Return documents of one language as token arrays, from the cache or tokenised now.

    Sources are empty, and targets are sequences, cut as `config.text_rows` says. Each corpus
    of a mixture is tokenised once.

    Args:
      bidirectional: whether a model reads a sequence as a whole. If so, each begins with
        `BOS_ID`, and documents of every split are cut; if not, only those of train are cut.
    """
    max_length = config.max_length if split == "train" or bidirectional else None
    rows = config.text_rows

    def make() -> TokenizedSplit:
        if split == "train" and corpus.mixed:
            each = partial(prepare_text, config, bidirectional=bidirectional)
            return mix([(each(one, vocabulary, split), n) for one, n in corpus.mixed])
        pairs = corpus.pairs(split)
        return tokenize_text(pairs, vocabulary, max_length, rows, begin=bidirectional)

    of_text = corpus.fingerprint(split), vocabulary.fingerprint, str(max_length), rows
    return kept(config, (*of_text, "with begin") if bidirectional else of_text, make)


def kept(
    config: DataConfig, key: Sequence[object], make: Callable[[], TokenizedSplit]
) -> TokenizedSplit:
    """Return arrays that depend only on the values in a key, from the cache or made now."""

    def contents() -> Contents:
        made = make()
        counts = {"skipped": made.skipped, "num_pairs_read": made.num_pairs_read}
        arrays = {f"{name}.npy": getattr(made, name) for name in _ARRAYS}
        return {**arrays, _COUNTS: json.dumps(counts).encode()}

    folder = entry(config, f"tokens-{_hash(_FORMAT_VERSION, *key)}", contents)
    counts = parse_object((folder / _COUNTS).read_bytes(), _COUNTS_SCHEMA)
    arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in _ARRAYS}
    return TokenizedSplit(**arrays, **counts)


def _hash(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]


def tokenize(
    pairs: Iterable[Chunk], vocabulary: Vocabulary, max_length: int | None
) -> TokenizedSplit:
    """Tokenise pairs chunk by chunk, with only one chunk of their text in memory at a time.

    Args:
      max_length: the most tokens of a side. Longer pairs, and those with an empty side, are left
        out and counted. None keeps all pairs.
    """
    most = max(vocabulary.source_size, len(vocabulary))
    dtype = np.uint16 if most <= 1 << 16 else np.int32
    skipped = dict.fromkeys(("empty_source", "empty_target", "too_long"), 0)
    num_pairs_read = 0
    sources: list[FlatSentences] = []
    targets: list[FlatSentences] = []
    for source_lines, target_lines in pairs:
        source = flattened(_encode(vocabulary.encode, source_lines, max_length), dtype)
        target = flattened(_encode(vocabulary.encode_targets, target_lines, max_length), dtype)
        num_pairs_read += len(source.lengths)
        if max_length is not None:
            is_long = np.maximum(source.lengths, target.lengths) > max_length
            faults = source.lengths == 1, target.lengths == 1, is_long  # 1 is EOS_ID alone
            reason = np.select(faults, [1, 2, 3])
            for number, name in enumerate(skipped, start=1):
                skipped[name] += int(np.count_nonzero(reason == number))
            source, target = (_select(side, reason == 0) for side in (source, target))
        sources.append(source)
        targets.append(target)
    return TokenizedSplit(*joined(sources, dtype), *joined(targets, dtype), skipped, num_pairs_read)


def tokenize_text(
    pairs: Iterable[Chunk],
    vocabulary: Vocabulary,
    max_length: int | None,
    rows: str,
    *,
    begin: bool,
) -> TokenizedSplit:
    """Tokenise documents, the targets of pairs whose sources are empty.

    Args:
      max_length: the most tokens of a sequence, into which documents are cut; None cuts none.
      rows: the extent of a sequence, as `data.text_rows` says.
      begin: whether each sequence begins with `BOS_ID`.
    """
    dtype = np.uint16 if len(vocabulary) <= 1 << 16 else np.int32
    documents = [flattened(vocabulary.encode_targets(targets), dtype) for _, targets in pairs]
    tokens, offsets = joined(documents, dtype)
    num_documents = len(offsets) - 1
    if max_length is not None:
        lengths = np.diff(offsets) if rows == "documents" else offsets[-1:]
        offsets = offsets_of(_cut(lengths, max_length - begin))
    if begin:
        tokens = np.insert(tokens, offsets[:-1], BOS_ID)
        offsets += np.arange(len(offsets))
    sources = np.empty(0, dtype), np.zeros(len(offsets), np.int64)
    return TokenizedSplit(*sources, tokens, offsets, {}, num_documents)


def _cut(lengths: Int64[np.ndarray, " documents"], most: int) -> Int64[np.ndarray, " parts"]:
    """Return the lengths of the parts, of at most `most`, that documents are cut into."""
    parts = -(-lengths // most)
    cut = np.full(parts.sum(), most, np.int64)
    ends = np.cumsum(parts)[lengths > 0] - 1
    cut[ends] = ((lengths - 1) % most + 1)[lengths > 0]
    return cut


def mix(mixed: list[tuple[TokenizedSplit, int]]) -> TokenizedSplit:
    """Join the pairs of several splits, each split repeated by its number."""
    repeated = [split for split, times in mixed for _ in range(times)]
    sources = [FlatSentences(split.source_tokens, split.source_lengths) for split in repeated]
    targets = [FlatSentences(split.target_tokens, split.target_lengths) for split in repeated]
    dtype = sources[0].tokens.dtype.type  # the vocabulary's, so that of all
    skipped = Counter[str]()
    for split in repeated:
        skipped.update(split.skipped)
    num_pairs_read = sum(split.num_pairs_read for split in repeated)
    arrays = *joined(sources, dtype), *joined(targets, dtype)
    return TokenizedSplit(*arrays, dict(skipped), num_pairs_read)


def after_first_tokens(split: TokenizedSplit) -> TokenizedSplit:
    """Cut each source after its first token, and move the rest to the beginning of its target.

    A decoder-only model reads the same sequences, and learns all tokens but the first of each.
    """
    sources, targets = split.source_lengths, split.target_lengths
    first, rest = split.source_offsets[:-1], sources - 1
    offsets = offsets_of(rest + targets)
    source_tokens = np.asarray(split.source_tokens)
    joined = np.empty(offsets[-1], source_tokens.dtype)
    joined[ranges(offsets[:-1], rest)] = source_tokens[ranges(first + 1, rest)]
    joined[ranges(offsets[:-1] + rest, targets)] = np.asarray(split.target_tokens)
    cut = source_tokens[first], np.arange(len(first) + 1, dtype=np.int64)
    return TokenizedSplit(*cut, joined, offsets, split.skipped, split.num_pairs_read)


def _encode(
    encode: Callable[[list[str]], list[list[int]]], lines: list[str], max_length: int | None
) -> list[list[int]]:
    """Return the subword ids of each line; a far too long line gets `max_length + 1` end ids."""
    if max_length is None:
        return encode(lines)
    # SentencePiece takes 100 bytes for a character: a file without line ends must not end the run.
    limit = max(_MANY_CHARACTERS, _LONGEST_SUBWORD * (max_length + 1))
    too_long = [number for number, line in enumerate(lines) if len(line) > limit]
    for number in too_long:
        lines[number] = ""
    rows = encode(lines)
    for number in too_long:
        rows[number] = [EOS_ID] * (max_length + 1)
    return rows


def flattened(sentences: list[list[int]], dtype: type[np.integer]) -> FlatSentences:
    """Return the concatenated tokens of sentences, and the length of each."""
    lengths = np.fromiter(map(len, sentences), np.int32, len(sentences))
    tokens = np.fromiter(chain.from_iterable(sentences), dtype, int(lengths.sum()))
    return FlatSentences(tokens, lengths)


def _select(side: FlatSentences, keep: Bool[np.ndarray, " pairs"]) -> FlatSentences:
    return FlatSentences(side.tokens[np.repeat(keep, side.lengths)], side.lengths[keep])


def joined(
    sides: list[FlatSentences], dtype: type[np.integer]
) -> tuple[Integer[np.ndarray, " tokens"], Int64[np.ndarray, " offsets"]]:
    """Return the tokens of all sides together, and the offsets of the sentences in them."""
    tokens = np.concatenate([np.empty(0, dtype), *(side.tokens for side in sides)])
    lengths = [np.empty(0, np.int32), *(side.lengths for side in sides)]
    return tokens, offsets_of(np.concatenate(lengths))


def windows(split: TokenizedSplit, length: int, stride: int, start: int) -> TokenizedSplit:
    """Cut long text into windows: scored tokens are targets, and tokens before them sources.

    The first window of a sequence scores its first `length` tokens, and every other one the next
    `stride`, with the `length - stride` tokens before them as context. So every token is scored
    once, and after the first window each has at least that much context. All windows begin with
    `start`, as sequences do in training::

        length 4, stride 2     source: start          target: a b c d
                               source: start c d      target: e f
                               source: start e f      target: g

    Args:
      split: sequences of text, with empty sources.
      length: the most tokens that a window reads to predict from, `start` included.
      stride: number of tokens that a window scores, from the second window on; at most `length`.
      start: the id that stands at the beginning of every window.
    """
    lengths = np.diff(split.target_offsets)
    later = np.maximum(-(-(lengths - length) // stride), 0)  # windows after the first
    counts = later + (lengths > 0)
    sequence = np.repeat(np.arange(len(lengths)), counts)
    number = np.arange(len(sequence)) - np.repeat(np.cumsum(counts) - counts, counts)
    begin = np.where(number == 0, 0, length + (number - 1) * stride)
    end = np.minimum(length + number * stride, lengths[sequence])
    context = np.where(number == 0, 0, begin - (length - stride))
    at = split.target_offsets[sequence]
    tokens = np.asarray(split.target_tokens)
    sources, source_offsets = _parts(tokens, at + context - 1, at + begin)
    sources[source_offsets[:-1]] = start  # in place of the token before the context
    targets, target_offsets = _parts(tokens, at + begin, at + end)
    return TokenizedSplit(
        sources, source_offsets, targets, target_offsets, {}, split.num_pairs_read
    )


def _parts(
    tokens: Integer[np.ndarray, " tokens"],
    begins: Int64[np.ndarray, " parts"],
    ends: Int64[np.ndarray, " parts"],
) -> tuple[Integer[np.ndarray, " kept"], Int64[np.ndarray, " offsets"]]:
    """Join the parts `tokens[begins[i] : ends[i]]`, and return them with their offsets."""
    return tokens[ranges(begins, ends - begins)], offsets_of(ends - begins)


class TrainText(NamedTuple):
    """How a task makes examples from the text of a train split."""

    tokenize: Callable[[Iterable[Chunk]], TokenizedSplit]
    """A function that makes token arrays of pairs of lines."""
    examples: Callable[[TokenizedSplit], Examples]
    """A function that makes examples of token arrays."""
    key: tuple[str | int | float | bool, ...]
    """What the arrays and their examples depend on, besides text and vocabulary."""


def document_text(
    config: DataConfig,
    vocabulary: Vocabulary,
    examples: Callable[[TokenizedSplit], Examples],
    *,
    begin: bool,
) -> TrainText:
    """Return how documents become examples, in sequences cut by `data.text_rows`.

    Args:
      begin: whether each sequence begins with `BOS_ID`.
    """
    most, rows = config.max_length, config.text_rows

    def sequences(pairs: Iterable[Chunk]) -> TokenizedSplit:
        return tokenize_text(pairs, vocabulary, most, rows, begin=begin)

    return TrainText(sequences, examples, ("documents", most, rows, begin))
