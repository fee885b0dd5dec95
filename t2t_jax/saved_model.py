"""Write and read a run directory that has `model.safetensors` instead of checkpoints.

The file stores every parameter in float32 or bfloat16, under the names of `modules.names`. The
metadata store the training steps and the hash of the vocabulary.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import save as serialize

from t2t_jax.config import Config
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.errors import UserError
from t2t_jax.modules.models import make_model
from t2t_jax.modules.names import Arrays, named_arrays
from t2t_jax.modules.network import declared_parameters
from t2t_jax.modules.parameters import Parameters, check_alike
from t2t_jax.parallel.mesh import on_host
from t2t_jax.parallel.processes import failing_process, is_main
from t2t_jax.system.atomic_file import writing_directory
from t2t_jax.system.bucket import as_path
from t2t_jax.system.opening import check_directory_name
from t2t_jax.system.records import Record, parse_object, schema
from t2t_jax.system.safetensors_file import read_metadata, read_safetensors
from t2t_jax.system.sums import write_sums
from t2t_jax.workdir import CONFIG, PARAMETERS, VOCABULARY, keep_registered, write_vocabulary

_ABOUT, _VERSION = "t2t_jax", 1
_SCHEMA = schema({"version": int, "steps": list[int], "vocabulary": str})


class SavedParameters(NamedTuple):
    """The parameters of a model on the host, with their steps and vocabulary."""

    arrays: Arrays
    """The parameters, as `modules.names` names them."""
    steps: tuple[int, ...]
    """The steps of the checkpoints whose mean the parameters are; () if unknown."""
    vocabulary: str
    """The hash of the vocabulary (`Vocabulary.fingerprint`)."""


def check_vocabulary(file: Path, saved: SavedParameters, fingerprint: str) -> None:
    """Refuse parameters that were trained with another vocabulary.

    Args:
      fingerprint: the hash of the vocabulary in the directory of the file.
    """
    if saved.vocabulary != fingerprint:
        vocabulary_path = file.parent / VOCABULARY
        raise UserError(f"{vocabulary_path} is not the vocabulary that {file} was written with")


def save(
    config: Config,
    vocabulary: Vocabulary,
    params: Parameters,
    directory: str | os.PathLike[str],
    *,
    steps: Sequence[int] = (),
) -> None:
    """Write a model as a run directory, which `load` and every command open.

    The directory has no optimizer state: `training.init_from` starts a new run with the model. The
    files that registered functions of the config are copied, too. If a model is sharded over
    several processes, all of them call this function, and process 0 writes.

    Args:
      config: the config of the model. If `training.ema_decay` is set, `params` are that average.
      vocabulary: the vocabulary of the model, such as `translator.vocabulary`.
      params: float32 arrays, as from `build(config, len(vocabulary)).init(...)["params"]`.
      directory: a missing or empty directory on this machine.
      steps: the training steps of `params`, if known.

    Raises:
      TypeError: `config` or `vocabulary` is of the wrong type.
      UserError: `params` do not fit the config and the vocabulary, or the directory is not empty
        or cannot be written.
    """
    for name, value, kind in ("config", config, Config), ("vocabulary", vocabulary, Vocabulary):
        if not isinstance(value, kind):
            raise TypeError(f"{name} is a {type(value).__name__}; give a {kind.__name__}")
    path, model = as_path(directory), config.model
    sizes = model.entries(len(vocabulary))
    if (source := model.embeddings.get("source")) and sizes[source] != vocabulary.source_size:
        raise UserError(
            f"the vocabulary has {vocabulary.source_size} entries for sources, and the model of "
            f"the config {sizes[source]}; give the vocabulary that the model was trained with"
        )
    network = make_model(config, len(vocabulary), None)
    expected = nn.unbox(declared_parameters(network))
    owner = f"the model of the config with a vocabulary of {len(vocabulary)} subwords"
    check_alike(params, expected, owner, 'build(config, len(vocabulary)).init(...)["params"]')
    params, error = on_host(jax.tree.map(jnp.asarray, params)), None
    if is_main():
        try:
            check_directory_name(path)
            with writing_directory(path) as new_directory:
                keep_registered(config, new_directory)
                arrays = named_arrays(params)
                saved = SavedParameters(arrays, tuple(map(int, steps)), vocabulary.fingerprint)
                write_model(new_directory, config, vocabulary, saved, "float32")
                write_sums(new_directory)
        except UserError as caught:
            error = caught
    if failing_process(error is None) is not None:
        raise error or UserError(f"process 0 could not write {path}; see its error")


def write_model(
    directory: Path, config: Config, vocabulary: Vocabulary, saved: SavedParameters, dtype: str
) -> None:
    """Write the parameters, the vocabulary and the config of a run into an empty directory.

    Args:
      dtype: see `write_parameters`.
    """
    write_parameters(directory / PARAMETERS, saved, dtype)
    write_vocabulary(directory, vocabulary)
    (directory / CONFIG).write_text(config.to_json(), encoding="utf-8")


def write_parameters(file: Path, saved: SavedParameters, dtype: str = "float32") -> None:
    """Write parameters to a new file; identical parameters give identical bytes.

    Args:
      dtype: "float32", or "bfloat16" to round the parameters and halve the file.
    """
    about = {"version": _VERSION, "steps": saved.steps, "vocabulary": saved.vocabulary}
    # A single metadata entry: safetensors writes several entries in a random order.
    metadata = {_ABOUT: json.dumps(about)}
    # safetensors writes the memory of an array and ignores its strides, hence order="C".
    stored_dtype = jnp.dtype(dtype)
    arrays = {name: np.asarray(x, stored_dtype, order="C") for name, x in saved.arrays.items()}
    file.write_bytes(serialize(arrays, metadata))


def read_parameters(file: Path) -> SavedParameters:
    """Read parameters from a file of `write_parameters`, as float32."""
    arrays, metadata = read_safetensors(file)
    about = _parse_metadata(file, metadata.get(_ABOUT, "{}"))
    float_arrays = {name: np.asarray(array, np.float32) for name, array in arrays.items()}
    return SavedParameters(float_arrays, tuple(about["steps"]), about["vocabulary"])


def read_steps(file: Path) -> list[int]:
    """Read the training steps of a parameter file, oldest first; [0] if unknown."""
    return _parse_metadata(file, read_metadata(file).get(_ABOUT, "{}"))["steps"] or [0]


def _parse_metadata(file: Path, stored: str) -> Record:
    try:
        about = parse_object(stored, _SCHEMA)
    except ValueError as error:
        raise UserError(
            f"{file} was not written by t2t-jax export --to run or --to safetensors: {error}"
        ) from error
    if about["version"] != _VERSION:
        raise UserError(f"{file} was written by a newer t2t_jax; upgrade t2t_jax to read it")
    return about
