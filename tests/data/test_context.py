"""Contexts of sentences: which they are, whatever the chunks, and where documents end."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t2t_jax.batch import EOS_ID
from t2t_jax.config import Config, DataConfig
from t2t_jax.data.context import CONTEXT_BREAK, DocumentContext, context_of
from t2t_jax.data.corpus import open_corpus
from t2t_jax.data.rows import FlatSentences
from t2t_jax.data.tokenized import flattened, prepare_pairs, tokenize, unflattened
from t2t_jax.data.vocabularies.learning import train_vocabulary
from t2t_jax.errors import UserError
from t2t_jax.tasks import task_of

BREAK = 4
DOCUMENTS = [
    [("the dog", "der Hund"), ("it runs", "er rennt"), ("it is here", "er ist da")],
    [("the cat", "die Katze"), ("it runs", "sie rennt")],
]


def expected(
    pairs: list[tuple[list[int], list[int]]], number: int, most: int, *, both: bool
) -> list[tuple[list[int], list[int]]]:
    """Each pair with its context, found sentence by sentence."""
    found = []
    for place, own in enumerate(pairs):
        context: list[tuple[list[int], list[int]]] = []
        for before in reversed(pairs[max(0, place - number) : place]):
            longer = [before, *context, own]
            sides = [sum(len(one[side]) for one in longer) for side in ((0, 1) if both else (0,))]
            if own[0] == [EOS_ID] or before[0] == [EOS_ID] or max(sides) > most:
                break
            context.insert(0, before)
        source, target = (
            [*(token for one in context for token in [*one[side][:-1], BREAK]), *own[side]]
            for side in (0, 1)
        )
        found.append((source, target if both else own[1]))
    return found


_sentence = st.lists(st.integers(10, 99), max_size=4).map(lambda tokens: [*tokens, EOS_ID])


@settings(deadline=None)
@given(
    st.lists(st.tuples(_sentence, _sentence), min_size=1, max_size=12),
    st.lists(st.integers(1, 12), max_size=3),
    st.integers(1, 3),
    st.integers(3, 16),
    st.booleans(),
)
def test_contexts_are_those_found_sentence_by_sentence_whatever_the_chunks(
    pairs, cuts, number, most, both
):
    context = DocumentContext(number, most, BREAK, BREAK if both else None)
    extended, found = context.following(), []
    bounds = sorted({0, *cuts, len(pairs)})
    for start, end in pairwise(bounds):
        if chunk := pairs[start:end]:
            sides = [flattened(list(side), np.uint16) for side in zip(*chunk, strict=True)]
            found += zip(*map(unflattened, extended((sides[0], sides[1]))), strict=True)
    wanted = expected(pairs, number, most, both=both)
    assert found == wanted
    for (_, target), (_, own) in zip(found, pairs, strict=True):
        assert list(context.without(tuple(target))) == own


def test_sources_without_targets_have_the_contexts_of_training():
    side = FlatSentences(
        np.array([10, EOS_ID, 11, 12, EOS_ID, 13, EOS_ID]), np.array([2, 3, 2], np.int32)
    )
    context = DocumentContext(1, 16, BREAK, None)
    assert unflattened(context.sources(side, 16, 1)) == [
        [10, BREAK, 11, 12, EOS_ID],
        [11, 12, BREAK, 13, EOS_ID],
    ]
    assert unflattened(context.sources(side, 4, 1)) == [[11, 12, EOS_ID], [13, EOS_ID]]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """A corpus of two documents with a blank line between them."""
    lines = [*DOCUMENTS[0], ("", ""), *DOCUMENTS[1]]
    _write(tmp_path, "train", lines)
    _write(tmp_path, "dev", lines)
    data = {"corpus": f"text:{tmp_path}", "vocab_size": 60, "max_length": 24, "prefetch": 1}
    changes = {f"data.{name}": value for name, value in data.items()}
    return Config().replace(
        {**changes, "data.cache_dir": str(tmp_path / "cache"), "data.context_sentences": 1}
    )


def _write(folder: Path, split: str, lines: list[tuple[str, str]]) -> None:
    for language, side in zip(("en", "de"), zip(*lines, strict=True), strict=True):
        (folder / f"{split}.{language}").write_text("".join(f"{line}\n" for line in side))


def _texts(config: Config, split: str) -> tuple[list[tuple[str, str]], dict[str, int], int]:
    """The examples of a split as text, in which the break is written, and what was left out."""
    corpus = open_corpus(config.data)
    vocabulary = task_of(config.data.corpus).vocabulary(config, corpus)
    found = prepare_pairs(config.data, corpus, vocabulary, split)
    sides = [
        vocabulary.decode(unflattened(FlatSentences(np.asarray(tokens), lengths)))
        for tokens, lengths in (
            (found.source_tokens, found.source_lengths),
            (found.target_tokens, found.target_lengths),
        )
    ]
    return list(zip(*sides, strict=True)), found.skipped, found.num_pairs_read


@pytest.mark.parametrize("split", ["train", "dev"])
@pytest.mark.parametrize("sides", ["source", "both"])
def test_a_blank_line_ends_a_document_and_is_no_example(config, split, sides):
    pairs, skipped, read = _texts(config.replace({"data.context_sides": sides}), split)
    is_both = sides == "both"
    assert pairs == [
        ("the dog", "der Hund"),
        ("the dog<brk> it runs", "der Hund<brk> er rennt" if is_both else "er rennt"),
        ("it runs<brk> it is here", "er rennt<brk> er ist da" if is_both else "er ist da"),
        ("the cat", "die Katze"),
        ("the cat<brk> it runs", "die Katze<brk> sie rennt" if is_both else "sie rennt"),
    ]
    assert read == 5
    assert not any(skipped.values())


def test_ids_in_a_file_beside_end_documents_as_blank_lines_do(config, tmp_path):
    wanted = _texts(config, "train")
    _write(tmp_path, "train", [*DOCUMENTS[0], *DOCUMENTS[1]])
    (tmp_path / "train.doc").write_text("a\na\na\nb\nb\n")
    assert _texts(config, "train") == wanted
    plain = config.replace({"data.context_sentences": 0})
    assert [target for _, target in _texts(plain, "train")[0]] == [
        target for document in DOCUMENTS for _, target in document
    ]
    (tmp_path / "train.doc").write_text("a\na\n")
    with pytest.raises(UserError, match=r"train\.doc has 2 lines, but .*train\.en has 5"):
        open_corpus(config.data)


def test_shards_and_chunks_have_the_same_contexts(config):
    corpus = open_corpus(config.data)
    task = task_of(config.data.corpus)
    vocabulary = task.vocabulary(config, corpus)
    sources, targets = corpus.lines("train")
    chunks = [([one], [two]) for one, two in zip(sources, targets, strict=True)]
    context = context_of(config.data, vocabulary)
    whole = tokenize([(sources, targets)], vocabulary, 24, context)
    assert task.train_text(config, vocabulary).tokenize(chunks).source_tokens.tolist() == (
        whole.source_tokens.tolist()
    )
    assert (
        task.train_text(config, vocabulary).key
        != task.train_text(config.replace({"data.context_sides": "both"}), vocabulary).key
    )


def test_a_vocabulary_without_the_break_is_refused(config):
    corpus = open_corpus(config.data)
    vocabulary = train_vocabulary([corpus.lines("train")], 60)
    with pytest.raises(UserError, match=f"no entry {CONTEXT_BREAK}"):
        task_of(config.data.corpus).vocabulary(config, corpus, vocabulary)
    assert context_of(replace(config.data, context_sentences=0), vocabulary) is None


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"data.context_sentences": -1}, "context_sentences"),
        ({"data.context_sides": "both"}, "no effect without data.context_sentences"),
        (
            {"data.context_sentences": 1, "data.corpus": "trees:a"},
            "data.context_sentences=1 is for translation alone",
        ),
    ],
)
def test_what_has_no_context_is_refused(changes, why):
    with pytest.raises(UserError, match=why):
        Config().replace(changes)
    assert DataConfig().context_sentences == 0
