"""Forbidden phrases, by the text that comes out."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t2t_jax.batch import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from t2t_jax.config import DataConfig, DecodingConfig
from t2t_jax.data.corpus import open_corpus
from t2t_jax.data.vocabularies.learning import train_vocabulary
from t2t_jax.decoding.forbidden import automaton, constraints_of, spelt_by
from t2t_jax.decoding.search.constraints import UNCONSTRAINED
from t2t_jax.errors import UserError
from tests.decoding.random_models import CONFIG, random_translator
from tests.selection import thorough_after

PHRASES = ("der", "Datei", "in der", "Größe", "(x)", "日本")
_CONFIG = CONFIG.replace(
    {"data.max_length": 64, "decoding.max_extra_length": 30, "decoding.beam_size": 3}
)


@pytest.fixture(scope="module")
def lines():
    return [line for side in open_corpus(DataConfig()).lines("dev") for line in side]


@pytest.fixture(scope="module", params=[300, 2100])  # without bytes, and with
def vocabulary(request, lines):
    return train_vocabulary([(lines[:2000], lines[:2000])], request.param)


@pytest.fixture(scope="module")
def translator(lines):
    vocabulary = train_vocabulary([(lines[:2000], lines[:2000])], 600)
    return random_translator(_CONFIG, vocabulary, seed=1)


def contains(text, phrase):
    """Whether a text has a phrase at its begin or after a space, and no letter after it."""
    text, phrase = (f" {' '.join(one.split())}" for one in (text, phrase))
    ends = [i + len(phrase) for i in range(len(text)) if text[i : i + len(phrase)] == phrase]
    return any(not text[end : end + 1].isalnum() for end in ends)


def completes(found, tokens):
    """Whether an automaton, taken step by step, is ever told to complete a phrase."""
    states = found.initial
    for token in tokens:
        taken = states[found.sources] & (found.tokens == token)
        if (found.targets[taken] >= len(states)).any():
            return True
        states = found.always.copy()
        states[found.targets[taken]] = True
    return False


@settings(max_examples=150)
@given(data=st.data())
def test_a_phrase_is_complete_exactly_where_the_text_has_it(vocabulary, data):
    phrase = data.draw(st.sampled_from(PHRASES))
    around = b" " + phrase.encode() + b" "
    texts = spelt_by(vocabulary)
    useful = [i for i, text in enumerate(texts) if text and text in around * 2]
    some = st.integers(UNK_ID, len(vocabulary) - 1)
    tokens = data.draw(st.lists(st.sampled_from(useful) | some, max_size=12))
    found = automaton((phrase,), vocabulary)
    decoded = [vocabulary.decode([tokens[:end]])[0] for end in range(len(tokens) + 1)]
    assert completes(found, tokens) == any(contains(text, phrase) for text in decoded)


@pytest.mark.parametrize("phrase", PHRASES)
def test_the_usual_spelling_is_found_among_words_and_beside_other_phrases(phrase, vocabulary):
    found = automaton((*PHRASES, phrase), vocabulary)
    for line in (phrase, f"Das ist {phrase}.", f"{phrase} , so"):
        [tokens] = vocabulary.encode([line])
        if UNK_ID not in tokens:
            assert completes(found, tokens)
            assert not completes(automaton(("Fenster",), vocabulary), tokens)


def test_sizes_are_powers_of_two(vocabulary):
    for phrases in (("a",), PHRASES):
        for array in automaton(phrases, vocabulary):
            assert len(array).bit_count() == 1


def test_a_space_is_what_a_vocabulary_writes_as_one(vocabulary):
    texts = spelt_by(vocabulary)
    assert [texts[i] for i in (PAD_ID, EOS_ID, BOS_ID)] == [b"", b"", b""]
    assert sorted(texts).count(b" ") == (1 if len(vocabulary) < 2048 else 7)  # \t to \r, and both


@pytest.mark.parametrize(
    "how", thorough_after(1, [{"beam_size": 3}, {"beam_size": 1}, {"temperature": 1.5}])
)
def test_forbidden_words_do_not_occur_in_the_text_and_other_words_take_their_place(
    how, translator, lines
):
    some = lines[:6]
    forbidden = []
    for _ in range(2):
        before = translator.translate(some, forbidden=forbidden, **how)
        words = [text.split()[len(text.split()) // 2] for text in before if text.split()]
        forbidden += [words[0], words[-1]]
        after = translator.translate(some, forbidden=forbidden, **how)
        assert before != after
        for text in after:
            assert not any(contains(text, word) for word in forbidden)
    alone = translator.translate(some[2:3], forbidden=forbidden, first_line=3, **how)
    assert alone == after[2:3]


def test_log_probabilities_stay_those_of_the_model(translator, lines):
    from t2t_jax.decoding.scoring import score

    how = {"forbidden": ["der"], "min_length": 5, "no_repeat_ngram_size": 2, "forbidden_ids": [9]}
    found = [best for [best] in translator.nbest(lines[:5], 1, **how)]
    for best in found:
        bigrams = list(zip(best.tokens, best.tokens[1:], strict=False))
        assert len(set(bigrams)) == len(bigrams)
        assert len(best.tokens) > 5
        assert 9 not in best.tokens
    ended = [i for i, best in enumerate(found) if best.tokens[-1] == EOS_ID]
    for i in ended:  # of those that are spelt as text is
        if translator.encode([found[i].text])[0] == list(found[i].tokens):
            [again] = score(translator, [lines[i]], [found[i].text])
            assert again.log_prob == pytest.approx(found[i].log_prob, rel=1e-4)


def test_a_config_without_constraints_has_none(vocabulary):
    assert constraints_of(DecodingConfig(), vocabulary) == UNCONSTRAINED


@pytest.mark.parametrize("token", [EOS_ID, -1, 100_000])
def test_an_id_that_cannot_be_forbidden_is_refused(token, translator):
    with pytest.raises(UserError, match=rf"forbidden_ids has {token}; give ids from 0 to 599"):
        translator.translate(["a"], forbidden_ids=[token])


@pytest.mark.parametrize("phrase", ["", " ", "\t"])
def test_a_blank_phrase_is_refused(phrase):
    with pytest.raises(UserError, match=r"decoding\.forbidden has a blank phrase; leave it out"):
        DecodingConfig(forbidden=("a", phrase))


def test_padding_alone_is_never_chosen_beside_forbidden_phrases(vocabulary):
    constraints = constraints_of(DecodingConfig(forbidden=("der",)), vocabulary)
    assert np.flatnonzero(constraints.forbidden).tolist() == [PAD_ID, BOS_ID]
