"""The options of XLA: for several accelerators, unless the user or the compiler says otherwise."""

import dataclasses
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from t2t_jax.config import ParallelConfig
from t2t_jax.parallel import jax_settings as module
from t2t_jax.parallel.jax_settings import (
    OPTIONS,
    CompilerOption,
    compiler_options,
    described_options,
)
from t2t_jax.parallel.mesh import AXES, make_mesh

_REAL = CompilerOption("xla_llvm_disable_expensive_passes", False)
_UNKNOWN = CompilerOption("xla_gpu_of_another_version", True)


@pytest.fixture
def mesh(monkeypatch):
    """Two CPUs, with options of their own."""
    monkeypatch.setitem(OPTIONS, "cpu", (_REAL, _UNKNOWN))
    for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS"):
        monkeypatch.delenv(name, raising=False)
    [device, *_] = jax.devices()
    return Mesh(np.broadcast_to(device, (2, 1, 1)), AXES)


def test_an_option_that_the_installed_xla_lacks_is_left_out(mesh):
    assert compiler_options(mesh) == {_REAL.name: False}
    assert described_options(mesh) == "--xla_llvm_disable_expensive_passes=false"


@pytest.mark.parametrize("variable", ["XLA_FLAGS", "LIBTPU_INIT_ARGS"])
@pytest.mark.parametrize("value", ["--{}=true", "--xla_a=1  --{} --xla_b", "--{}"])
def test_the_users_own_value_holds(mesh, monkeypatch, variable, value):
    monkeypatch.setenv(variable, value.format(_REAL.name))
    assert compiler_options(mesh) == {}
    assert described_options(mesh) == ""


def test_flags_in_a_file_hold_as_well(mesh, monkeypatch, tmp_path):
    (tmp_path / "flags").write_text(f"--xla_a=1\n--{_REAL.name}=true\n")
    monkeypatch.setenv("XLA_FLAGS", str(tmp_path / "flags"))
    assert compiler_options(mesh) == {}
    monkeypatch.setenv("XLA_FLAGS", str(tmp_path / "missing"))  # which XLA reports
    assert compiler_options(mesh) == {_REAL.name: False}


def test_a_flag_whose_name_only_begins_alike_is_another(mesh, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", f"--{_REAL.name}_too=true --other={_REAL.name}")
    assert compiler_options(mesh) == {_REAL.name: False}


def test_another_error_than_an_unknown_option_is_not_hidden(mesh, monkeypatch):
    wrong = CompilerOption(_REAL.name, 7)

    def refused(*_, **__):
        raise jax.errors.JaxRuntimeError("INTERNAL: ptxas is missing")

    monkeypatch.setattr(module, "jax", SimpleNamespace(**{**vars(jax), "jit": refused}))
    with pytest.raises(jax.errors.JaxRuntimeError, match="ptxas"):
        module._is_known(wrong, mesh.devices.flat[0])


def test_one_device_gets_what_is_for_one_and_cpus_nothing(mesh, monkeypatch):
    assert compiler_options(make_mesh(ParallelConfig(data=1))) == {}
    monkeypatch.setitem(OPTIONS, "cpu", (dataclasses.replace(_REAL, for_one=True), _UNKNOWN))
    assert compiler_options(make_mesh(ParallelConfig(data=1))) == {_REAL.name: False}
    monkeypatch.delitem(OPTIONS, "cpu")
    assert compiler_options(mesh) == {}


def test_every_option_is_a_flag_of_xla_and_is_named_once():
    for options in OPTIONS.values():
        assert all(option.name.startswith("xla_") for option in options)
        assert len({option.name for option in options}) == len(options)
