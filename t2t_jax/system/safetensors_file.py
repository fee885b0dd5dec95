"""Read untrusted safetensors files."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from safetensors import safe_open

from t2t_jax.errors import UserError, in_one_line
from t2t_jax.system.bucket import local_copy
from t2t_jax.system.regular_file import regular

_INTEGERS = {f"{kind}{bits}" for kind in "IU" for bits in (8, 16, 32, 64)}
_READABLE = {"F64", "F32", "F16", "BF16", "BOOL", *_INTEGERS}  # buffers may be integers


def read_safetensors(file: Path) -> tuple[dict[str, np.ndarray], Mapping[str, str]]:
    """Read the arrays and the metadata of a safetensors file."""
    with _reading(file) as tensors:
        names = tensors.keys()
        for name in names:
            if (dtype := tensors.get_slice(name).get_dtype()) not in _READABLE:
                raise UserError(
                    f"{file} has values of dtype {dtype} in the array {name!r:.80}; import "
                    "the model in float32, float16 or bfloat16"
                )
        return {name: tensors.get_tensor(name) for name in names}, tensors.metadata() or {}


def read_metadata(file: Path) -> Mapping[str, str]:
    """Read the metadata of a safetensors file."""
    with _reading(file) as tensors:
        return tensors.metadata() or {}


@contextmanager
def _reading(file: Path) -> Iterator[safe_open]:
    try:
        with local_copy(file) as copy, safe_open(regular(copy), framework="numpy") as tensors:
            yield tensors
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # the library raises its own class and errors of NumPy
        cause_text = in_one_line(error)
        raise UserError(f"{file} is damaged, or no safetensors file: {cause_text:.200}") from error
