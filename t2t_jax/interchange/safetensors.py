"""The neutral format: a file of safetensors with one array for every parameter.

    OUT/model.safetensors       the parameters, in float32, under the names of `interchange.names`
    OUT/config.json             the config of the run
    OUT/vocabulary.model        the vocabulary, a SentencePiece model
    OUT/README.md               how to read the model

A model that is written and read again is the same, bit for bit.
"""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from t2t_jax.config import Config
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.errors import UserError
from t2t_jax.interchange.carried import ANY, Carried
from t2t_jax.interchange.model_files import read_text
from t2t_jax.interchange.portable import PortableModel
from t2t_jax.interchange.tensors import Tensors, read_safetensors
from t2t_jax.system.records import Each, Schema, parse_object

VOCABULARIES = (Vocabulary,)

_ARRAYS, _CONFIG, _VOCABULARY = "model.safetensors", "config.json", "vocabulary.model"
_ABOUT, _VERSION = "t2t_jax", 1
_SCHEMA = Schema({"version": int, "steps": Each(list, int), "vocabulary": str})
_README = """\
# A Transformer of t2t_jax

`model.safetensors` has an array for every parameter, named as in "Attention Is All You Need":
`encoder.layers.0.self_attention.W_Q` is W^Q of section 3.2.2 in the first layer, all heads side by
side. Matrices are as in the paper's formulas, x W. `config.json` has the sizes and the options, and
`vocabulary.model` is a SentencePiece model.

    from safetensors.numpy import load_file

    load_file("model.safetensors")["encoder.layers.0.self_attention.W_Q"].shape

As a run of t2t_jax, to translate, to score or to train on:

    t2t-jax import safetensors . runs/imported
"""


def carried(config: Config) -> Carried:
    """Return all fields of a config, each with every value: the config is written as a whole."""
    del config  # every config can be held
    return dict.fromkeys(("model", "data", "decoding"), ANY)


def write(model: PortableModel, directory: Path) -> None:
    """Write a model in the neutral format."""
    about = {
        "version": _VERSION,
        "steps": model.steps,
        "vocabulary": model.vocabulary.fingerprint,
    }
    # One entry alone: safetensors writes several in an order that changes each time.
    metadata = {_ABOUT: json.dumps(about)}
    # safetensors writes the memory of an array, whatever its strides are.
    arrays = {name: np.asarray(array, order="C") for name, array in model.arrays.items()}
    (directory / _ARRAYS).write_bytes(save(arrays, metadata))
    (directory / _CONFIG).write_text(model.config.to_json(), encoding="utf-8")
    (directory / _VOCABULARY).write_bytes(model.vocabulary.serialized)
    (directory / "README.md").write_text(_README, encoding="utf-8")


def read(path: Path) -> PortableModel:
    """Read a model that `write` has written.

    Raises:
      UserError: a file is missing, or damaged, or belongs to another model.
    """
    file = path / _ARRAYS
    if not file.exists():
        raise UserError(f"{path} is not a directory that t2t-jax export --to safetensors wrote")
    found, metadata = read_safetensors(file)
    tensors = Tensors(file, found)
    arrays = {name: tensors.take(name) for name in found}
    try:
        about = parse_object(metadata.get(_ABOUT, "{}"), _SCHEMA)
    except ValueError as error:
        raise UserError(
            f"{file} was not written by t2t-jax export --to safetensors: {error}"
        ) from error
    if about["version"] != _VERSION:
        raise UserError(f"{file} was written by a later t2t_jax, which has to read it")
    vocabulary = Vocabulary.load(path / _VOCABULARY)
    if about["vocabulary"] != vocabulary.fingerprint:
        raise UserError(f"{path / _VOCABULARY} is not the vocabulary that {file} was written with")
    try:
        config = Config.from_json(read_text(path / _CONFIG))
    except UserError as error:
        raise UserError(f"{path / _CONFIG}: {error}") from error
    return PortableModel(config, vocabulary, arrays, tuple(about["steps"]))
