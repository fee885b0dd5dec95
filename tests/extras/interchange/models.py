"""Small models with random parameters, of every kind that a config can describe."""

import json
import shutil
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from t2t_jax import Translator, named_arrays, parameters_of
from t2t_jax.config import Config, DataConfig
from t2t_jax.data.corpus import open_corpus
from t2t_jax.data.vocabularies.learning import train_vocabulary
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.extras.encoders.vocabulary import labelled_vocabulary
from t2t_jax.extras.interchange.formats import read_model
from t2t_jax.extras.interchange.portable import PortableModel
from t2t_jax.modules.models import make_model
from t2t_jax.modules.network import declared_parameters
from tests.programs import ROOT
from tests.tiny import tiny_sizes

GOLDENS = ROOT / "tests/goldens"
MODELS = {
    "gpt2": ("pretrained", "gpt2"),
    "shared": ("opus", "marian"),
    "separate": ("opus", "marian"),
    "m2m100": ("seq2seq", "m2m100"),
    "nllb": ("seq2seq", "m2m100"),
    "mbart50": ("seq2seq", "mbart"),
    "mbart": ("seq2seq", "mbart"),
    "bart": ("seq2seq", "bart"),
}
"""The models of transformers: the directory in `goldens` that has each, and its format."""

_SIZES = {
    **tiny_sizes(16, (2, 3), num_heads=4),
    "model.max_positions": 128,
    "data.vocab_size": 500,
    "data.max_length": 64,
    "decoding.max_source_length": 64,
    "decoding.max_extra_length": 10,
}
OPTIONS: dict[str, dict[str, Any]] = {
    "paper": {},
    "pre-norm": {"model.norm_order": "pre"},
    "deep-norm": {"model.norm_order": "deep"},
    "modern": {
        "model.norm": "rms",
        "model.norm_order": "pre",
        "model.position": "rotary",
        "model.feed_forward": "swiglu",
        "model.num_kv_heads": 2,
    },
    "multi-query": {"model.num_kv_heads": 1},
    "tensor2tensor-sinusoids": {"model.position": "sinusoidal_t2t"},
    "learned-positions": {"model.position": "learned"},
    "no-positions": {"model.position": "none"},
    "alibi": {"model.position": "alibi"},
    "relative-bias": {"model.position": "relative_bias"},
    "rotary-linear": {"model.position": "rotary", "model.rotary_scale": 2.0},
    "rotary-ntk": {
        "model.position": "rotary",
        "model.rotary_scale": 2.0,
        "model.rotary_scaling": "ntk",
    },
    "dot-product": {"model.attention_kind": "dot_product"},
    "additive": {"model.attention_kind": "additive"},
    "attention-bias": {"model.attention_bias": True, "model.feed_forward": "silu"},
    "query-key-norm": {"model.query_key_norm": True},
    "window": {"model.attention_window": 4},
    "narrow-keys": {"model.d_k": 2},
    "wide-heads": {"model.d_k": 8, "model.d_v": 8},
    "untied": {"model.share_embeddings": False, "model.embedding_norm": True},
    "tied-target": {
        "model.share_embeddings": False,
        "model.share_target_embedding": True,
        "model.output_bias": True,
    },
    "unscaled-embeddings": {"model.scale_embeddings": False},
    "epsilon": {"model.norm_epsilon": 0.1},
    "gelu": {"model.feed_forward": "gelu"},
    "glu": {"model.feed_forward": "glu"},
    "reglu": {"model.feed_forward": "reglu"},
    "geglu": {"model.feed_forward": "geglu"},
    "gates-and-relative-bias": {
        "model.norm": "rms",
        "model.norm_order": "pre",
        "model.position": "relative_bias",
        "model.feed_forward": "geglu_tanh",
        "model.share_embeddings": False,
        "model.share_source_embedding": True,
    },
    "gelu-tanh": {"model.feed_forward": "gelu_tanh"},
    "started-by-end": {"model.start_token": "end"},
    "started-by-padding": {"model.start_token": "padding"},
}
"""Options of a model, each of which changes what parameters there are or how they are used."""

