"""A corpus tokenised once into memory-mapped arrays.

Everything made is kept in a cache under the fingerprint of what it was made from, so a second
start hashes the corpus, which is quick, and tokenises nothing. Entries appear whole or not at all:
two processes may make the same one at once, and one that is killed leaves nothing that looks
finished.
"""

import contextlib
import functools
import hashlib
import json
import shutil
import tempfile
from dataclasses import dataclass, fields
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import platformdirs
from jaxtyping import Bool, Int32, Int64, Integer

from t2t_jax.config import DataConfig
from t2t_jax.data.corpus import Corpus
from t2t_jax.data.vocabulary import RECIPE_VERSION, Vocabulary, train_vocabulary
from t2t_jax.errors import UserError

_FORMAT_VERSION = 1


class _Side(NamedTuple):
    """One side of consecutive pairs: all its tokens, and the length of each sentence."""

    tokens: Integer[np.ndarray, " tokens"]
    lengths: Int32[np.ndarray, " pairs"]


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
    """Pairs left out, by reason: `empty_source`, `empty_target`, `too_long`."""
    num_pairs_read: int
    """Pairs in the corpus: those kept and those skipped."""

    def __len__(self) -> int:
        """Number of pairs kept."""
        return len(self.source_offsets) - 1

    @functools.cached_property
    def source_lengths(self) -> Int32[np.ndarray, " pairs"]:
        """Tokens of each source sentence, end of sentence included."""
        return np.diff(self.source_offsets).astype(np.int32)

    @functools.cached_property
    def target_lengths(self) -> Int32[np.ndarray, " pairs"]:
        """Tokens of each target sentence, end of sentence included."""
        return np.diff(self.target_offsets).astype(np.int32)


_ARRAYS = tuple(field.name for field in fields(TokenizedSplit))[:4]


def prepare_vocabulary(config: DataConfig, corpus: Corpus) -> Vocabulary:
    """The vocabulary of a corpus's train split: from the cache, or learned now.

    Raises:
      UserError: there is no train split, or `vocab_size` does not suit it.
    """
    key = _hash(RECIPE_VERSION, corpus.fingerprint("train"), config.vocab_size)
    path = _cache(config) / f"vocabulary-{key}.model"
    with contextlib.suppress(UserError):  # neither there nor whole: learn it
        return Vocabulary.load(path)
    vocabulary = train_vocabulary(
        corpus.pairs("train"), config.vocab_size, across_scripts=corpus.is_treebank
    )
    vocabulary.save(path)
    return vocabulary


def prepare(
    config: DataConfig, corpus: Corpus, vocabulary: Vocabulary, split: str
) -> TokenizedSplit:
    """A split as token arrays: from the cache, or tokenised now.

    Pairs with an empty side or more than `config.max_length` tokens are left out of train and
    counted. Every other split keeps all its pairs; there an empty side is `[EOS_ID]`.

    Raises:
      UserError: there is no such split, or a line of it cannot be read.
    """
    max_length = config.max_length if split == "train" else None
    key = _hash(_FORMAT_VERSION, corpus.fingerprint(split), vocabulary.fingerprint, str(max_length))
    entry = _cache(config) / f"tokens-{key}"
    if entry.exists():
        with contextlib.suppress(
            OSError, EOFError, ValueError, KeyError, TypeError, AttributeError
        ):
            return _open(entry)
        shutil.rmtree(entry, ignore_errors=True)  # damaged
    with tempfile.TemporaryDirectory(dir=entry.parent, prefix="unfinished-") as folder:
        unfinished = Path(folder) / "entry"
        unfinished.mkdir()
        _write(unfinished, _tokenize(corpus, vocabulary, split, max_length))
        with contextlib.suppress(OSError):  # another process was first, with the same content
            unfinished.rename(entry)
        return _open(entry)


def _cache(config: DataConfig) -> Path:
    if config.cache_dir:
        cache = Path(config.cache_dir).expanduser()
    else:
        cache = platformdirs.user_cache_path("t2t_jax") / "corpora"
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"cache directory {cache} cannot be made ({error.strerror}); set data.cache_dir"
        ) from error
    return cache


