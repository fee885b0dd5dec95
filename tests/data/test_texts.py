"""Text of one language: documents, sequences of them, and windows over them."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t2t_jax.batch import EOS_ID
from t2t_jax.config import DataConfig
from t2t_jax.data.batching import Batches, describe_corpus
from t2t_jax.data.corpus import open_corpus
from t2t_jax.data.rows import Examples
from t2t_jax.data.tokenized import prepare_text, prepare_vocabulary, windows
from t2t_jax.errors import UserError

LINES = ["the first house", "", "a small house and a long long long street", " ", "", "the end"]


@pytest.fixture
def config(tmp_path):
    (tmp_path / "train.txt").write_text("\n".join(LINES) + "\n")
    (tmp_path / "dev.txt").write_text("a house\n")
    return DataConfig(
        task="language_modelling",
        corpus=f"text:{tmp_path}",
        vocab_size=40,
        max_length=8,
        source_tokens_per_step=16,
        target_tokens_per_step=16,
        cache_dir=str(tmp_path / "cache"),
    )


def changed(config, **changes):
    return DataConfig(**vars(config) | changes)


def split_of(config, split="train"):
    corpus = open_corpus(config)
    vocabulary = prepare_vocabulary(config, corpus)
    return prepare_text(config, corpus, vocabulary, split, bidirectional=False), vocabulary


def sequences(split):
    bounds = split.target_offsets.tolist()
    return [split.target_tokens[a:b].tolist() for a, b in pairwise(bounds)]


def test_a_document_is_a_line_or_the_lines_up_to_a_blank_one(config):
    def documents(how):
        return open_corpus(changed(config, documents=how)).lines("train")[1]

    assert documents("lines") == [LINES[0], LINES[2], LINES[5]]
    assert documents("paragraphs") == [LINES[0], LINES[2], LINES[5]]


def test_lines_of_a_paragraph_are_one_document(config, tmp_path):
    (tmp_path / "train.txt").write_text("one\ntwo\n\n \nthree\n\n")
    corpus = open_corpus(changed(config, documents="paragraphs"))
    assert corpus.lines("train") == (["", ""], ["one two", "three"])


def test_sequences_of_documents_are_cut_at_the_longest(config):
    split, vocabulary = split_of(config)
    expected = []
    for line in (LINES[0], LINES[2], LINES[5]):
        [tokens] = vocabulary.encode_targets([line])
        assert tokens[-1] == EOS_ID
        expected += [tokens[i : i + 8] for i in range(0, len(tokens), 8)]
    assert sequences(split) == expected
    assert not split.source_lengths.any()
    assert split.num_pairs_read == 3


def test_a_text_that_runs_on_is_cut_every_so_many_tokens(config):
    split, vocabulary = split_of(changed(config, text_rows="run_on"))
    documents = vocabulary.encode_targets([LINES[0], LINES[2], LINES[5]])
    whole = [token for document in documents for token in document]
    assert sequences(split) == [whole[i : i + 8] for i in range(0, len(whole), 8)]


@pytest.mark.parametrize("batching", ["pack", "bucket"])
def test_an_epoch_has_every_token_once_and_no_place_for_sources(config, batching):
    split, _ = split_of(config)
    batches = Batches(split, changed(config, batching=batching), seed=0)
    found = []
    for step in range(batches.steps_per_epoch):
        batch = batches(step)
        assert batch.inputs.tokens.shape == (len(batch.targets.tokens), 0)
        for tokens, segments in zip(batch.targets.tokens, batch.targets.segments, strict=True):
            numbers = range(1, segments.max() + 1)
            found += [tokens[segments == number].tolist() for number in numbers]
    assert sorted(found) == sorted(sequences(split))
    assert batches.padding_waste.keys() == {"target"}
    assert "3 documents read" in describe_corpus(batches)


def test_a_corpus_without_text_of_one_language_is_refused(config, tmp_path):
    with pytest.raises(UserError, match=r"no text of one language.*train\.txt"):
        open_corpus(changed(config, corpus="trees:x"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"has no train\.txt"):
        open_corpus(changed(config, corpus=f"text:{tmp_path / 'empty'}"))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 30), max_size=4), st.integers(1, 9), st.data())
def test_windows_score_every_token_once_with_enough_before_it(lengths, length, data):
    stride = data.draw(st.integers(1, length))
    tokens = np.arange(100, 100 + sum(lengths), dtype=np.uint16)
    offsets = np.cumsum([0, *lengths])
    empty = np.empty(0, np.uint16), np.zeros(len(offsets), np.int64)
    found = windows(Examples(*empty, tokens, offsets, {}, 0), length, stride, start=2)
    assert found.target_tokens.tolist() == tokens.tolist()
    ends = found.source_offsets
    sources = [found.source_tokens[a:b].tolist() for a, b in pairwise(ends)]
    begins = set(tokens[offsets[:-1]].tolist())
    for source, target in zip(sources, sequences(found), strict=True):
        first = target[0]
        assert source[0] == 2
        assert source[1:] == list(range(first - len(source) + 1, first))
        assert len(source) + len(target) - 1 <= length
        if first in begins:
            assert len(source) == 1
        else:
            assert len(source) == 1 + length - stride
            assert len(target) <= stride
        own = [a for a in offsets if a + 100 <= first][-1] + 100
        assert first - len(source) + 1 >= own  # no context from another sequence