MARIAN = "paper", "deep-norm", "attention-bias", "gelu", "tied-target", "unscaled-embeddings"
"""The options of models in `marian_goldens.json`, which has the results of transformers."""


@cache
def real_pairs() -> tuple[list[str], list[str]]:
    """Sentences of the bundled corpus, and their translations."""
    sources, targets = open_corpus(DataConfig()).lines("dev")
    return list(sources)[:60], list(targets)[:60]


@cache
def vocabulary() -> Vocabulary:
    return train_vocabulary([real_pairs()], 500)


def portable(fields: Mapping[str, Any], other: Vocabulary | None = None) -> PortableModel:
    """A model with these fields of a config, and random numbers in all of its parameters."""
    own = vocabulary() if other is None else other
    settled = {"model.compute_dtype": "float32"}  # as a run has it
    config = Config().replace({**settled, **_SIZES}).replace(fields)
    network = make_model(config, len(own), None)
    rng = np.random.default_rng(0)

    def drawn(path: Any, like: Any) -> np.ndarray:
        drawn = rng.normal(0, 0.25, like.shape).astype(np.float32)
        return drawn + 1 if path[-1].key == "scale" else drawn

    declared = nn.unbox(declared_parameters(network))
    arrays = named_arrays(jax.tree_util.tree_map_with_path(drawn, declared))
    return PortableModel(config, own, arrays, (7,))


def image_classifier() -> PortableModel:
    """A model that gives one of three labels to an image of 12 x 12 pixels."""
    fields = {
        "model.architecture": "image_encoder",
        "model.norm_order": "pre",
        "model.position": "learned",
        "model.image_size": 12,
        "model.patch_size": 4,
        "model.image_channels": 3,
        "data.task": "image_classification",
        "data.corpus": "npz:images.npz",
    }
    return portable(fields, labelled_vocabulary(None, ["cat", "dog", "tree"]))


def masked_language_model() -> PortableModel:
    """A model that fills in words hidden by `<mask>`."""
    fields = {
        "model.architecture": "encoder_only",
        "model.output_bias": True,
        "data.task": "masked_language_modelling",
    }
    hidden = train_vocabulary([real_pairs()], 500, protected_tokens=["<mask>"])
    return portable(fields, hidden)


def golden_model(name: str, place: Path | None = None, **options: Any) -> PortableModel:
    """Read one of `MODELS`, or what a test made of its files at another place."""
    folder, format_ = MODELS[name]
    return read_model(format_, place or GOLDENS / folder / name, **options)


def copied(name: str, tmp_path: Path) -> Path:
    """A directory with the files of one of `MODELS`, for a test to change."""
    return Path(shutil.copytree(GOLDENS / MODELS[name][0] / name, tmp_path / "their"))


def altered_json(file: Path, **fields: Any) -> None:
    """Give the object in a file of JSON other values of some fields."""
    content = json.loads(file.read_text(encoding="utf-8")) | fields
    file.write_text(json.dumps(content), encoding="utf-8")


def translator_of(model: PortableModel) -> Translator:
    """The model as this package runs it."""
    network = make_model(model.config, len(model.vocabulary), None)
    params = parameters_of(model.arrays, nn.unbox(declared_parameters(network)))
    return Translator(model.config, model.vocabulary, jax.tree.map(jax.numpy.asarray, params))


def subwords(model: PortableModel, lines: list[str]) -> list[list[str]]:
    """The subwords of each line, without the end of sentence, as CTranslate2 takes them."""
    return model.vocabulary.pieces([ids[:-1] for ids in model.vocabulary.encode(lines)])


def assert_same_arrays(found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> None:
    """Check that arrays have the same names and values."""
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def ensemble_of(translator: Translator) -> Translator:
    """An ensemble of two models, which are both the given one."""
    config, params = translator.config, translator.params
    return Translator(config, translator.vocabulary, params, others=[(config.model, params)])
