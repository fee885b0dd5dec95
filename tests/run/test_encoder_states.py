"""The states of an encoder against the sums of a layer, and against the model's own logits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import t2t_jax
from t2t_jax import Batch, UserError
from t2t_jax.config import Config, DecoderOnlyConfig, EncoderDecoderConfig
from t2t_jax.data.vocabularies.learning import train_vocabulary
from tests.decoding.random_models import random_translator
from tests.extras.interchange.models import (
    ensemble_of,
    image_classifier,
    masked_language_model,
    translator_of,
)
from tests.modules.numpy_transformer import embed, encoder

LINES = ["the dog barks at the cat", "a dog", ""]
SIZES = {"d_model": 16, "num_heads": 2, "d_ff": 32, "num_decoder_layers": 1}


def _translator(model):
    lines = ["the dog barks at the cat", "a dog"] * 20
    vocabulary = train_vocabulary([(lines, lines)], 40)
    return random_translator(Config(model=model), vocabulary)


@pytest.fixture(scope="module")
def translator():
    return _translator(EncoderDecoderConfig(num_encoder_layers=2, **SIZES))


def test_each_line_has_the_output_of_the_encoder_whatever_stands_beside_it(translator):
    found = t2t_jax.encoder_states(translator, LINES)
    assert found.lengths.tolist() == [len(ids) for ids in translator.encode(LINES)]
    assert found.tokens == translator.encode(LINES)
    params = jax.tree.map(np.asarray, translator.params)
    for states, length, tokens in zip(*found, strict=True):
        embedded = embed(params, translator.config.model, "source", tokens)
        expected = encoder(params, translator.config.model, embedded)
        np.testing.assert_allclose(states[:length], expected, atol=2e-5)
        assert not states[length:].any()


def test_no_lines_have_no_states(translator):
    assert t2t_jax.encoder_states(translator, []).states.shape == (0, 0, 16)


def test_an_encoder_alone_reads_its_begin_of_sentence_and_predicts_from_its_states():
    model = translator_of(masked_language_model())
    states, lengths, tokens = t2t_jax.encoder_states(model, ["the file", "the open file"])
    assert [ids[0] for ids in tokens] == [2, 2]
    bound = model.model.network.bind({"params": model.params})
    logits = jnp.asarray(states[1:, : lengths[1]]) @ bound.output_matrix().T + bound.output_bias
    batch = Batch.of([tokens[1]], [tokens[1]])  # a label is predicted from each position
    expected = jax.jit(model.model.logits)(model.params, batch)
    np.testing.assert_allclose(logits, expected, atol=1e-4)


def test_what_has_no_states_is_refused(translator):
    alone = _translator(DecoderOnlyConfig(**SIZES))
    with pytest.raises(UserError, match="'decoder_only' has no encoder"):
        t2t_jax.encoder_states(alone, LINES)
    images = translator_of(image_classifier())
    with pytest.raises(UserError, match="reads images"):
        t2t_jax.encoder_states(images, LINES)
    both = ensemble_of(translator)
    with pytest.raises(UserError, match="load one of its models"):
        t2t_jax.encoder_states(both, LINES)
    with pytest.raises(UserError, match="pass the parameters of one model"):
        t2t_jax.parameter_table(both.params)
    with pytest.raises(UserError, match=r"line 4 has \d+ subwords"):
        t2t_jax.encoder_states(translator, ["a", "a dog " * 20_000], first_line=3)
    with pytest.raises(TypeError, match="lines"):
        t2t_jax.encoder_states(translator, "a dog")
    with pytest.raises(TypeError, match="runs/base"):
        t2t_jax.encoder_states("runs/base", LINES)
