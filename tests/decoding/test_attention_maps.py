"""Attention weights against those computed from the parameters, by hand, in NumPy."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from t2t_jax import Config, UserError
from t2t_jax.data.vocabularies.learning import train_vocabulary
from t2t_jax.decoding.attention_maps import attention_maps, words_of
from t2t_jax.functional.position import sinusoidal_positions
from tests.decoding.random_models import random_translator
from tests.extras.interchange.models import ensemble_of
from tests.tiny import tiny_sizes

CONFIG = Config().replace(
    {**tiny_sizes(16, (2, 3)), "decoding.beam_size": 1, "decoding.max_extra_length": 5}
)
SOURCE, TARGET = "the dog barks at the cat", "a dog at the"


@pytest.fixture(scope="module")
def translator():
    lines = [SOURCE, TARGET, "the cat", "a dog barks"] * 20
    vocabulary = train_vocabulary([(lines, lines)], 40)
    return random_translator(CONFIG, vocabulary)


def test_weights_are_those_of_equation_1_in_the_order_of_the_subwords(translator):
    maps = attention_maps(translator, SOURCE, TARGET)
    source, target = translator.encode([SOURCE, TARGET])
    assert "".join(maps.source).replace("▁", " ").strip() == f"{SOURCE}</s>"
    assert "".join(maps.target).replace("▁", " ").strip() == f"{TARGET}</s>"
    s, t = len(source), len(target)
    for pieces, words in ((maps.source, maps.source_words), (maps.target, maps.target_words)):
        # A word begins where a space does, and the end of the sentence belongs to none.
        begins = np.cumsum([piece.startswith("▁") for piece in pieces]) - 1
        assert words == [*begins[:-1], -1]
    assert maps.encoder.shape == (2, 2, s, s)
    assert maps.decoder.shape == (3, 2, t, t)
    assert maps.cross.shape == (3, 2, t, s)
    for weights in (maps.encoder, maps.decoder, maps.cross):
        np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-6)

    params = jax.tree.map(np.asarray, translator.params)
    embedding = params["embedding"]["embedding"]
    for stack, ids, weights in (
        ("encoder", source, maps.encoder),
        ("decoder", [2, *target[:-1]], maps.decoder),  # the begin of sentence comes first
    ):
        x = 4 * embedding[ids] + np.asarray(sinusoidal_positions(len(ids), 16))
        projections = params[stack]["layers"]["self_attention"]
        query, key = (x @ projections[name]["kernel"][0] for name in ("query", "key"))
        for head in range(2):
            columns = slice(8 * head, 8 * head + 8)
            scores = query[:, columns] @ key[:, columns].T / np.sqrt(8)
            if stack == "decoder":
                scores[np.triu_indices(len(ids), 1)] = -np.inf
            expected = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
            np.testing.assert_allclose(weights[0, head], expected, atol=1e-5)


def test_without_a_target_it_is_the_models_own_translation(translator):
    own = translator.translate([SOURCE])[0]
    for expected, maps in zip(
        attention_maps(translator, SOURCE, own), attention_maps(translator, SOURCE), strict=True
    ):
        np.testing.assert_array_equal(expected, maps)


@pytest.mark.parametrize("attention", ["encoder", "decoder", "cross"])
def test_a_plot_has_a_panel_for_each_layer_and_head(translator, attention):
    maps = attention_maps(translator, SOURCE, "a $ dog")
    figure, weights = maps.plot(attention), getattr(maps, attention)
    *panels, _ = figure.axes  # the last is the scale of the colours
    drawn = [axes.images[0].get_array() for axes in panels]
    np.testing.assert_array_equal(drawn, weights.reshape(-1, *weights.shape[2:]))
    rows = maps.source if attention == "encoder" else maps.target
    assert [label.get_text() for label in panels[0].get_yticklabels()] == rows
    assert figure._repr_png_().startswith(b"\x89PNG")  # a notebook shows it


def test_a_plot_of_another_attention_or_of_too_many_subwords_is_refused(translator):
    maps = attention_maps(translator, SOURCE, "a $ dog")
    with pytest.raises(UserError, match="no attention 'croos'; did you mean cross"):
        maps.plot("croos")
    with pytest.raises(UserError, match="101 subwords is too large"):
        maps._replace(target=["a"] * 101, source=["a"] * 101).plot()


def test_an_ensemble_is_refused(translator):
    with pytest.raises(UserError, match="ensemble"):
        attention_maps(ensemble_of(translator), SOURCE)


@pytest.fixture(scope="module")
def vocabulary():
    lines = ["ein große tür. fensterbaum", "fensterbaum ein tür! große"] * 20
    return train_vocabulary([(lines, lines)], 40)


@given(st.lists(st.sampled_from(["ein", "große", "q", "tür.", "fensterbaum"]), max_size=9))
def test_subwords_belong_to_the_words_that_they_spell(vocabulary, words):
    [tokens] = vocabulary.encode(["  ".join(words)])
    numbers = words_of(tokens, vocabulary)
    assert numbers.pop() == -1
    spelt = [
        vocabulary.decode(
            [[token for token, n in zip(tokens, numbers, strict=False) if n == number]]
        )[0].strip()
        for number in range(len(words))
    ]
    if "q" not in words:  # a letter that the vocabulary does not have
        assert spelt == words
    assert numbers == sorted(numbers)
    assert set(numbers) == set(range(len(words)))


@given(st.lists(st.sampled_from(["ein", "qein", "eqin", "türq!", "qq", "q"]), min_size=1))
def test_letters_that_a_vocabulary_does_not_have_begin_no_word_of_a_source(vocabulary, words):
    [tokens] = vocabulary.encode([" ".join(words)])
    numbers = words_of(tokens, vocabulary, of_source=True)
    assert {*numbers[:-1]} == set(range(len(words)))
