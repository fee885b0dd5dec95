"""The options of XLA: for several accelerators, unless the user or the compiler says otherwise."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from t2t_jax.config import ParallelConfig
from t2t_jax.parallel import jax_settings as module
from t2t_jax.parallel.jax_settings import OPTIONS, compiler_options, described_options
from t2t_jax.parallel.mesh import AXES, make_mesh

_REAL = "xla_llvm_disable_expensive_passes"
_OPTIONS = {_REAL: False, "xla_gpu_of_another_version": True}


@pytest.fixture
def mesh(monkeypatch):
    """Two CPUs, with options of their own."""
    monkeypatch.setitem(OPTIONS, "cpu", _OPTIONS)
    for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS"):
        monkeypatch.delenv(name, raising=False)
    [device, *_] = jax.devices()
    return Mesh(np.broadcast_to(device, (2, 1, 1)), AXES)


def test_an_option_that_the_installed_xla_lacks_is_left_out(mesh):
    assert compiler_options(mesh) == {_REAL: False}
    assert described_options(mesh) == "--xla_llvm_disable_expensive_passes=false"


@pytest.mark.parametrize("variable", ["XLA_FLAGS", "LIBTPU_INIT_ARGS"])
@pytest.mark.parametrize("value", ["--{}=true", "--xla_a=1  --{} --xla_b", "--{}"])
def test_the_users_own_value_holds(mesh, monkeypatch, variable, value):
    monkeypatch.setenv(variable, value.format(_REAL))
    assert compiler_options(mesh) == {}
    assert described_options(mesh) == ""


def test_flags_in_a_file_hold_as_well(mesh, monkeypatch, tmp_path):
    (tmp_path / "flags").write_text(f"--xla_a=1\n--{_REAL}=true\n")
    monkeypatch.setenv("XLA_FLAGS", str(tmp_path / "flags"))
    assert compiler_options(mesh) == {}
    monkeypatch.setenv("XLA_FLAGS", str(tmp_path / "missing"))  # which XLA reports
    assert compiler_options(mesh) == {_REAL: False}


def test_a_flag_whose_name_only_begins_alike_is_another(mesh, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", f"--{_REAL}_too=true --other={_REAL}")
    assert compiler_options(mesh) == {_REAL: False}


def test_another_error_than_an_unknown_option_is_not_hidden(mesh, monkeypatch):
    def refused(*_, **__):
        raise jax.errors.JaxRuntimeError("INTERNAL: ptxas is missing")

    monkeypatch.setattr(module, "jax", SimpleNamespace(**{**vars(jax), "jit": refused}))
    with pytest.raises(jax.errors.JaxRuntimeError, match="ptxas"):
        module._is_known(_REAL, 7, mesh.devices.flat[0])


def test_one_device_gets_what_is_for_one_and_cpus_nothing(mesh, monkeypatch):
    monkeypatch.setattr(module, "_FOR_SEVERAL", {_REAL})
    assert compiler_options(make_mesh(ParallelConfig(data=1))) == {}
    monkeypatch.setattr(module, "_FOR_SEVERAL", {*_OPTIONS} - {_REAL})
    assert compiler_options(make_mesh(ParallelConfig(data=1))) == {_REAL: False}
    monkeypatch.delitem(OPTIONS, "cpu")
    assert compiler_options(mesh) == {}


def test_every_option_is_a_flag_of_xla():
    names = {name for options in OPTIONS.values() for name in options}
    assert all(name.startswith("xla_") for name in names)
    assert names > module._FOR_SEVERAL
