"""New subwords of a trained vocabulary: the old ones stay, and merges go on where they ended."""

import io
import re
from collections import Counter
from itertools import chain, pairwise

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2

from t2t_jax.batch import UNK_ID
from t2t_jax.config import DataConfig
from t2t_jax.data.corpus import open_corpus
from t2t_jax.data.vocabularies.extending import (
    Extension,
    check_extensible,
    extend_vocabulary,
    spare_ids,
)
from t2t_jax.data.vocabularies.labelled import labelled_vocabulary
from t2t_jax.data.vocabularies.learning import train_vocabulary
from t2t_jax.data.vocabularies.shared import SharedVocabulary
from t2t_jax.errors import UserError

DEV, TEST = (open_corpus(DataConfig()).lines(split) for split in ("dev", "test"))
OTHER_SCRIPT = ["Мама мыла раму", "мама и папа, 12 раз", "раму мыла мама", "12%, 12€"] * 3
TOKENS = ["<2ru>", "<2"]
WORDS = ["abab", "abc", "bca", "cab", "aabb", "ccab", "abcabc", "bcb", "aab"]
TINY = train_vocabulary([(WORDS * 5, WORDS * 5)], 18)


@pytest.fixture(scope="module")
def small() -> SharedVocabulary:
    """Without bytes: every character of its training text is an entry."""
    return train_vocabulary([DEV], 300)


@pytest.fixture(scope="module")
def large() -> SharedVocabulary:
    """With bytes, and with protected tokens of which one begins another."""
    return train_vocabulary([DEV], 2100, protected_tokens=TOKENS)


def most(vocabulary: SharedVocabulary, lines: list[str], number: int) -> Extension | None:
    """So many new subwords of a text, or all that it has; None if it has none."""
    try:
        return extend_vocabulary(vocabulary, [(lines, lines)], number)
    except UserError as error:
        has = re.search(r"has (\d+) new subwords", str(error))
        assert has
        return most(vocabulary, lines, int(has[1])) if has[1] != "0" else None


def old_pieces(vocabulary: SharedVocabulary, line: str) -> list[str]:
    """The library's own split of a line, with a run of unknown characters one by one."""
    known = {piece for [piece] in vocabulary.pieces([[n] for n in range(len(vocabulary))])}
    split = sentencepiece.SentencePieceProcessor(model_proto=vocabulary.serialized)
    pieces = split.encode(line, out_type=str)
    return [one for piece in pieces for one in ([piece] if piece in known else piece)]


def merged_in_order(vocabulary: SharedVocabulary, new: list[str], line: str) -> list[str]:
    """The old split of a line, in which each new subword in turn joins neighbours from the left.

    After each, entries that come before it are joined as far as they go.
    """
    entries = sentencepiece_model_pb2.ModelProto.FromString(vocabulary.serialized).pieces
    order = [one.piece for one in sorted(entries, key=lambda one: -one.score) if one.type == 1]
    pieces = old_pieces(vocabulary, line)

    def join(wanted: str) -> bool:
        for place, (left, right) in enumerate(pairwise(pieces)):
            if left + right == wanted:
                pieces[place : place + 2] = [wanted]
                return True
        return False

    for number, subword in enumerate(new):
        while join(subword):
            while any(join(earlier) for earlier in [*order, *new[:number]]):
                pass
    return pieces


_lines = st.lists(st.text("abcd ", min_size=1, max_size=24), min_size=1, max_size=8)


@settings(max_examples=60)
@given(text=_lines, line=st.text("abcde ", max_size=40))
def test_a_line_is_split_as_before_and_then_by_the_new_merges_in_order(text, line):
    found = most(TINY, text, 6)
    if found is not None:
        for one in (line, *text):
            expected = merged_in_order(TINY, list(found.pieces), one)
            assert old_pieces(found.vocabulary, one) == expected


@settings(max_examples=60)
@given(text=_lines)
def test_the_most_frequent_pair_of_neighbours_is_the_next_subword(text):
    learned = ["d"] if "d" in "".join(text) else []  # which the old vocabulary cannot spell
    for _ in range(6 - len(learned)):
        counts: Counter[str] = Counter()
        for line in (*text, *text):
            for left, right in pairwise(merged_in_order(TINY, learned, line)):
                counts[left + right] += "\u2581" not in right
        best = min(counts, key=lambda one: (-counts[one], one), default="")
        if counts[best] < 2:
            break
        learned.append(best)
    found = most(TINY, text, 6)
    assert learned == ([] if found is None else list(found.pieces))


