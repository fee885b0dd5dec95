"""A reader of pytorch_model.bin, the only weights of many older models, by PyTorch itself."""

from pathlib import Path

import numpy as np
from jaxtyping import Shaped

from t2t_jax.errors import UserError, in_one_line
from t2t_jax.system.regular_file import regular

_OLDEST = 2, 6  # earlier versions may execute code in spite of weights_only (CVE-2025-32434)


def read_torch_file(file: Path) -> dict[str, Shaped[np.ndarray, "..."]]:
    """Read the tensors of a file that `torch.save` wrote. No code in the file is executed.

    Raises:
      UserError: PyTorch is not installed or too old, or the file is missing, damaged or holds more
        than weights.
    """
    try:
        regular(file)
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror or error}") from error
    try:
        import torch
    except ModuleNotFoundError as error:
        raise UserError(
            f"{file} is read by PyTorch, which is not installed: pip install torch; or load the "
            "model with transformers elsewhere, and save it as model.safetensors: "
            "model.save_pretrained(DIRECTORY, safe_serialization=True)"
        ) from error
    if tuple(map(int, torch.__version__.split(".")[:2])) < _OLDEST:
        raise UserError(
            f"{file}: PyTorch {torch.__version__} may execute code in the file; upgrade it: "
            "pip install 'torch>=2.6'"
        )
    try:
        weights = torch.load(file, map_location="cpu", weights_only=True)
        for name, tensor in weights.items():
            if not (isinstance(name, str) and isinstance(tensor, torch.Tensor)):
                raise TypeError(f"{name!r:.80} is no tensor")
        arrays = {
            # NumPy has no bfloat16, and float32 holds each of its values.
            name: (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).detach().numpy()
            for name, tensor in weights.items()
        }
    except Exception as error:  # a damaged pickle may raise anything
        why = in_one_line(error) or type(error).__name__
        raise UserError(
            f"{file} is damaged, or holds more than weights: {why:.150}; copy it anew"
        ) from error
    if not arrays:
        raise UserError(f"{file} has no dictionary of tensors, which weights are")
    return arrays
