"""Read and write `model.safetensors`, which an exported run has instead of checkpoints.

The file stores every parameter in float32 or bfloat16, under the names of `modules.names`. The
metadata store the training steps and the hash of the vocabulary.
"""

import json
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from safetensors.numpy import save

from t2t_jax.errors import UserError
from t2t_jax.modules.names import Arrays
from t2t_jax.system.records import Record, parse_object, schema
from t2t_jax.system.safetensors_file import read_metadata, read_safetensors
from t2t_jax.workdir import VOCABULARY

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
    file.write_bytes(save(arrays, metadata))


def read_parameters(file: Path) -> SavedParameters:
    """Read parameters from a file of `write_parameters`, as float32."""
    arrays, metadata = read_safetensors(file)
    about = _checked(file, metadata.get(_ABOUT, "{}"))
    float_arrays = {name: np.asarray(array, np.float32) for name, array in arrays.items()}
    return SavedParameters(float_arrays, tuple(about["steps"]), about["vocabulary"])


def read_steps(file: Path) -> list[int]:
    """Read the training steps of a parameter file, oldest first; [0] if unknown."""
    return _checked(file, read_metadata(file).get(_ABOUT, "{}"))["steps"] or [0]


def _checked(file: Path, stored: str) -> Record:
    try:
        about = parse_object(stored, _SCHEMA)
    except ValueError as error:
        raise UserError(
            f"{file} was not written by t2t-jax export --to run or --to safetensors: {error}"
        ) from error
    if about["version"] != _VERSION:
        raise UserError(f"{file} was written by a newer t2t_jax; upgrade t2t_jax to read it")
    return about
