"""Small models with random parameters, of every kind that a config can describe."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import pytest

from t2t_jax.config import Config, DataConfig
from t2t_jax.data.corpus import open_corpus
from t2t_jax.data.vocabulary import Vocabulary, train_vocabulary
from t2t_jax.interchange.names import named_arrays
from t2t_jax.interchange.portable import PortableModel
from t2t_jax.modules.models import make_model
from t2t_jax.modules.transformer import init_parameters

_SIZES = {
    "model.d_model": 16,
    "model.num_heads": 4,
    "model.d_ff": 32,
    "model.num_encoder_layers": 2,
    "model.num_decoder_layers": 3,
    "model.max_positions": 128,
    "data.vocab_size": 500,
    "data.max_length": 64,
    "decoding.max_source_length": 64,
    "decoding.max_extra_length": 10,
}


@pytest.fixture(scope="session")
def real_pairs() -> tuple[list[str], list[str]]:
    """Sentences of the bundled corpus, and their translations."""
    sources, targets = open_corpus(DataConfig()).lines("dev")
    return list(sources)[:60], list(targets)[:60]


@pytest.fixture(scope="session")
def vocabulary(real_pairs: tuple[list[str], list[str]]) -> Vocabulary:
    return train_vocabulary([real_pairs], 500)


@pytest.fixture(scope="session")
def make_portable(vocabulary: Vocabulary) -> Callable[[Mapping[str, Any]], PortableModel]:
    """A model with these fields of a config, in which no parameter is where training starts."""

    def make(fields: Mapping[str, Any]) -> PortableModel:
        config = Config().replace({**_SIZES, **fields})
        network = make_model(config, len(vocabulary), None)
        start = jax.jit(partial(init_parameters, network))(jax.random.key(0))
        rng = np.random.default_rng(0)

        def moved(x: jax.Array) -> np.ndarray:
            spread = 0.15 if x.ndim > 1 else 0.3
            return np.asarray(x) + rng.normal(0, spread, x.shape).astype(np.float32)

        arrays = named_arrays(jax.tree.map(moved, nn.unbox(start)))
        return PortableModel(config, vocabulary, arrays, (7,))

    return make
