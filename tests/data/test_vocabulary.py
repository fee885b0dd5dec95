"""The vocabulary can write every text, always the same way, and says which sizes work."""

import io
import os
import pickle
import re
import tempfile
from itertools import pairwise

import numpy as np
import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from t2t_jax.batch import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from t2t_jax.config import DataConfig
from t2t_jax.data.corpus import open_corpus
from t2t_jax.data.vocabularies import learning
from t2t_jax.data.vocabularies.learning import train_vocabulary
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.errors import UserError

DEV = open_corpus(DataConfig()).lines("dev")


@pytest.fixture(scope="module")
def large():
    """Large enough to spell rare characters in bytes."""
    return train_vocabulary(open_corpus(DataConfig()).pairs("train"), 4000)


@pytest.fixture(scope="module")
def small():
    """Too small for bytes."""
    return train_vocabulary([DEV], 300)


def one_space(text):
    """What SentencePiece makes of white space; it also reads its own mark, U+2581, as a space."""
    return re.sub("[ \t\n\v\f\r\x85\u2028\u2029\u2581]+", " ", text).strip(" ")


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_survives_a_large_vocabulary(large, text):
    assert large.decode(large.encode([text])) == [one_space(text)]


def test_the_corpus_survives_a_small_vocabulary(small):
    lines = DEV[0] + DEV[1]
    ids = small.encode(lines)
    assert small.decode(ids) == [one_space(line) for line in lines]
    assert not any(UNK_ID in row for row in ids)


def test_sentences_end_with_eos_and_hold_no_other_special_id(large):
    lines = ["", "  \t\n", "a b", "<pad> </s> <s> <unk> <0x41>"]
    ids = large.encode(lines)
    assert ids[:2] == [[EOS_ID], [EOS_ID]]
    for row in ids:
        assert row[-1] == EOS_ID
        assert min(row[:-1], default=4) > max(PAD_ID, EOS_ID, BOS_ID, UNK_ID)
    assert large.decode(ids) == ["", "", *lines[2:]]
    assert large.encode([]) == []


def test_decoding_stops_at_the_first_end_and_drops_padding(large):
    (words,) = large.encode(["two words"])
    padded = [BOS_ID, *words[:-1], PAD_ID, EOS_ID, *words, PAD_ID]
    assert large.decode([padded, words[:-1], []]) == ["two words", "two words", ""]
    assert large.decode(np.array([padded])) == ["two words"]


def test_size_is_kept_and_ids_are_below_it(large, small):
    assert (len(large), len(small)) == (4000, 300)
    assert max(max(row) for row in small.encode(DEV[0])) < 300


def test_the_same_text_gives_the_same_vocabulary(monkeypatch):
    made = set()
    for num_cores in (1, 2, 5):
        monkeypatch.setattr(learning.os, "cpu_count", lambda num=num_cores: num)
        made.add(train_vocabulary([DEV], 500).fingerprint)
    assert len(made) == 1
    assert train_vocabulary([DEV[::-1]], 501).fingerprint not in made


def test_how_the_text_is_cut_into_chunks_does_not_matter(small):
    chunks = [(DEV[0][i : i + 7], DEV[1][i : i + 7]) for i in range(0, len(DEV[0]), 7)]
    assert train_vocabulary(chunks, 300).fingerprint == small.fingerprint


PROTECTED = ("<2de>", "__URL__", "{0}", "a,b", '"q"', "<2de>n", "ab")


@pytest.fixture(scope="module", params=[400, 2100])
def protecting(request):
    """Without bytes, and with them."""
    return train_vocabulary([DEV], request.param, protected_tokens=PROTECTED)


def with_tokens(line, insertions):
    """A line with tokens put in, each at a share of its length."""
    places = sorted((round(share * len(line)), token) for share, token in insertions)
    for place, token in reversed(places):
        line = line[:place] + token + line[place:]
    return line


spaced = st.tuples(
    st.sampled_from(["", " "]), st.sampled_from(PROTECTED), st.sampled_from(["", " "])
)


@given(
    line=st.sampled_from(DEV[0] + DEV[1]),
    insertions=st.lists(st.tuples(st.floats(0, 1), spaced.map("".join)), max_size=4),
)
def test_protected_tokens_pass_through_whole(protecting, line, insertions):
    text = one_space(with_tokens(line, insertions))
    (ids,) = protecting.encode([text])
    assert protecting.decode([ids]) == [text]
    # Where two begin at the same place, it is the longer one, as in this regular expression.
    longest_first = "|".join(map(re.escape, sorted(PROTECTED, key=len, reverse=True)))
    (pieces,) = protecting.pieces([ids])
    assert [piece for piece in pieces if piece in PROTECTED] == re.findall(longest_first, text)


def test_a_tag_at_the_start_of_a_line_keeps_its_space(protecting):
    lines = ["<2de> Hello", "<2de>Hello", "go to __URL__.", "<2de>"]
    assert protecting.decode(protecting.encode(lines)) == lines


def test_a_vocabulary_knows_its_protected_tokens(protecting, large):
    assert protecting.protected_tokens == {*PROTECTED}
    assert large.protected_tokens == set()
    assert protecting.pieces([range(4, 4 + len(PROTECTED))]) == [list(PROTECTED)]


def test_no_token_leaves_the_vocabulary_as_it_was(small):
    assert train_vocabulary([DEV], 300, protected_tokens=()).fingerprint == small.fingerprint
    with pytest.raises(UserError, match=r"vocab_size=300 cannot hold all characters; use at least"):
        train_vocabulary([DEV], 300, protected_tokens=[f"<{n}>" for n in range(300)])


