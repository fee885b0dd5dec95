"""Corpora tokenized into memory-mapped arrays.

A cache stores vocabularies and arrays by the fingerprints of their inputs, so a second start hashes
the corpus and the arrays, but tokenizes nothing.
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
"""The version of the arrays, raised whenever the same text would give other arrays or files."""

# A line of training text above both limits has too many tokens, whatever its content.
_MAX_CHARACTERS = 1_000_000
_LONGEST_SUBWORD = 16  # characters, the default of SentencePiece's max_sentencepiece_length

_NONE_SKIPPED = dict.fromkeys(("empty_source", "empty_target", "too_long"), 0)
_VOCABULARY, _COUNTS = "vocabulary.model", "counts.json"
_COUNTS_SCHEMA = schema({"skipped": dict[str, COUNT], "num_pairs_read": COUNT})
_Tokenizer: TypeAlias = Callable[[Iterable[Chunk]], Examples]
_ARRAYS = tuple(field.name for field in fields(Examples))[:4]


def prepare_vocabulary(
    config: DataConfig, corpus: Corpus, *, across_scripts: bool = False, required: str | None = None
) -> Vocabulary:
    """Learn the vocabulary of a corpus's train split, or load it from the cache.

    Args:
      across_scripts: whether a subword may hold both letters and punctuation.
      required: a string that the task needs as one token; it becomes the last protected token.
    """
    tokens = config.protected_tokens
    if required is not None:
        tokens = (*(token for token in tokens if token != required), required)
    options = [tokens] if tokens else []  # no tokens: the key of earlier releases
    # The key omits `across_scripts`, because the task of a corpus decides it.
    key = _hash(RECIPE_VERSION, corpus.fingerprint("train"), config.vocab_size, *options)

    def learn() -> Contents:
        pairs = corpus.sample("train")
        vocabulary = train_vocabulary(
            pairs, config.vocab_size, across_scripts=across_scripts, protected_tokens=tokens
        )
        return {_VOCABULARY: vocabulary.serialized}

    return Vocabulary.load(entry(config, f"vocabulary-{key}", learn) / _VOCABULARY)


def prepare_pairs(
    config: DataConfig, corpus: Corpus, vocabulary: Vocabulary, split: str
) -> Examples:
    """Tokenize a split into arrays, or load them from the cache.

    The train split leaves out and counts pairs with an empty side or more than `config.max_length`
    tokens. Other splits keep all pairs; an empty side is `[EOS_ID]`.
    """
    max_length = config.max_length if split == "train" else None
    encode = partial(tokenize, vocabulary=vocabulary, max_length=max_length)
    return _cached_examples(config, corpus, split, encode, vocabulary.fingerprint, str(max_length))


def prepare_text(
    config: DataConfig, corpus: Corpus, vocabulary: Vocabulary, split: str, *, bidirectional: bool
) -> Examples:
    """Tokenize documents of one language into arrays, or load them from the cache.

    Sources are empty. Targets are sequences, which `config.text_rows` cuts from the documents.

    Args:
      bidirectional: whether a token attends to later tokens. If so, each sequence begins with
        `BOS_ID`, and documents of every split are cut; otherwise only those of train are cut.
    """
    limit = config.max_length if split == "train" or bidirectional else None
    cut, bos = config.text_rows, bidirectional
    encode = partial(tokenize_text, vocabulary=vocabulary, max_length=limit, cut=cut, bos=bos)
    key = (str(limit), cut, "with begin") if bos else (str(limit), cut)
    return _cached_examples(config, corpus, split, encode, vocabulary.fingerprint, *key)


def _cached_examples(
    config: DataConfig, corpus: Corpus, split: str, encode: _Tokenizer, *key: str
) -> Examples:
    """Return the token arrays of a split from the cache, and make them if they are missing.

    Args:
      key: the vocabulary and the options on which the arrays depend, besides the text.
    """

    def contents() -> Contents:
        if split == "train" and corpus.components:
            corpora, weights = zip(*corpus.components, strict=True)
            # Each corpus is tokenized once, into a cache entry that other weights reuse.
            parts = [_cached_examples(config, part, split, encode, *key) for part in corpora]
            examples = concatenate([*chain.from_iterable(map(repeat, parts, weights))])
        else:
            examples = encode(corpus.pairs(split))
        counts = {"skipped": examples.skipped, "num_pairs_read": examples.num_pairs_read}
        arrays = {f"{name}.npy": getattr(examples, name) for name in _ARRAYS}
        return {**arrays, _COUNTS: json.dumps(counts).encode()}

    digest = _hash(_FORMAT_VERSION, corpus.fingerprint(split), *key)
    folder = entry(config, f"tokens-{digest}", contents)
    counts = parse_object((folder / _COUNTS).read_bytes(), _COUNTS_SCHEMA)
    arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in _ARRAYS}
    return Examples(**arrays, **counts)


def _hash(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]


def tokenize(pairs: Iterable[Chunk], vocabulary: Vocabulary, max_length: int | None) -> Examples:
    """Tokenize pairs into arrays, chunk by chunk.

    Args:
      max_length: the most tokens of a side. Longer pairs, and pairs with an empty side, are left
        out and counted. None keeps all pairs.
    """
    num_ids = max(vocabulary.source_size, len(vocabulary))
    dtype = np.uint16 if num_ids <= 1 << 16 else np.int32
    parts = [Examples(*flatten([], dtype), *flatten([], dtype), _NONE_SKIPPED, 0)]
    for source_lines, target_lines in pairs:
        targets = _encode(vocabulary.encode_targets, target_lines, max_length)
        # Documents have no sources.
        sources = _encode(vocabulary.encode, source_lines, max_length) or [[]] * len(targets)
        skipped, num_read = _NONE_SKIPPED, len(targets)
        if max_length is not None:
            lengths = [np.array([*map(len, side)]) for side in (sources, targets)]
            # An empty side has one token, `EOS_ID`.
            faults = lengths[0] == 1, lengths[1] == 1, np.maximum(*lengths) > max_length
            reason = np.select(faults, [1, 2, 3])
            skipped = dict(zip(skipped, np.bincount(reason, minlength=4)[1:].tolist(), strict=True))
            sources, targets = ([*compress(side, reason == 0)] for side in (sources, targets))
        arrays = *flatten(sources, dtype), *flatten(targets, dtype)
        parts.append(Examples(*arrays, skipped, num_read))
    return concatenate(parts)


def tokenize_text(
    pairs: Iterable[Chunk], vocabulary: Vocabulary, max_length: int | None, cut: str, *, bos: bool
) -> Examples:
    """Tokenize documents, which are the targets of empty sources, and cut them into sequences.

    Args:
      max_length: the most tokens of a sequence; None cuts no document.
      cut: "documents" cuts each document separately; "run_on" cuts the joined documents.
      bos: whether each sequence begins with `BOS_ID`.
    """
    documents = tokenize((([], targets) for _, targets in pairs), vocabulary, None)
    tokens, offsets = documents.target_tokens, documents.target_offsets
    if max_length is not None:
        lengths = np.diff(offsets) if cut == "documents" else offsets[-1:]
        offsets = offsets_of(_cut(lengths, max_length - bos))
    if bos:
        tokens = np.insert(tokens, offsets[:-1], BOS_ID)
        offsets += np.arange(len(offsets))
    source_arrays = np.empty(0, tokens.dtype), np.zeros(len(offsets), np.int64)
    return Examples(*source_arrays, tokens, offsets, {}, documents.num_pairs_read)


def _cut(lengths: Int64[np.ndarray, " documents"], limit: int) -> Int64[np.ndarray, " parts"]:
    """Cut documents into parts of at most `limit` tokens, and return the lengths of the parts."""
    num_parts = -(-lengths // limit)  # of each document
    part_lengths = np.full(num_parts.sum(), limit, np.int64)
    last_parts = np.cumsum(num_parts)[lengths > 0] - 1  # the last part of each document
    part_lengths[last_parts] = ((lengths - 1) % limit + 1)[lengths > 0]
    return part_lengths


def concatenate(splits: Sequence[Examples]) -> Examples:
    """Concatenate the pairs of several splits."""
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
    """Move all source tokens but the first before the target, so that a model predicts them too."""
    begins, num_moved = split.source_offsets[:-1], split.source_lengths - 1
    offsets = offsets_of(num_moved + split.target_lengths)
    source_tokens = np.asarray(split.source_tokens)
    tokens = np.empty(offsets[-1], source_tokens.dtype)
    tokens[ranges(offsets[:-1], num_moved)] = source_tokens[ranges(begins + 1, num_moved)]
    target_cells = ranges(offsets[:-1] + num_moved, split.target_lengths)
    tokens[target_cells] = np.asarray(split.target_tokens)
    source_arrays = source_tokens[begins], np.arange(len(begins) + 1, dtype=np.int64)
    return Examples(*source_arrays, tokens, offsets, split.skipped, split.num_pairs_read)


def _encode(
    encode: Callable[[list[str]], list[list[int]]], lines: list[str], max_length: int | None
) -> list[list[int]]:
    """Encode lines as subword ids; a line far too long becomes `max_length + 1` times `EOS_ID`."""
    if max_length is None:
        return encode(lines)
    # SentencePiece needs 100 bytes of memory per character, so a file without line ends could use
    # up the memory.
    limit = max(_MAX_CHARACTERS, _LONGEST_SUBWORD * (max_length + 1))
    too_long = [index for index, line in enumerate(lines) if len(line) > limit]
    for index in too_long:
        lines[index] = ""
    rows = encode(lines)
    for index in too_long:
        rows[index] = [EOS_ID] * (max_length + 1)
    return rows


def flatten(
    sentences: Sequence[list[int]], dtype: type[np.integer]
) -> tuple[Integer[np.ndarray, " tokens"], Int64[np.ndarray, " offsets"]]:
    """Concatenate the tokens of sentences, and return them with the offsets of the sentences."""
    lengths = np.fromiter(map(len, sentences), np.int32, len(sentences))
    tokens = np.fromiter(chain.from_iterable(sentences), dtype, int(lengths.sum()))
    return tokens, offsets_of(lengths)


def windows(split: Examples, length: int, stride: int, start: int) -> Examples:
    """Cut text into windows for scoring, with each token in one target, and its context as source.

    The first window of a sequence scores `length` tokens. Each later window scores the next
    `stride` tokens, with the `length - stride` tokens before them as context::

        length 4, stride 2     source: start          target: a b c d
                               source: start c d      target: e f
                               source: start e f      target: g

    Args:
      split: sequences of text, with empty sources.
      length: the most tokens that a window reads to predict from, `start` included.
      stride: the number of tokens that a later window scores; at most `length`.
      start: the id at the beginning of every window, as in training.
    """
    lengths = np.diff(split.target_offsets)
    num_later = np.maximum(-(-(lengths - length) // stride), 0)
    counts = num_later + (lengths > 0)
    # One element per window: its sequence, its index there, and positions in the sequence.
    sequence = np.repeat(np.arange(len(lengths)), counts)
    index = np.arange(len(sequence)) - np.repeat(np.cumsum(counts) - counts, counts)
    begin = np.where(index == 0, 0, length + (index - 1) * stride)
    end = np.minimum(length + index * stride, lengths[sequence])
    context_begin = np.where(index == 0, 0, begin - (length - stride))
    offsets = split.target_offsets[sequence]
    tokens = np.asarray(split.target_tokens)
    source_lengths, target_lengths = begin - context_begin + 1, end - begin
    sources = tokens[ranges(offsets + context_begin - 1, source_lengths)]
    targets = tokens[ranges(offsets + begin, target_lengths)]
    source_offsets, target_offsets = offsets_of(source_lengths), offsets_of(target_lengths)
    sources[source_offsets[:-1]] = start  # replaces the token before the context
    return Examples(sources, source_offsets, targets, target_offsets, {}, split.num_pairs_read)


class TrainText(NamedTuple):
    """The functions by which a task makes training examples from text."""

    tokenize: _Tokenizer
    """A function that converts pairs of lines to token arrays."""
    examples: Callable[[Examples], Examples]
    """A function that converts token arrays to examples."""
    key: tuple[str | int | float | bool, ...]
    """The options on which the arrays and examples depend, besides text and vocabulary."""


def document_text(
    config: DataConfig,
    vocabulary: Vocabulary,
    examples: Callable[[Examples], Examples],
    *,
    bos: bool,
) -> TrainText:
    """Return the functions that turn documents in one language into training examples.

    Args:
      examples: converts tokenized documents to the examples of a task.
      bos: whether each sequence begins with `BOS_ID`.
    """
    limit, cut = config.max_length, config.text_rows
    encode = partial(tokenize_text, vocabulary=vocabulary, max_length=limit, cut=cut, bos=bos)
    return TrainText(encode, examples, ("documents", limit, cut, bos))
