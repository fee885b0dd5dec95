"""The file `model.safetensors` of a run: parameters that are loaded instead of checkpoints.

It has an array for every parameter, in float32 or bfloat16, under the names of `modules.names`. Its
metadata name their steps and their vocabulary.
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
    """The training steps of the checkpoints that the parameters are the mean of; () if unknown."""
    vocabulary: str
    """The hash of the vocabulary (`Vocabulary.fingerprint`)."""


def check_vocabulary(file: Path, saved: SavedParameters, fingerprint: str) -> None:
    """Refuse parameters of another vocabulary than the one beside their file.

    Args:
      fingerprint: the hash of the vocabulary beside the file.
    """
    if saved.vocabulary != fingerprint:
        beside = file.parent / VOCABULARY
        raise UserError(f"{beside} is not the vocabulary that {file} was written with")


def write_parameters(file: Path, saved: SavedParameters, dtype: str = "float32") -> None:
    """Write parameters into a new file; the same parameters give the same bytes.

    Args:
      dtype: "float32", or "bfloat16" for half the bytes and parameters that are rounded to it.
    """
    about = {"version": _VERSION, "steps": saved.steps, "vocabulary": saved.vocabulary}
    # One entry alone: safetensors writes several in an order that changes each time.
    metadata = {_ABOUT: json.dumps(about)}
    # safetensors writes the memory of an array, whatever its strides are.
    kind = jnp.dtype(dtype)
    arrays = {name: np.asarray(array, kind, order="C") for name, array in saved.arrays.items()}
    file.write_bytes(save(arrays, metadata))


def read_parameters(file: Path) -> SavedParameters:
    """Read the parameters that `write_parameters` wrote, in float32."""
    arrays, metadata = read_safetensors(file)
    about = _checked(file, metadata.get(_ABOUT, "{}"))
    whole = {name: np.asarray(array, np.float32) for name, array in arrays.items()}
    return SavedParameters(whole, tuple(about["steps"]), about["vocabulary"])


def read_steps(file: Path) -> list[int]:
    """Read the steps of the parameters in a file, oldest first; [0] if they are unknown."""
    return _checked(file, read_metadata(file).get(_ABOUT, "{}"))["steps"] or [0]


def _checked(file: Path, stored: str) -> Record:
    try:
        about = parse_object(stored, _SCHEMA)
    except ValueError as error:
        raise UserError(
            f"{file} was not written by t2t-jax export --to run or --to safetensors: {error}"
        ) from error
    if about["version"] != _VERSION:
        raise UserError(f"{file} was written by a later t2t_jax, which has to read it")
    return about
