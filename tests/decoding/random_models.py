"""Models with random weights, and what they compute by full passes over one sentence at a time."""

import dataclasses
import random
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from t2t_jax.batch import Batch, Sequence
from t2t_jax.config import Config, DataConfig, DecodingConfig, network_config
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.decoding.translator import Translator
from t2t_jax.modules.ensemble import Ensemble
from t2t_jax.modules.models import make_model
from t2t_jax.modules.parameters import Parameters
from tests.tiny import first_parameters, tiny_fields

_TEXT = "ein zwei rot blau haus baum gehen sehen große kleine tür fenster und oder nicht"
WORDS = _TEXT.split()
CONFIG = Config(
    model=network_config(**tiny_fields(16, (1, 1))),
    data=DataConfig(max_length=32),
    decoding=DecodingConfig(max_extra_length=6, tokens_per_batch=128),
)
_ROOM = 48
"""Source and target positions of a full pass."""


def sentences(count: int, longest: int, seed: int = 0) -> list[str]:
    """Return lines of a few known words each."""
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(1, longest))) for _ in range(count)]


def random_params(config: Config, vocab_size: int, seed: int = 0) -> Parameters:
    """Return random weights, large enough that no two tokens are nearly as probable."""
    network = make_model(config, vocab_size, None)
    params = first_parameters(network, seed)
    params["embedding"]["embedding"] *= 4
    return params


def random_translator(config: Config, vocabulary: Vocabulary, seed: int = 0) -> Translator:
    """Return a translator with random weights."""
    return Translator(config, vocabulary, random_params(config, len(vocabulary), seed), steps=[7])


def with_fields(translator: Translator, fields: dict[str, Any]) -> Translator:
    """Return the same model under a config with other fields."""
    return Translator(translator.config.replace(fields), translator.vocabulary, translator.params)


@partial(jax.jit, static_argnums=(0, 1))
def _full_pass(config, vocab_size, params, source, target):
    """Log-probabilities [t, v] from the training pass over one source, with 0 for padding."""
    segments = (source > 0).astype(jnp.int32), jnp.ones_like(target)
    batch = Batch(
        *(
            Sequence(ids[None], segment[None], (jnp.arange(len(ids)) * segment)[None])
            for ids, segment in zip((source, target), segments, strict=True)
        )
    )
    model = make_model(dataclasses.replace(CONFIG, model=config), vocab_size, None)
    logits = model.apply({"params": params}, batch, deterministic=True)
    return jax.nn.log_softmax(logits[0])


def log_probs(translator: Translator, line: str, tokens: list[int]) -> np.ndarray:
    """Return those of every token at every position; for an ensemble, of the mean probability."""
    source, target = np.zeros((2, _ROOM), np.int32)
    [encoded] = translator.vocabulary.encode([line])
    source[: len(encoded)] = encoded
    target[: len(tokens)] = tokens
    members = [(translator.config.model, translator.params)]
    if isinstance(translator.model, Ensemble):
        configs = (member.network.config for member in translator.model.members)
        members = list(zip(configs, translator.params.values(), strict=True))
    vocab_size = len(translator.vocabulary)
    probabilities = [
        np.exp(np.float64(_full_pass(model, vocab_size, params, source, target)))
        for model, params in members
    ]
    return np.log(np.mean(probabilities, axis=0))
