"""The neutral form, read by the formulas of `tests/modules/numpy_transformer.py`."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes  # noqa: F401 (NumPy has bfloat16 once it is imported)
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from tests.against.networks.part import drawn, inputs
from tests.against.part import Case
from tests.modules import numpy_transformer

_ATTENTION = {"Q": "query", "K": "key", "V": "value", "O": "output"}
_KINDS = {"W": "kernel", "b": "bias"}
_STARTS = {"padding": 0, "end": 1, "begin": 2}


def exported(case: Case, folder: str) -> np.ndarray:
    """Return the log-probabilities of an export."""
    return _log_probs(case, Path(folder, "exported"))


def trained(case: Case, folder: str) -> np.ndarray:
    """Change all parameters of an export, write it, and return its log-probabilities."""
    place = Path(folder, "trained")
    shutil.copytree(Path(folder, "exported"), place)
    (place / "SHA256SUMS").unlink(missing_ok=True)
    arrays, metadata = _read(place)
    rng = np.random.default_rng(case["seed"])
    changed = {name: x + drawn(rng, name, x.shape) / 2 for name, x in arrays.items()}
    save_file(changed, place / "model.safetensors", metadata)
    return _log_probs(case, place)


def _read(place: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    with safe_open(place / "model.safetensors", "np") as file:
        names = file.keys()
        return {name: file.get_tensor(name).astype(np.float32) for name in names}, file.metadata()


def _log_probs(case: Case, place: Path) -> np.ndarray:
    text = (place / "config.json").read_text(encoding="utf-8")
    config = SimpleNamespace(**json.loads(text)["model"])
    params, rows = _tree(_read(place)[0]), []
    for pair in zip(*inputs(case), strict=True):
        if config.architecture == "decoder_only":
            rows += [numpy_transformer.decoder_only_logits(params, config, *pair)]
        else:
            start = _STARTS[config.start_token]
            rows += [numpy_transformer.logits(params, config, *pair, bos_id=start)]
    logits = np.concatenate(rows)
    logits -= logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def _tree(arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """Return parameters in nested dictionaries, with a list for the layers of a stack."""
    tree: dict[str, Any] = {}
    for name, array in sorted(arrays.items()):
        *path, last = name.split(".")
        kind, _, letter = last.partition("_")
        if not path and array.ndim == 2:
            path, last = [last], "embedding"
        elif letter in _ATTENTION:
            path, last = [*path, _ATTENTION[letter]], _KINDS[kind]
        elif letter in ("1", "2"):
            last = f"{_KINDS[kind]}_{letter}"
        elif last in ("W_gate", "v"):
            path, last = (path, "gate_kernel") if letter else ([*path, "scores"], "vector")
        elif path[-1:] in (["query_norm"], ["key_norm"]):
            path = [*path[:-1], "scores", path[-1]]
        elif path[-1:] == ["norm"] and "layers" in path:
            path[-2] += "_residual"
        node = tree
        for part in path:
            node = node if part.isdigit() else node.setdefault(part, {})
        if "layers" in path:
            node.setdefault(last, []).append(array)
        else:
            node[last] = array
    return tree
