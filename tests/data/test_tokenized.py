"""A corpus is tokenised once, whatever happens meanwhile, and nothing is lost uncounted."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from t2t_jax.batch import EOS_ID
from t2t_jax.config import DataConfig
from t2t_jax.data import splits as splits_module
from t2t_jax.data import tokenized
from t2t_jax.data.corpus import open_corpus
from t2t_jax.data.tokenized import flatten, prepare_pairs, prepare_vocabulary
from t2t_jax.data.vocabularies.shared import SharedVocabulary
from tests.data.test_mixture import CountingVocabulary

TRAIN = [
    ("a small house", "ein kleines Haus"),
    ("", "leer"),
    ("the end", "das Ende"),
    ("empty", "\t"),
    ("", " "),
    ("long " * 30, "lang"),
    ("short", "kurz " * 30),
    ("the last house", "das letzte Haus"),
]
KEPT = [TRAIN[0], TRAIN[2], TRAIN[7]]


@pytest.fixture
def config(tmp_path):
    """Eight training pairs, of which three are kept, and two dev pairs."""
    text = tmp_path / "text"
    text.mkdir()
    for split, pairs in (("train", TRAIN), ("dev", [TRAIN[1], TRAIN[5]])):
        for side, language in enumerate(("en", "de")):
            lines = "".join(f"{pair[side]}\n" for pair in pairs)
            (text / f"{split}.{language}").write_text(lines)
    return DataConfig(
        corpus=f"text:{text}", vocab_size=50, max_length=24, cache_dir=str(tmp_path / "cache")
    )


def opened(config):
    corpus = open_corpus(config)
    return corpus, CountingVocabulary(prepare_vocabulary(config, corpus).serialized)


def sentences(split):
    def side(tokens, offsets):
        return [tokens[start:end].tolist() for start, end in pairwise(offsets)]

    source = side(split.source_tokens, split.source_offsets)
    return list(zip(source, side(split.target_tokens, split.target_offsets), strict=True))


@pytest.mark.parametrize("chunk_lines", [1, 3, 50_000])
def test_train_keeps_what_fits_and_counts_what_does_not(config, monkeypatch, chunk_lines):
    monkeypatch.setattr(splits_module, "CHUNK_LINES", chunk_lines)
    corpus, vocabulary = opened(config)
    split = prepare_pairs(config, corpus, vocabulary, "train")
    expected = [tuple(vocabulary.encode(list(pair))) for pair in KEPT]
    assert sentences(split) == expected
    assert split.skipped == {"empty_source": 2, "empty_target": 1, "too_long": 2}
    assert (split.num_pairs_read, len(split)) == (8, 3)
    assert split.source_lengths.tolist() == [len(source) for source, _ in expected]
    assert split.target_lengths.tolist() == [len(target) for _, target in expected]


def test_max_length_is_the_longest_that_is_kept(config):
    corpus, vocabulary = opened(config)
    longest = max(len(row) for pair in KEPT for row in vocabulary.encode(list(pair)))
    for max_length, kept in ((longest, 3), (longest - 1, 2)):
        shorter = DataConfig(**{**vars(config), "max_length": max_length})
        assert len(prepare_pairs(shorter, corpus, vocabulary, "train")) == kept


def test_dev_keeps_every_pair(config):
    corpus, vocabulary = opened(config)
    split = prepare_pairs(config, corpus, vocabulary, "dev")
    assert sentences(split)[0][0] == [EOS_ID]
    assert split.source_lengths[1] > config.max_length
    assert (len(split), split.num_pairs_read, sum(split.skipped.values())) == (2, 2, 0)


def test_a_second_start_reads_memory_mapped_arrays(config):
    corpus, vocabulary = opened(config)
    first = sentences(prepare_pairs(config, corpus, vocabulary, "train"))
    encoded = vocabulary.encoded
    second = prepare_pairs(config, corpus, vocabulary, "train")
    assert len(vocabulary.encoded) == len(encoded) == 2 * len(TRAIN)
    assert sentences(second) == first
    assert isinstance(second.source_tokens, np.memmap)
    assert isinstance(second.target_offsets, np.memmap)


def test_the_vocabulary_is_learned_once(config, monkeypatch):
    corpus = open_corpus(config)
    learned = prepare_vocabulary(config, corpus)
    with monkeypatch.context() as patch:
        patch.setattr(tokenized, "train_vocabulary", None)
        assert prepare_vocabulary(config, corpus).fingerprint == learned.fingerprint


def test_changed_text_or_limits_or_vocabulary_are_tokenised_anew(config):
    corpus, vocabulary = opened(config)
    prepare_pairs(config, corpus, vocabulary, "train")
    other_limit = DataConfig(**{**vars(config), "max_length": 100})
    assert len(prepare_pairs(other_limit, corpus, vocabulary, "train")) == 5
    other_vocabulary = prepare_vocabulary(DataConfig(**{**vars(config), "vocab_size": 45}), corpus)
    expected = [tuple(other_vocabulary.encode(list(pair))) for pair in KEPT]
    assert sentences(prepare_pairs(config, corpus, other_vocabulary, "train")) == expected
    train = Path(config.corpus.removeprefix("text:")) / "train.en"
    train.write_text(train.read_text().replace("the end", ""))
    split = prepare_pairs(config, open_corpus(config), vocabulary, "train")
    assert split.skipped["empty_source"] == 3


def test_an_interrupted_start_leaves_nothing_behind(config):
    corpus, vocabulary = opened(config)

    class Interrupted(SharedVocabulary):
        def encode(self, lines):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare_pairs(config, corpus, Interrupted(vocabulary.serialized), "train")
    assert [path.name[:10] for path in Path(config.cache_dir).iterdir()] == ["vocabulary"]
    assert len(prepare_pairs(config, corpus, vocabulary, "train")) == 3


def test_processes_may_make_the_same_entry_at_once(config, monkeypatch):
    corpus, vocabulary = opened(config)
    made = prepare_pairs(config, corpus, vocabulary, "train")
    (entry,) = Path(config.cache_dir).glob("tokens-*")
    shutil.move(entry, entry.with_name("made-by-another"))
    tokenize = tokenized.tokenize

    def tokenize_while_another_finishes(*arguments, **options):
        entry.with_name("made-by-another").rename(entry)
        return tokenize(*arguments, **options)

    monkeypatch.setattr(tokenized, "tokenize", tokenize_while_another_finishes)
    assert sentences(prepare_pairs(config, corpus, vocabulary, "train")) == sentences(made)
    left = {path.name.split("-")[0] for path in Path(config.cache_dir).iterdir()}
    assert left == {"vocabulary", "tokens"}


def test_many_threads_get_the_same_arrays(config):
    corpus, vocabulary = opened(config)
    with ThreadPoolExecutor(4) as pool:
        splits = list(
            pool.map(lambda _: prepare_pairs(config, corpus, vocabulary, "train"), range(4))
        )
    assert all(sentences(split) == sentences(splits[0]) for split in splits)


def test_tokens_take_two_bytes_where_the_vocabulary_allows(config):
    corpus, vocabulary = opened(config)

    class Huge(SharedVocabulary):
        def __len__(self):
            return (1 << 16) + 1

        def encode(self, lines):
            return [[1 << 16, EOS_ID] for _ in lines]

        @property
        def fingerprint(self):
            return "huge"

    assert prepare_pairs(config, corpus, vocabulary, "train").source_tokens.dtype == np.uint16
    huge = prepare_pairs(config, corpus, Huge(vocabulary.serialized), "train")
    assert huge.target_tokens.dtype == np.int32
    assert huge.target_tokens.max() == 1 << 16


def test_a_split_of_which_nothing_is_left_is_counted(config):
    train = Path(config.corpus.removeprefix("text:")) / "train.en"
    _, vocabulary = opened(config)
    train.write_text("\n" * len(TRAIN))
    for _ in range(2):  # made, then read
        split = prepare_pairs(config, open_corpus(config), vocabulary, "train")
        assert len(split) == 0
        assert split.skipped == {"empty_source": 8, "empty_target": 0, "too_long": 0}


@pytest.mark.parametrize("side", ["en", "de"])
def test_a_giant_line_is_too_long_without_being_tokenised(config, monkeypatch, side):
    """SentencePiece takes 100 bytes for a character, and a file without line ends is one line."""
    monkeypatch.setattr(tokenized, "_MAX_CHARACTERS", 500)
    path = Path(config.corpus.removeprefix("text:")) / f"train.{side}"
    lines = path.read_text().split("\n")
    lines[2] = "house " * 1000
    path.write_text("\n".join(lines))
    corpus, vocabulary = opened(config)
    longest = []

    class Watched(SharedVocabulary):
        def encode(self, lines):
            longest.append(max(map(len, lines)))
            return super().encode(lines)

    split = prepare_pairs(config, corpus, Watched(vocabulary.serialized), "train")
    assert max(longest) < 500
    assert split.skipped == {"empty_source": 2, "empty_target": 1, "too_long": 3}
    assert sentences(split) == [
        tuple(vocabulary.encode(list(pair))) for pair in (TRAIN[0], TRAIN[7])
    ]


def test_after_their_first_tokens_sources_are_the_begin_of_targets(config):
    corpus, vocabulary = opened(config)
    split = prepare_pairs(config, corpus, vocabulary, "train")
    found = tokenized.after_first_tokens(split)
    wanted = [(source[:1], source[1:] + target) for source, target in sentences(split)]
    assert sentences(found) == wanted
    assert (len(found), found.num_pairs_read, found.skipped) == (3, 8, split.skipped)


@pytest.mark.parametrize("rows", [[], [[1]], [[3, 1], [], [1]]])
def test_flat_sentences_have_the_tokens_and_the_length_of_each_row(rows):
    tokens, offsets = flatten(rows, np.int32)
    assert tokens.tolist() == [token for row in rows for token in row]
    assert np.diff(offsets).tolist() == [len(row) for row in rows]
