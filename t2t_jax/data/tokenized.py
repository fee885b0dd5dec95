"""A corpus tokenised once into memory-mapped arrays.

A cache keeps vocabularies and arrays under the fingerprints of their inputs. So a second start only
hashes the corpus and the arrays, which is quick, and tokenises nothing.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from functools import partial
from itertools import chain, compress, repeat
from typing import NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Int64, Integer

from t2t_jax.batch import BOS_ID, EOS_ID
from t2t_jax.config import DataConfig
from t2t_jax.data.cache import Contents, entry
from t2t_jax.data.corpus import Corpus
from t2t_jax.data.rows import Examples, offsets_of, ranges
from t2t_jax.data.splits import Chunk
from t2t_jax.data.vocabularies.learning import RECIPE_VERSION, train_vocabulary
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.system.records import COUNT, parse_object, schema

_FORMAT_VERSION = 2
"""The version of the arrays, raised whenever the same text would make other arrays or files."""

# A line of training text that is longer than both limits is too long, whatever is in it.
_MANY_CHARACTERS = 1_000_000
_LONGEST_SUBWORD = 16  # characters, which is what SentencePiece learns by default

_NONE_SKIPPED = dict.fromkeys(("empty_source", "empty_target", "too_long"), 0)
_VOCABULARY, _COUNTS = "vocabulary.model", "counts.json"
_COUNTS_SCHEMA = schema({"skipped": dict[str, COUNT], "num_pairs_read": COUNT})
_Make: TypeAlias = Callable[[Iterable[Chunk]], Examples]
_ARRAYS = tuple(field.name for field in fields(Examples))[:4]


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
) -> Examples:
    """Return a split as token arrays, from the cache or tokenised now.

    Each corpus of a mixture is tokenised once, whatever its weight, into a separate entry.

    Train leaves out and counts pairs with an empty side or more than `config.max_length` tokens.
    Every other split keeps all its pairs, in which an empty side is `[EOS_ID]`.
    """
    most = config.max_length if split == "train" else None
    make = partial(tokenize, vocabulary=vocabulary, max_length=most)
    return _prepared(config, corpus, vocabulary, split, make, str(most))


def prepare_text(
    config: DataConfig, corpus: Corpus, vocabulary: Vocabulary, split: str, *, bidirectional: bool
) -> Examples:
    """Return documents of one language as token arrays, from the cache or tokenised now.

    Sources are empty, and targets are sequences, cut as `config.text_rows` says. Each corpus
    of a mixture is tokenised once.

    Args:
      bidirectional: whether a model reads a sequence as a whole. If so, each begins with
        `BOS_ID`, and documents of every split are cut; if not, only those of train are cut.
    """
    most = config.max_length if split == "train" or bidirectional else None
    rows, begin = config.text_rows, bidirectional
    make = partial(tokenize_text, vocabulary=vocabulary, max_length=most, rows=rows, begin=begin)
    key = (str(most), rows, "with begin") if begin else (str(most), rows)
    return _prepared(config, corpus, vocabulary, split, make, *key)


def _prepared(
    config: DataConfig, corpus: Corpus, vocabulary: Vocabulary, split: str, make: _Make, *key: str
) -> Examples:
    """Return the token arrays of a split, from the cache or made now.

    Args:
      key: what the arrays depend on, besides text and vocabulary.
    """

    def contents() -> Contents:
        if split == "train" and corpus.mixed:
            corpora, repeats = zip(*corpus.mixed, strict=True)
            parts = [_prepared(config, part, vocabulary, split, make, *key) for part in corpora]
            examples = joined([*chain.from_iterable(map(repeat, parts, repeats))])
        else:
            examples = make(corpus.pairs(split))
        counts = {"skipped": examples.skipped, "num_pairs_read": examples.num_pairs_read}
        arrays = {f"{name}.npy": getattr(examples, name) for name in _ARRAYS}
        return {**arrays, _COUNTS: json.dumps(counts).encode()}

    digest = _hash(_FORMAT_VERSION, corpus.fingerprint(split), vocabulary.fingerprint, *key)
    folder = entry(config, f"tokens-{digest}", contents)
    counts = parse_object((folder / _COUNTS).read_bytes(), _COUNTS_SCHEMA)
    arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in _ARRAYS}
    return Examples(**arrays, **counts)


def _hash(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]


def tokenize(pairs: Iterable[Chunk], vocabulary: Vocabulary, max_length: int | None) -> Examples:
    """Tokenise pairs chunk by chunk, with only one chunk of their text in memory at a time.

    Args:
      max_length: the most tokens of a side. Longer pairs, and those with an empty side, are left
        out and counted. None keeps all pairs.
    """
    most = max(vocabulary.source_size, len(vocabulary))
    dtype = np.uint16 if most <= 1 << 16 else np.int32
    parts = [Examples(*flattened([], dtype), *flattened([], dtype), _NONE_SKIPPED, 0)]
    for source_lines, target_lines in pairs:
        targets = _encode(vocabulary.encode_targets, target_lines, max_length)
        # Documents have no sources.
        sources = _encode(vocabulary.encode, source_lines, max_length) or [[]] * len(targets)
        skipped, num_read = _NONE_SKIPPED, len(targets)
        if max_length is not None:
            source, target = (np.array([*map(len, side)]) for side in (sources, targets))
            # A side of one token is `EOS_ID` alone.
            faults = source == 1, target == 1, np.maximum(source, target) > max_length
            reason = np.select(faults, [1, 2, 3])
            skipped = dict(zip(skipped, np.bincount(reason, minlength=4)[1:].tolist(), strict=True))
            sources, targets = ([*compress(side, reason == 0)] for side in (sources, targets))
        arrays = *flattened(sources, dtype), *flattened(targets, dtype)
        parts.append(Examples(*arrays, skipped, num_read))
    return joined(parts)


def tokenize_text(
    pairs: Iterable[Chunk],
    vocabulary: Vocabulary,
    max_length: int | None,
    rows: str,
    *,
    begin: bool,
) -> Examples:
    """Tokenise documents, the targets of pairs whose sources are empty.

    Args:
      max_length: the most tokens of a sequence, into which documents are cut; None cuts none.
      rows: the extent of a sequence, as `data.text_rows` says.
      begin: whether each sequence begins with `BOS_ID`.
    """
    documents = tokenize((([], targets) for _, targets in pairs), vocabulary, None)
    tokens, offsets = documents.target_tokens, documents.target_offsets
    if max_length is not None:
        lengths = np.diff(offsets) if rows == "documents" else offsets[-1:]
        offsets = offsets_of(_cut(lengths, max_length - begin))
    if begin:
        tokens = np.insert(tokens, offsets[:-1], BOS_ID)
        offsets += np.arange(len(offsets))
    sources = np.empty(0, tokens.dtype), np.zeros(len(offsets), np.int64)
    return Examples(*sources, tokens, offsets, {}, documents.num_pairs_read)


def _cut(lengths: Int64[np.ndarray, " documents"], most: int) -> Int64[np.ndarray, " parts"]:
    """Return the lengths of the parts, of at most `most`, that documents are cut into."""
    parts = -(-lengths // most)
    cut = np.full(parts.sum(), most, np.int64)
    ends = np.cumsum(parts)[lengths > 0] - 1
    cut[ends] = ((lengths - 1) % most + 1)[lengths > 0]
    return cut


def joined(splits: Sequence[Examples]) -> Examples:
    """Join the pairs of several splits."""
    skipped = Counter[str]()
    for split in splits:
        skipped.update(split.skipped)
    return Examples(
        np.concatenate([split.source_tokens for split in splits]),
        offsets_of(np.concatenate([split.source_lengths for split in splits])),
        np.concatenate([split.target_tokens for split in splits]),
        offsets_of(np.concatenate([split.target_lengths for split in splits])),
        dict(skipped),
        sum(split.num_pairs_read for split in splits),
    )


def after_first_tokens(split: Examples) -> Examples:
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
    return Examples(*cut, joined, offsets, split.skipped, split.num_pairs_read)


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


def flattened(
    sentences: Sequence[list[int]], dtype: type[np.integer]
) -> tuple[Integer[np.ndarray, " tokens"], Int64[np.ndarray, " offsets"]]:
    """Return the concatenated tokens of sentences, and the offsets of the sentences in them."""
    lengths = np.fromiter(map(len, sentences), np.int32, len(sentences))
    tokens = np.fromiter(chain.from_iterable(sentences), dtype, int(lengths.sum()))
    return tokens, offsets_of(lengths)


def windows(split: Examples, length: int, stride: int, start: int) -> Examples:
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
    return Examples(sources, source_offsets, targets, target_offsets, {}, split.num_pairs_read)


def _parts(
    tokens: Integer[np.ndarray, " tokens"],
    begins: Int64[np.ndarray, " parts"],
    ends: Int64[np.ndarray, " parts"],
) -> tuple[Integer[np.ndarray, " kept"], Int64[np.ndarray, " offsets"]]:
    """Join the parts `tokens[begins[i] : ends[i]]`, and return them with their offsets."""
    return tokens[ranges(begins, ends - begins)], offsets_of(ends - begins)


class TrainText(NamedTuple):
    """How a task makes examples from the text of a train split."""

    tokenize: _Make
    """A function that makes token arrays of pairs of lines."""
    examples: Callable[[Examples], Examples]
    """A function that makes examples of token arrays."""
    key: tuple[str | int | float | bool, ...]
    """What the arrays and their examples depend on, besides text and vocabulary."""


def document_text(
    config: DataConfig,
    vocabulary: Vocabulary,
    examples: Callable[[Examples], Examples],
    *,
    begin: bool,
) -> TrainText:
    """Return how documents become examples, in sequences cut by `data.text_rows`.

    Args:
      begin: whether each sequence begins with `BOS_ID`.
    """
    most, rows = config.max_length, config.text_rows
    make = partial(tokenize_text, vocabulary=vocabulary, max_length=most, rows=rows, begin=begin)
    return TrainText(make, examples, ("documents", most, rows, begin))
