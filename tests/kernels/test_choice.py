"""The devices of a mesh decide on the kernels and on the dtype of "auto", and not those at hand."""

from unittest.mock import Mock

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from t2t_jax.kernels import bfloat16, choice
from t2t_jax.kernels.choice import fast_compute_dtype, kernels_of
from t2t_jax.kernels.cpu import CPU, CPU_BFLOAT16
from t2t_jax.kernels.gpu import CUDNN_GPU, CUDNN_GPU_FEW_QUERIES, GPU
from t2t_jax.kernels.tpu import TPU, TPU_BFLOAT16

_AMX = ("avx2", "fma", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile", "amx_bf16", "amx_int8")
_AVX512_BF16 = ("avx2", "fma", "avx512f", "avx512_bf16", "avx512_vnni")
_AVX512 = ("avx2", "fma", "avx512f", "avx512_vnni")
_AVX2 = ("avx2", "fma")
_CPU, _TPU = (Mock(spec=jax.Device, platform=platform) for platform in ("cpu", "tpu"))


def _gpu(capability):
    return Mock(spec=jax.Device, platform="gpu", compute_capability=capability)


@pytest.fixture(params=[_AMX, _AVX2], ids=["AMX", "AVX2"])
def host(request, monkeypatch):
    """Processors of the host that a mesh of other devices does not depend on."""
    monkeypatch.setattr(choice, "instruction_sets", lambda: request.param)


def _mesh(*devices):
    return Mock(spec=Mesh, devices=np.array(devices, object))


@pytest.mark.parametrize(
    ("devices", "in_bfloat16", "in_float32", "dtype"),
    [
        ([_gpu("9.0")], CUDNN_GPU_FEW_QUERIES, CUDNN_GPU_FEW_QUERIES, "bfloat16"),
        ([_gpu("8.0")], CUDNN_GPU_FEW_QUERIES, CUDNN_GPU_FEW_QUERIES, "bfloat16"),
        ([_gpu("12.0")], CUDNN_GPU_FEW_QUERIES, CUDNN_GPU_FEW_QUERIES, "bfloat16"),
        ([_gpu("9.0")] * 2, CUDNN_GPU_FEW_QUERIES, CUDNN_GPU_FEW_QUERIES, "bfloat16"),
        ([_gpu("9.0"), _gpu("7.5")], GPU, GPU, "float32"),
        ([_gpu("7.5")], GPU, GPU, "float32"),
        ([_gpu("gfx942")], GPU, GPU, "float32"),
        ([_TPU], TPU_BFLOAT16, TPU, "bfloat16"),
    ],
)
@pytest.mark.usefixtures("host")
def test_accelerators_are_chosen_for_by_their_kind_alone(devices, in_bfloat16, in_float32, dtype):
    mesh = _mesh(*devices)
    assert kernels_of(mesh, "bfloat16") is in_bfloat16
    assert kernels_of(mesh, "float32") is in_float32
    assert fast_compute_dtype(mesh) == dtype


@pytest.mark.usefixtures("host")
def test_gpus_whose_cudnn_takes_no_few_queries_have_other_caches(monkeypatch):
    monkeypatch.setattr(choice, "takes_few_queries", lambda device: device == "one that does")
    assert kernels_of(_mesh(_gpu("9.0")), "bfloat16") is CUDNN_GPU


@pytest.mark.parametrize(
    ("vendor", "instruction_sets", "kernels", "dtype"),
    [
        ("GenuineIntel", _AMX, CPU_BFLOAT16, "bfloat16"),
        ("AuthenticAMD", _AVX512_BF16, CPU_BFLOAT16, "bfloat16"),
        ("GenuineIntel", _AVX512_BF16, CPU_BFLOAT16, "float32"),
        ("AuthenticAMD", _AVX512, CPU, "float32"),
        ("GenuineIntel", _AVX2, CPU, "float32"),
        ("", ("asimd",), CPU, "float32"),
        ("", (), CPU, "float32"),
    ],
)
def test_cpus_are_chosen_for_by_their_instructions_and_their_maker(
    monkeypatch, vendor, instruction_sets, kernels, dtype
):
    monkeypatch.setattr(choice, "instruction_sets", lambda: instruction_sets)
    monkeypatch.setattr(choice, "processor_vendor", lambda: vendor)
    for mesh in (_mesh(_CPU), _mesh(_CPU, _CPU)):
        assert kernels_of(mesh, "bfloat16") is kernels
        assert kernels_of(mesh, "float32") is CPU
        assert fast_compute_dtype(mesh) == dtype


@pytest.mark.usefixtures("host")
def test_without_a_mesh_the_functions_are_those_that_run_anywhere():
    assert kernels_of(None, "bfloat16") is CPU


def test_forms_that_xla_refuses_are_not_taken(monkeypatch):
    monkeypatch.setattr(choice, "instruction_sets", lambda: _AMX)

    def refuse(*_):
        raise jax.errors.JaxRuntimeError("Unsupported element type for DotThunk::LHS: BF16")

    with monkeypatch.context() as patched:
        patched.setattr(bfloat16, "linear", refuse)
        bfloat16.is_supported.cache_clear()
        assert kernels_of(_mesh(_CPU), "bfloat16") is CPU
        assert fast_compute_dtype(_mesh(_CPU)) == "float32"
    bfloat16.is_supported.cache_clear()
    assert kernels_of(_mesh(_CPU), "bfloat16") is CPU_BFLOAT16
