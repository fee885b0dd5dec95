"""Weights in pytorch_model.bin, which PyTorch reads where it is installed."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from t2t_jax.__main__ import main
from t2t_jax.extras.interchange.formats import read_model
from t2t_jax.extras.interchange.model_files import read_torch_file
from t2t_jax.functional.position import sinusoidal_positions
from tests.extras.interchange.models import GOLDENS, assert_same_arrays, copied
from tests.refusals import refused

_MODEL = GOLDENS / "opus" / "shared"


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


@pytest.fixture
def place(tmp_path) -> Path:
    """A model without weights."""
    place = copied("shared", tmp_path)
    (place / "model.safetensors").unlink()
    return place


def tensors(torch: Any, dtype: str = "float32") -> dict[str, Any]:
    arrays = load_file(_MODEL / "model.safetensors")
    return {name: torch.tensor(x).to(getattr(torch, dtype)) for name, x in arrays.items()}


class _Code:
    """A pickle of this makes `pickle.load` write a file."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return os.system, (f"touch {self.canary}",)


@pytest.mark.parametrize("is_zip", [True, False], ids=["archive", "before PyTorch 1.6"])
def test_a_model_is_the_one_in_safetensors(torch, place, is_zip):
    file = place / "pytorch_model.bin"
    torch.save(tensors(torch), file, _use_new_zipfile_serialization=is_zip)
    model, wanted = read_model("marian", place), read_model("marian", _MODEL)
    assert_same_arrays(model.arrays, wanted.arrays)


def test_a_model_may_lie_in_two_files(torch, place):
    names = list(weights := tensors(torch))
    files = {name: f"pytorch_model-{n % 2 + 1}-of-2.bin" for n, name in enumerate(names)}
    for file in set(files.values()):
        torch.save({name: weights[name] for name in names if files[name] == file}, place / file)
    index = {"metadata": {}, "weight_map": files}
    (place / "pytorch_model.bin.index.json").write_text(json.dumps(index), encoding="utf-8")
    model, wanted = read_model("marian", place), read_model("marian", _MODEL)
    np.testing.assert_array_equal(model.arrays["embedding"], wanted.arrays["embedding"])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_dtypes_become_float32(torch, place, dtype):
    given = tensors(torch, dtype)
    torch.save(given, place / "pytorch_model.bin")
    bias = read_model("marian", place).arrays["encoder.layers.1.feed_forward.b_1"]
    np.testing.assert_array_equal(bias, given["model.encoder.layers.1.fc1.bias"].float().numpy())


def test_positions_in_bfloat16_may_be_rounded(torch, place):
    given = tensors(torch, "bfloat16")
    rows = np.asarray(sinusoidal_positions(20, 32))
    rounded = torch.tensor(np.hstack([rows[:, ::2], rows[:, 1::2]])).to(torch.bfloat16)
    given |= {f"model.{name}.embed_positions.weight": rounded for name in ("encoder", "decoder")}
    torch.save(given, place / "pytorch_model.bin")
    assert read_model("marian", place).config.model.position == "sinusoidal"


def test_trainable_parameters_are_read_as_tensors(torch, tmp_path):
    weight = torch.nn.Parameter(torch.arange(3.0))
    torch.save({"weight": weight}, tmp_path / "weights.bin")
    arrays = read_torch_file(tmp_path / "weights.bin")
    np.testing.assert_array_equal(arrays["weight"], [0, 1, 2])


def test_a_version_that_may_execute_code_is_refused(tmp_path, monkeypatch):
    (tmp_path / "weights.bin").write_bytes(b"weights")
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__="2.5.1+cpu"))
    with refused("2.5.1+cpu may execute code in the file; upgrade"):
        read_torch_file(tmp_path / "weights.bin")


@pytest.mark.parametrize("is_zip", [True, False])
def test_code_is_refused_and_not_executed(torch, place, is_zip, tmp_path):
    code = {"model.shared.weight": _Code(tmp_path / "canary")}
    file = place / "pytorch_model.bin"
    torch.save(code, file, _use_new_zipfile_serialization=is_zip)
    with refused(match=r"pytorch_model\.bin .* more than weights"):
        main(["import", "marian", str(place), str(tmp_path / "run")])
    assert not (tmp_path / "canary").exists()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("share", [0.02, 0.9, 0.999])
def test_a_truncated_file_is_refused(torch, tmp_path, share):
    file = tmp_path / "pytorch_model.bin"
    torch.save(tensors(torch), file)
    whole = file.read_bytes()
    file.write_bytes(whole[: int(share * len(whole))])
    with refused(match=r"pytorch_model\.bin is damaged"):
        read_torch_file(file)


@pytest.mark.parametrize("content", [{}, {"a": 1}, [1, 2], 3])
def test_something_else_than_weights_is_refused(torch, tmp_path, content):
    file = tmp_path / "pytorch_model.bin"
    torch.save(content, file)
    with refused(match=r"pytorch_model\.bin (is damaged|has no dictionary)"):
        read_torch_file(file)


def test_an_entry_that_is_no_tensor_is_refused_by_name(torch, tmp_path):
    file = tmp_path / "pytorch_model.bin"
    torch.save({**tensors(torch), "ema": {"weight": torch.ones(3)}}, file)
    with refused(match=r"pytorch_model\.bin .* more than weights: 'ema' is no"):
        read_torch_file(file)


def test_without_pytorch_one_line_says_how_to_convert_it(place, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    (place / "pytorch_model.bin").touch()
    with refused(match=r"pip install torch; .*safe_serialization=True"):
        read_model("marian", place)
