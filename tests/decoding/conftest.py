"""A tiny model with random weights, which several test files ask the same programs of."""

import random
from functools import partial

import flax.linen as nn
import jax
import pytest

from t2t_jax.config import Config, DataConfig, DecodingConfig, network_config
from t2t_jax.data.vocabularies.learning import train_vocabulary
from t2t_jax.decoding.translator import Translator
from t2t_jax.modules.models import make_model
from t2t_jax.modules.network import init_parameters

_WORDS = [
    "ein",
    "zwei",
    "rot",
    "blau",
    "haus",
    "baum",
    "gehen",
    "sehen",
    "große",
    "kleine",
    "tür",
    "fenster",
    "und",
    "oder",
    "nicht",
]


@pytest.fixture(scope="session")
def tiny():
    """A translator without a limit of its own, of sources of up to 16 subwords."""
    rng = random.Random(0)
    lines = [" ".join(rng.choices(_WORDS, k=rng.randint(1, 12))) + "." for _ in range(300)]
    config = Config(
        model=network_config(
            d_model=16, num_heads=2, d_ff=32, num_encoder_layers=1, num_decoder_layers=1
        ),
        data=DataConfig(max_length=32),
        decoding=DecodingConfig(
            max_extra_length=6, tokens_per_batch=128, beam_size=2, max_source_length=16
        ),
    )
    vocabulary = train_vocabulary([(lines, lines)], 100)
    network = make_model(config, len(vocabulary), None)
    params = nn.unbox(jax.jit(partial(init_parameters, network))(jax.random.key(0)))
    params["embedding"]["embedding"] *= 4
    return Translator(config, vocabulary, params)
