"""Tiny models in every kind, and batches written as lists of sentences."""

from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import t2t_jax
from t2t_jax.batch import Batch, Sequence
from t2t_jax.config import ModelConfig, network_config
from t2t_jax.config.families import FAMILIES, fields_of
from t2t_jax.kernels.cpu import CPU
from t2t_jax.modules.transformer import TokenNetwork
from t2t_jax.plugins import load_named
from tests.examples.loading import load_example
from tests.selection import thorough_after
from tests.tiny import tiny_fields

VOCAB_SIZE, BOS_ID = 11, 1


def _scale_norm(x, g, epsilon):
    """ScaleNorm (Nguyen and Salazar 2019): one factor for all elements."""
    return g * x / (jnp.linalg.norm(x, axis=-1, keepdims=True) + epsilon)


def _cosine(query, key, temperature):
    """Scores by the angle alone (Henry et al. 2020), with a factor of each head."""
    query, key = (x / jnp.linalg.norm(x, axis=-1, keepdims=True) for x in (query, key))
    return jnp.einsum("bqhd,bkhd->bhqk", query, key) * temperature[:, None, None]


t2t_jax.register_activation("test_relu6", jax.nn.relu6)
t2t_jax.register_normalization(
    "test_scale", _scale_norm, lambda width: {"g": t2t_jax.Parameter((), width**0.5)}
)
t2t_jax.register_score_function(
    "test_cosine", _cosine, lambda d_k: {"temperature": t2t_jax.Parameter((), 10.0)}
)

load_example("own_attention")

_PAPER = network_config(**tiny_fields(16, (2, 2)), dropout_rate=0.0, max_positions=12)
# Together they hold every option; few, because compiling each takes longer than all its tests.
_KINDS = {
    "paper": {},
    "as_llama_in_windows": {
        "norm": "rms",
        "norm_order": "pre",
        "feed_forward": "swiglu",
        "position": "rotary",
        "num_kv_heads": 1,
        "attention_window": 3,
        "share_embeddings": False,
        "d_k": 6,
        "d_v": 10,
        "output_bias": True,
        "parametrisation": "complete",
        "base_width": 4,
        "base_depth": 1,
    },
    "deep_relative_bias_tied_target": {
        "norm_order": "deep",
        "feed_forward": "gelu",
        "position": "relative_bias",
        "attention_window": 2,
        "attention_kind": "dot_product",
        "attention_bias": True,
        "query_key_norm": True,
        "share_embeddings": False,
        "share_target_embedding": True,
        "parametrisation": "mup",
        "base_width": 48,
    },
    "additive_alibi": {
        "position": "alibi",
        "num_kv_heads": 1,
        "attention_kind": "additive",
        "scale_embeddings": False,
        "embedding_norm": True,
    },
    "registered": {
        "feed_forward": "test_relu6",
        "norm": "test_scale",
        "norm_order": "pre",
        "attention_kind": "test_cosine",
        "num_kv_heads": 1,
        "attention_window": 3,
    },
    "differential": {
        "attention_kind": "differential_attention",
        "position": "alibi",
        "num_heads": 4,
        "num_kv_heads": 2,
        "attention_window": 3,
        "query_key_norm": True,
        "d_k": 2,
    },
    "decoder_only_differential": {
        "architecture": "decoder_only",
        "attention_kind": "differential_attention",
        "position": "relative_bias",
        "prefix_attention": True,
        "num_heads": 4,
        "num_kv_heads": 2,
    },
    "decoder_only_as_llama_in_windows": {
        "architecture": "decoder_only",
        "norm_order": "pre",
        "position": "rotary",
        "num_kv_heads": 1,
        "attention_window": 5,
        "share_embeddings": False,
    },
    "decoder_only_prefix_relative_bias": {
        "architecture": "decoder_only",
        "prefix_attention": True,
        "norm_order": "deep",
        "position": "relative_bias",
        "num_kv_heads": 1,
        "attention_bias": True,
        "embedding_norm": True,
        "parametrisation": "mup",
        "base_width": 8,
    },
}


class TinyModel(NamedTuple):
    """A module, its variables (all of them random) and jitted calls of it."""

    config: ModelConfig
    module: TokenNetwork
    variables: Any

    @property
    def decoding(self):
        """The `DecodingModel` of the module."""
        return decoding_of(self.module)

    def logits(self, batch, **options):
        """Logits as a NumPy array, without dropout unless told otherwise."""
        return np.asarray(_apply(self.module, self.variables, batch, **options))


def decoding_of(module):
    """The `DecodingModel` of a module."""
    return load_named(FAMILIES[module.config.architecture].scoring)(module)


@partial(jax.jit, static_argnames=("module", "deterministic"))
def _apply(module, variables, batch, deterministic=True, key=None):
    rngs = None if key is None else {"dropout": key}
    return module.apply(variables, batch, deterministic=deterministic, rngs=rngs)


def make_batch(sources, targets, source_length=8, target_length=7):
    """A batch. A row is a list of sentences, a sentence a list of ids."""

    def pack(rows, length):
        ids, segments, positions = np.zeros((3, len(rows), length), np.int32)
        for r, sentences in enumerate(rows):
            at = 0
            for number, sentence in enumerate(sentences, start=1):
                here = (r, slice(at, at + len(sentence)))
                ids[here], segments[here] = sentence, number
                positions[here] = np.arange(len(sentence))
                at += len(sentence)
        return Sequence(*map(jnp.array, (ids, segments, positions)))

    return Batch(pack(sources, source_length), pack(targets, target_length))


def make_model(*, kernels=CPU, **changes):
    """A tiny model: the paper's, but for `changes`."""
    fields = vars(_PAPER) | changes
    known = fields_of(fields["architecture"])
    config = network_config(**{name: one for name, one in fields.items() if name in known})
    module = load_named(FAMILIES[config.architecture].network)(
        config, VOCAB_SIZE, BOS_ID, kernels=kernels
    )
    batch = make_batch([[[3, 4]]], [[[5, 6]]], 2, 2)
    initialise = partial(module.init, deterministic=True)
    shapes = nn.unbox(jax.eval_shape(initialise, jax.random.key(0), batch))
    rng = np.random.default_rng(0)

    def draw(path, leaf):
        is_scale = jax.tree_util.keystr(path).endswith("['scale']")
        return jnp.array(is_scale + 0.25 * rng.normal(size=leaf.shape), leaf.dtype)

    return TinyModel(config, module, jax.tree_util.tree_map_with_path(draw, shapes))


@pytest.fixture(scope="session", params=thorough_after(3, _KINDS))
def model(request):
    """A tiny model of every kind: norm orders, positions, sharing, head sizes."""
    return make_model(**_KINDS[request.param])


@pytest.fixture(scope="session", name="make_model")
def _make_model():
    return make_model


@pytest.fixture(scope="session", name="make_batch")
def _make_batch():
    return make_batch