def test_old_entries_stay_and_new_ones_come_after_them(small):
    found = extend_vocabulary(small, [TEST], 40)
    before, after = (
        sentencepiece_model_pb2.ModelProto.FromString(one.serialized)
        for one in (small, found.vocabulary)
    )
    assert [*after.pieces[:300]] == [*before.pieces]
    assert [one.piece for one in after.pieces[300:]] == list(found.pieces)
    assert max(one.score for one in after.pieces[300:]) < min(one.score for one in before.pieces)
    assert after.trainer_spec.vocab_size == len(found.vocabulary) == 340
    alike = 0
    for old, new in zip(*(one.encode(DEV[0]) for one in (small, found.vocabulary)), strict=True):
        as_before = [[n] if n < 300 else found.replaced[n - 300] for n in new]
        assert [*chain.from_iterable(as_before)] == old
        alike += old == new
    assert 0 < alike < len(DEV[0])
    again = extend_vocabulary(small, [TEST], 40)
    assert again == found._replace(vocabulary=again.vocabulary)
    assert again.vocabulary.serialized == found.vocabulary.serialized


def test_what_a_new_subword_takes_the_place_of_is_counted_in_the_new_text():
    found = extend_vocabulary(TINY, [(["dab dab dad", "abcabc e"], ["dab", "dab"])], 3)
    entries = {piece: n for n, [piece] in enumerate(TINY.pieces([[n] for n in range(18)]))}
    # d occurs 6 times and e once; then of the pairs \u2581 d (5), d ab (4), \u2581d ab (4)
    assert found.pieces == ["d", "\u2581d", "\u2581dab"]
    assert "ab" in entries
    unknown, space = [UNK_ID], [entries["\u2581"]]
    assert found.replaced == [unknown, [*space, *unknown], [*space, *unknown, entries["ab"]]]
    assert found.counts == [1, 1, 4]
    # the old vocabulary has the unknown entry 7 times (with e), and a space that starts a word 6
    assert found.shares == pytest.approx([1 / 7, 1 / 6, 4 / 6])


def test_the_characters_of_another_script_come_first(small, large):
    for vocabulary, has_bytes in ((small, False), (large, True)):
        found = extend_vocabulary(vocabulary, [(OTHER_SCRIPT, OTHER_SCRIPT)], 30)
        characters = [piece for piece in found.pieces if len(piece) == 1]
        assert [*found.pieces[: len(characters)]] == characters
        counts = Counter("".join(OTHER_SCRIPT))
        assert characters == sorted(characters, key=lambda one: (-counts[one], one))
        first = found.replaced[0]
        in_bytes = [f"<0x{byte:02X}>" for byte in characters[0].encode()]
        assert vocabulary.pieces([first]) == [in_bytes if has_bytes else ["<unk>"]]
        spare = spare_ids(vocabulary)
        assert {UNK_ID, *first} <= spare
        assert any(token in spare for row in vocabulary.encode(OTHER_SCRIPT) for token in row)
        assert not spare & {n for row in found.vocabulary.encode(OTHER_SCRIPT) for n in row}
        assert found.vocabulary.decode(found.vocabulary.encode(OTHER_SCRIPT)) == OTHER_SCRIPT
        for piece in found.pieces:
            letters = piece.removeprefix("\u2581")
            assert letters.isalpha() or not any(map(str.isalpha, letters))


def test_protected_tokens_stay_alone(large):
    lines = ["<2ru>abc <2abc", "<2ru>abc<2ru>abc"] * 4
    found = extend_vocabulary(large, [(lines, lines)], 1)
    split = found.vocabulary.pieces(found.vocabulary.encode(lines[:1]))
    assert split == [["\u2581", "<2ru>", "abc", "\u2581", "<2", "abc", "</s>"]]
    assert found.vocabulary.protected_tokens == frozenset(TOKENS)


@pytest.fixture(scope="module")
def extended(large) -> SharedVocabulary:
    return extend_vocabulary(large, [(OTHER_SCRIPT, OTHER_SCRIPT)], 30).vocabulary


@settings(max_examples=50)
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_survives_an_extended_vocabulary_with_bytes(large, extended, text):
    assert extended.decode(extended.encode([text])) == large.decode(large.encode([text]))


def test_long_runs_without_a_space_are_learned_from(small):
    line = "".join(f"{n:x}" for n in range(2000))
    assert len(extend_vocabulary(small, [([line], [line])], 20).pieces) == 20


def test_a_text_with_fewer_new_subwords_is_refused_with_their_number(small):
    with pytest.raises(UserError, match=r"has 4 new subwords .* fewer than 9; ask for at m"):
        extend_vocabulary(small, [(["xyz qqq"], ["xyz"])], 9)


def of_kind(**settings: object) -> SharedVocabulary:
    """A SentencePiece model that was learned in another way."""
    model = io.BytesIO()
    ids = {"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(DEV[0]), model_writer=model, vocab_size=200, minloglevel=2,
        **ids, **settings,
    )  # fmt: skip
    return SharedVocabulary(model.getvalue())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: of_kind(model_type="unigram"), r"run has a Sente.* of another kind \(UNIGRAM\)"),
        (lambda: of_kind(model_type="bpe", treat_whitespace_as_suffix=True), "of another kind"),
        (lambda: labelled_vocabulary(TINY, ["yes"]), "run has a LabelledVocabulary, and only a Se"),
    ],
)
def test_vocabularies_of_other_kinds_are_refused(make, message):
    with pytest.raises(UserError, match=message):
        check_extensible(make(), "run")
    assert check_extensible(TINY, "run") is TINY
