"""A tiny model with random weights, which several test files ask the same programs of."""

import random
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

from t2t_jax.config import Config, DataConfig, DecodingConfig, ModelConfig
from t2t_jax.data.vocabulary import train_vocabulary
from t2t_jax.decoding.translator import Translator, make_model

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
        model=ModelConfig(
            d_model=16, num_heads=2, d_ff=32, num_encoder_layers=1, num_decoder_layers=1
        ),
        data=DataConfig(max_length=32),
        decoding=DecodingConfig(
            max_extra_length=6, tokens_per_batch=128, beam_size=2, max_source_length=16
        ),
    )
    vocabulary = train_vocabulary([(lines, lines)], 100)
    network, tokens = make_model(config, len(vocabulary)), jnp.ones((1, 8), jnp.int32)
    variables = jax.jit(partial(network.init, deterministic=True))(jax.random.key(0), *[tokens] * 6)
    params = nn.unbox(variables["params"])
    params["embedding"]["embedding"] *= 4
    return Translator(config, vocabulary, params)
