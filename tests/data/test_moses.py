"""Vocabularies of Moses words are split and joined as the libraries themselves do it."""

import io
import pickle
import sys
from functools import cache
from pathlib import Path

import pytest
import sacremoses
from subword_nmt.learn_bpe import learn_bpe

from t2t_jax.batch import EOS_ID, UNK_ID
from t2t_jax.config import DataConfig
from t2t_jax.data.corpus import open_corpus
from t2t_jax.data.vocabularies.moses import MosesVocabulary, moses_vocabulary
from t2t_jax.data.vocabulary import Vocabulary, parse_vocabulary
from t2t_jax.errors import UserError

_SPECIAL = ["<pad>", "</s>", "<s>", "<unk>"]


@cache
def lines() -> tuple[list[str], list[str]]:
    sources, targets = open_corpus(DataConfig()).lines("train")
    return list(sources)[:1000], list(targets)[:1000]


@cache
def codes() -> str:
    words = [
        words_of(line, language)
        for language, side in zip(("en", "de"), lines(), strict=True)
        for line in side[:300]
    ]
    learnt = io.StringIO()
    learn_bpe(io.StringIO("\n".join(words) + "\n"), learnt, 200)
    return learnt.getvalue()


def words_of(line: str, language: str, *, dashes: bool = True, escape: bool = True) -> str:
    tokenizer = sacremoses.MosesTokenizer(language)
    return tokenizer.tokenize(line, dashes, return_str=True, escape=escape)


@cache
def vocabulary(dashes: bool = True, escapes: bool = True) -> MosesVocabulary:
    """A vocabulary that can spell every line: characters, inside words and at their ends."""
    sides = []
    for language, side in zip(("en", "de"), lines(), strict=True):
        words = {
            word
            for line in side
            for word in words_of(line, language, dashes=dashes, escape=escapes).split()
        }
        letters = sorted({letter for word in words for letter in word})
        merged = ["".join(line.split(" ")) for line in codes().split("\n")[1:-1]]
        ends = [merge.removesuffix("</w>") for merge in merged if merge.endswith("</w>")]
        insides = [f"{merge}@@" for merge in merged if not merge.endswith("</w>")]
        known = [*letters, *(f"{letter}@@" for letter in letters), *ends, *insides]
        # A merge that ends a word was perhaps made of one that does not.
        known += [f"{end}@@" for end in ends] + [merge.removesuffix("@@") for merge in insides]
        sides.append(_SPECIAL + list(dict.fromkeys(known)))
    return moses_vocabulary(
        ("en", "de"), codes(), (sides[0], sides[1]), splits_dashes=dashes, escapes=escapes
    )


@pytest.mark.parametrize(("dashes", "escapes"), [(True, True), (False, False)])
def test_lines_come_back_as_moses_joins_their_words(dashes, escapes):
    targets = lines()[1]
    own = vocabulary(dashes, escapes)
    joined = sacremoses.MosesDetokenizer("de")
    expected = [
        joined.detokenize(
            words_of(line, "de", dashes=dashes, escape=escapes).split(), unescape=escapes
        )
        for line in targets
    ]
    rows = own.encode_targets(targets)
    assert all(row[-1] == EOS_ID and min(row[:-1]) > UNK_ID for row in rows)
    assert own.decode(rows) == expected
    close = sum(line == text for line, text in zip(targets, expected, strict=True))
    assert close > 700  # Moses itself guesses where spaces were


def merged(word: str) -> list[str]:
    """The subwords of a word by the definition of byte pair encoding, merge after merge."""
    parts = [*word[:-1], f"{word[-1]}</w>"]
    for line in codes().split("\n")[1:-1]:
        left, right = line.split(" ")
        place = 0
        while place < len(parts) - 1:
            if parts[place : place + 2] == [left, right]:
                parts[place : place + 2] = [left + right]
            place += 1
    return [f"{part}@@" for part in parts[:-1]] + [parts[-1].removesuffix("</w>")]


def test_words_are_merged_in_the_order_of_the_merges():
    own, sources = vocabulary(), lines()[0][:50]
    for line, row in zip(sources, own.pieces(own.encode(sources)), strict=True):
        expected = [part for word in words_of(line, "en").split() for part in merged(word)]
        assert row == [*expected, "</s>"]


def test_special_ids_are_never_spelt():
    own = vocabulary(True, False)
    assert own.encode(["", " \t"]) == [[EOS_ID], [EOS_ID]]
    assert own.decode([[EOS_ID], [], [2, 0, 1, 9]]) == ["", "", ""]
    assert own.encode([]) == own.decode([]) == []
    (row,) = own.encode(["<pad> </s> <s> 中"])
    assert row[-2:] == [UNK_ID, EOS_ID]
    assert min(row[:-1]) == UNK_ID
    assert (own.unk_id, own.source_size) == (UNK_ID, len(own.pieces([range(own.source_size)])[0]))


def test_saved_and_pickled_copies_are_the_same(tmp_path: Path) -> None:
    own, sources = vocabulary(), lines()[0][:20]
    own.save(tmp_path / "vocabulary.model")
    copies = Vocabulary.load(tmp_path / "vocabulary.model"), pickle.loads(pickle.dumps(own))
    for copy in copies:
        assert isinstance(copy, MosesVocabulary)
        assert copy.fingerprint == own.fingerprint
        assert copy.encode(sources) == own.encode(sources)
    assert own.files == {"bpecodes": codes().encode()}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"<s>", "<unk>"', '"<unk>", "<s>"', "it does not begin with <pad> </s> <s> <unk>"),
        ('"escapes": true', '"escapes": 1', "its field 'escapes' is 1, expected bool"),
        ('"target_pieces": ["<pad>"', '"target_pieces": [0', "a subword is no string"),
        ("#version: 0.2\\n", "#version: 0.2\\nx\\n", "merge number 0 is 'x', no pair of subwords"),
        ("#version: 0.2", "#version: x", "its merges begin with '#version: x'"),
        ('"codes"', '"code"', "it has no field 'codes'"),
        ("]}", "", "it is not JSON"),
    ],
)
def test_a_damaged_vocabulary_is_refused(old, new, message, tmp_path):
    path = tmp_path / "vocabulary.model"
    text = vocabulary().serialized.decode()
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(UserError, match=rf"vocabulary\.model is damaged: .*{message}"):
        Vocabulary.load(path)


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "subword_nmt.apply_bpe", None)
    with pytest.raises(UserError, match=r"pip install -e '.*\[interchange\]'"):
        parse_vocabulary(vocabulary().serialized)
