"""Tiny models with random weights, which several test files ask the same programs of."""

import dataclasses

import pytest

from t2t_jax import Config, Translator
from t2t_jax.data.vocabularies.learning import train_vocabulary
from tests.decoding.random_models import CONFIG, random_params, random_translator, sentences

_WIDER = dataclasses.replace(
    CONFIG.model,
    d_model=24,
    num_decoder_layers=2,
    norm="rms",
    norm_order="pre",
    feed_forward="swiglu",
    position="relative_bias",
    num_kv_heads=1,
    attention_window=3,
)


@pytest.fixture(scope="session")
def tiny():
    """A translator without a limit of its own, of sources of up to 16 subwords."""
    lines = [f"{line}." for line in sentences(300, 12)]
    vocabulary = train_vocabulary([(lines, lines)], 100)
    settings = {"decoding.beam_size": 2, "decoding.max_source_length": 16}
    return random_translator(CONFIG.replace(settings), vocabulary)


@pytest.fixture(scope="session")
def vocabulary():
    """Large enough that most words are one subword."""
    lines = sentences(300, 12)
    return train_vocabulary([(lines, lines)], 100)


@pytest.fixture(scope="session")
def translator(vocabulary):
    return random_translator(CONFIG, vocabulary)


@pytest.fixture(scope="session")
def ensemble(translator):
    """The translator, together with a model that is larger and of another kind."""
    others = [(_WIDER, random_params(Config(model=_WIDER), len(translator.vocabulary), 2))]
    return Translator(CONFIG, translator.vocabulary, translator.params, others=others)


@pytest.fixture(scope="session")
def decoder_alone(vocabulary):
    """A decoder alone, whose outputs go on from their sources."""
    changes = {"model.architecture": "decoder_only", "model.position": "rotary"}
    return random_translator(CONFIG.replace(changes), vocabulary)
