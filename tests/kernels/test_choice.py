"""The devices of a mesh decide on the kernels and on the dtype of "auto", and not those at hand."""

from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from t2t_jax.kernels import bfloat16, choice
from t2t_jax.kernels.choice import (
    OF_PLATFORMS,
    XLA_KERNELS,
    Kernels,
    fast_compute_dtype,
    kernels_of,
)

_AMX = ("avx2", "fma", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile", "amx_bf16", "amx_int8")
_AVX512_BF16 = ("avx2", "fma", "avx512f", "avx512_bf16", "avx512_vnni")
_AVX512 = ("avx2", "fma", "avx512f", "avx512_vnni")
_AVX2 = ("avx2", "fma")
_CPU, _TPU = SimpleNamespace(platform="cpu"), SimpleNamespace(platform="tpu")


def _gpu(capability):
    return Mock(platform="gpu", compute_capability=capability)  # which can be hashed


@pytest.fixture(params=[_AMX, _AVX2], ids=["AMX", "AVX2"])
def host(request, monkeypatch):
    """Processors of the host that a mesh of other devices does not depend on."""
    monkeypatch.setattr(choice, "instruction_sets", lambda: request.param)


def _mesh(*devices):
    return Mock(spec=Mesh, devices=np.array(devices, object))


@pytest.mark.parametrize(
    ("devices", "attention", "dtype"),
    [
        ([_gpu("9.0")], "cudnn", "bfloat16"),
        ([_gpu("8.0")], "cudnn", "bfloat16"),
        ([_gpu("12.0")], "cudnn", "bfloat16"),
        ([_gpu("9.0"), _gpu("9.0")], "cudnn", "bfloat16"),
        ([_gpu("9.0"), _gpu("7.5")], "xla", "float32"),
        ([_gpu("7.5")], "xla", "float32"),
        ([_gpu("gfx942")], "xla", "float32"),
        ([_TPU], "xla_fused", "bfloat16"),
    ],
)
@pytest.mark.usefixtures("host")
def test_accelerators_are_chosen_for_by_their_kind_alone(devices, attention, dtype):
    mesh = _mesh(*devices)
    [platform] = {device.platform for device in devices}
    cached, short = ("cudnn", "at_once") if attention == "cudnn" else ("xla", "as_others")
    expected = replace(
        OF_PLATFORMS[platform], attention=attention, cached_attention=cached, short_rows=short
    )
    assert kernels_of(mesh, "bfloat16") == expected
    norms = "kept_moments"  # those for TPUs are for vectors in bfloat16
    assert kernels_of(mesh, "float32") == replace(expected, norms=norms)
    assert fast_compute_dtype(mesh) == dtype


@pytest.mark.parametrize(
    ("vendor", "instruction_sets", "products", "dtype"),
    [
        ("GenuineIntel", _AMX, "float32_results", "bfloat16"),
        ("AuthenticAMD", _AVX512_BF16, "float32_results", "bfloat16"),
        ("GenuineIntel", _AVX512_BF16, "float32_results", "float32"),
        ("AuthenticAMD", _AVX512, "plain", "float32"),
        ("GenuineIntel", _AVX2, "plain", "float32"),
        ("", ("asimd",), "plain", "float32"),
        ("", (), "plain", "float32"),
    ],
)
def test_cpus_are_chosen_for_by_their_instructions_and_their_maker(
    monkeypatch, vendor, instruction_sets, products, dtype
):
    monkeypatch.setattr(choice, "instruction_sets", lambda: instruction_sets)
    monkeypatch.setattr(choice, "processor_vendor", lambda: vendor)
    for mesh in (_mesh(_CPU), _mesh(_CPU, _CPU)):
        assert kernels_of(mesh, "bfloat16") == Kernels("xla", products)
        assert kernels_of(mesh, "float32") == XLA_KERNELS
        assert fast_compute_dtype(mesh) == dtype


@pytest.mark.usefixtures("host")
def test_without_a_mesh_xla_chooses_everything():
    assert kernels_of(None, "bfloat16") == XLA_KERNELS == Kernels("xla", "plain")


def test_forms_that_xla_refuses_are_not_taken(monkeypatch):
    monkeypatch.setattr(choice, "instruction_sets", lambda: _AMX)

    def refuse(*_):
        raise jax.errors.JaxRuntimeError("Unsupported element type for DotThunk::LHS: BF16")

    with monkeypatch.context() as patched:
        patched.setattr(bfloat16, "linear", refuse)
        bfloat16.is_supported.cache_clear()
        assert kernels_of(_mesh(_CPU), "bfloat16") == XLA_KERNELS
        assert fast_compute_dtype(_mesh(_CPU)) == "float32"
    bfloat16.is_supported.cache_clear()
    assert kernels_of(_mesh(_CPU), "bfloat16") == Kernels("xla", "float32_results")