def _hash(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]


def _open(entry: Path) -> TokenizedSplit:
    """Maps a cache entry into memory.

    Raises:
      OSError, EOFError, ValueError, KeyError, TypeError, AttributeError: the entry is damaged.
    """
    counts = json.loads((entry / "counts.json").read_text())
    num_kept = counts["num_pairs_read"] - sum(counts["skipped"].values())
    arrays = {name: np.load(entry / f"{name}.npy", mmap_mode="r") for name in _ARRAYS}
    for side in ("source", "target"):
        tokens, offsets = arrays[f"{side}_tokens"], arrays[f"{side}_offsets"]
        if len(offsets) != num_kept + 1 or len(tokens) != offsets[-1]:
            raise ValueError(f"{entry} does not fit together")
    return TokenizedSplit(**arrays, **counts)


def _write(entry: Path, split: TokenizedSplit) -> None:
    for name in _ARRAYS:
        np.save(entry / f"{name}.npy", getattr(split, name))
    counts = {"skipped": split.skipped, "num_pairs_read": split.num_pairs_read}
    (entry / "counts.json").write_text(json.dumps(counts))


def _tokenize(
    corpus: Corpus, vocabulary: Vocabulary, split: str, max_length: int | None
) -> TokenizedSplit:
    """Tokenises a split chunk by chunk; of the text, only one chunk is in memory at a time."""
    dtype = np.uint16 if len(vocabulary) <= 1 << 16 else np.int32
    skipped = dict.fromkeys(("empty_source", "empty_target", "too_long"), 0)
    num_pairs_read = 0
    sources: list[_Side] = []
    targets: list[_Side] = []
    for lines in corpus.pairs(split):
        source, target = (_flatten(vocabulary.encode(side), dtype) for side in lines)
        num_pairs_read += len(lines[0])
        if max_length is not None:
            reason = _reasons_to_skip(source.lengths, target.lengths, max_length)
            for number, name in enumerate(skipped, start=1):
                skipped[name] += int(np.count_nonzero(reason == number))
            source, target = _select(source, reason == 0), _select(target, reason == 0)
        sources.append(source)
        targets.append(target)
    return TokenizedSplit(*_join(sources, dtype), *_join(targets, dtype), skipped, num_pairs_read)


def _flatten(sentences: list[list[int]], dtype: type[np.integer]) -> _Side:
    lengths = np.fromiter(map(len, sentences), np.int32, len(sentences))
    tokens = np.fromiter(chain.from_iterable(sentences), dtype, int(lengths.sum()))
    return _Side(tokens, lengths)


def _reasons_to_skip(
    source_lengths: Int32[np.ndarray, " pairs"],
    target_lengths: Int32[np.ndarray, " pairs"],
    max_length: int,
) -> Integer[np.ndarray, " pairs"]:
    """0 to keep a pair, or the number of the first reason to skip it, in the order counted."""
    empty_source, empty_target = source_lengths == 1, target_lengths == 1  # only EOS_ID
    too_long = np.maximum(source_lengths, target_lengths) > max_length
    return np.select([empty_source, empty_target, too_long], [1, 2, 3])


def _select(side: _Side, keep: Bool[np.ndarray, " pairs"]) -> _Side:
    return _Side(side.tokens[np.repeat(keep, side.lengths)], side.lengths[keep])


def _join(
    sides: list[_Side], dtype: type[np.integer]
) -> tuple[Integer[np.ndarray, " tokens"], Int64[np.ndarray, " offsets"]]:
    """All tokens, and the offsets of the sentences in them."""
    tokens = np.concatenate([np.empty(0, dtype), *(side.tokens for side in sides)])
    lengths = np.concatenate([np.zeros(1, np.int64), *(side.lengths for side in sides)])
    return tokens, np.cumsum(lengths, dtype=np.int64)