def test_saved_and_pickled_copies_are_the_same(tmp_path, small):
    path = tmp_path / "vocabulary.model"
    small.save(path)
    assert list(tmp_path.iterdir()) == [path]
    for copy in (Vocabulary.load(path), pickle.loads(pickle.dumps(small))):
        assert copy.fingerprint == small.fingerprint
        assert copy.encode(DEV[0]) == small.encode(DEV[0])


@pytest.mark.parametrize("content", [None, b"", b"no model", "cut"])
def test_a_missing_or_damaged_file_is_named(tmp_path, small, content):
    path = tmp_path / "vocabulary.model"
    if content == "cut":
        small.save(path)
        content = path.read_bytes()[:-100]
    if isinstance(content, bytes):
        path.write_bytes(content)
    with pytest.raises(UserError, match=r"vocabulary\.model"):
        Vocabulary.load(path)


def test_a_model_with_other_special_ids_is_refused(tmp_path):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(DEV[0]), model_writer=model, vocab_size=200, minloglevel=2
    )
    path = tmp_path / "foreign.model"
    path.write_bytes(model.getvalue())
    with pytest.raises(UserError, match=r"foreign\.model .* pad, eos, bos, unk = \(-1, 2, 1, 0\)"):
        Vocabulary.load(path)


def test_a_size_the_corpus_cannot_fill_names_the_largest_that_works():
    chunk = (["low lower lowest"] * 3, ["new newer newest"] * 3)
    with pytest.raises(UserError, match="vocab_size=500 is too large") as caught:
        train_vocabulary([chunk], 500)
    largest = int(str(caught.value).split()[-1])
    assert len(train_vocabulary([chunk], largest)) == largest


def test_a_size_too_small_for_the_alphabet_names_the_smallest_that_works():
    with pytest.raises(UserError, match="vocab_size=20 cannot hold") as caught:
        train_vocabulary([DEV], 20)
    smallest = int(str(caught.value).split()[-1])
    assert len(train_vocabulary([DEV], smallest)) == smallest


@pytest.mark.parametrize("chunks", [[], [([""], [" "])]])
def test_a_corpus_without_text_is_refused(chunks):
    with pytest.raises(UserError, match="no text"):
        train_vocabulary(chunks, 100)


@pytest.mark.parametrize(
    "line",
    [
        "Ω " + "a " * 3000 + "Ж",
        "Ω" + "漢" * 5000 + "Ж",
        "Ω ▅ Ж",  # SentencePiece reserves this block
        "Ω\0Ж",
        "   \t▁ΩЖ",
        "Ω <s> <unk> Ж",
    ],
    ids=lambda line: line[:8],
)
def test_every_line_counts_and_a_character_without_an_entry_is_named(line, capsys):
    vocabulary = train_vocabulary([([*DEV[0], line], [*DEV[1], "x"])], 400)
    assert vocabulary.decode(vocabulary.encode(["Ω Ж"])) == ["Ω Ж"]
    named = re.findall(r"U\+([0-9A-F]{4})", capsys.readouterr().err)
    unknown = {one for one in line if UNK_ID in vocabulary.encode([one])[0]}
    assert named == [f"{ord(one):04X}" for one in sorted(unknown)]


@pytest.mark.parametrize("size", [300, 2100])
def test_a_long_line_gives_the_vocabulary_of_its_words(size):
    long, nothing = " ".join(DEV[0]), [""] * len(DEV[0])
    assert len(long) > 10_000
    apart = train_vocabulary([(list(DEV[0]), nothing)], size)
    assert train_vocabulary([([long], [""])], size).fingerprint == apart.fingerprint


def test_characters_of_pairs_that_are_thinned_out_are_named(monkeypatch, capsys):
    monkeypatch.setattr(learning, "_MAX_TRAINING_PAIRS", len(DEV[0]) - 1)
    train_vocabulary([DEV], 300)
    kept, all_text = ("".join(DEV[0][::n] + DEV[1][::n]) for n in (2, 1))
    lost = [f"U+{ord(one):04X}" for one in sorted({*all_text} - {*kept})]
    assert 0 < len(lost) <= 5
    assert f"cannot spell {len(lost)} characters of the corpus ({', '.join(lost)})" in (
        capsys.readouterr().err
    )


@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=20), limit=st.integers(1, 50))
def test_a_large_corpus_is_thinned_evenly(sizes, limit):
    lines = [str(i) for i in range(sum(sizes))]
    cuts = np.cumsum([0, *sizes])
    chunks = [(lines[a:b], lines[a:b]) for a, b in pairwise(cuts)]
    kept = [int(source) for source, _ in learning._sample_pairs(chunks, limit)]
    stride = kept[1] - kept[0] if len(kept) > 1 else len(lines)
    assert kept == list(range(0, len(lines), stride))[: len(kept)]
    assert len(kept) <= limit
    assert 2 * len(kept) > min(limit, len(lines))


NO_MODELS = {
    "a directory": lambda path: path.mkdir(),
    "a link to itself": lambda path: path.symlink_to(path),
    "a pipe": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "two gigabytes": lambda path: path.touch() or os.truncate(path, 2 << 30),  # which take no room
}


@pytest.mark.parametrize("kind", NO_MODELS)
def test_what_is_no_model_is_refused_without_reading_it(tmp_path, kind):
    NO_MODELS[kind](tmp_path / "vocabulary.model")
    message = "is too large for a vocabulary" if kind == "two gigabytes" else "cannot be read"
    with pytest.raises(UserError, match=rf"vocabulary\.model {message}"):
        Vocabulary.load(tmp_path / "vocabulary.model")


def test_a_vocabulary_without_room_for_its_rules_names_the_way_out(monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/proc/nowhere")
    with pytest.raises(UserError, match=r"a temporary file cannot be written .* or set TMPDIR"):
        train_vocabulary([DEV], 300)
