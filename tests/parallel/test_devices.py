"""The devices of JAX, and an environment in which it has none that can be used."""

from pathlib import Path
from unittest import mock

import jax
import pytest

import t2t_jax
from t2t_jax import Config, UserError
from t2t_jax.parallel import devices
from t2t_jax.parallel.devices import all_devices, hardware_name, local_devices
from tests.programs import ROOT, run_python
from tests.refusals import refused

# Where another file has imported JAX into this process, it warns of the fork that starts a program.
pytestmark = pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")


def test_devices_are_those_of_jax():
    assert list(all_devices()) == jax.devices()
    assert list(local_devices()) == jax.local_devices()


def test_hardware_is_named_by_its_maker():
    gpu = mock.Mock(jax.Device, platform="gpu", device_kind="NVIDIA H200")
    assert hardware_name([gpu, gpu]) == "2 × NVIDIA H200"
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    assert not models or hardware_name(jax.devices()[:1]) == f"1 × {models[0]}"


@pytest.mark.parametrize(
    ("asked", "device", "warns"),
    [(None, "nvidia0", True), ("cpu", "nvidia0", False), (None, "null", False)],
)
def test_a_gpu_that_jax_leaves_unused_is_said(asked, device, warns, tmp_path, monkeypatch, capsys):
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / device).touch()
    values = jax.config.values | {"jax_platforms": asked}
    monkeypatch.setattr(type(jax.config), "values", values)
    devices.warn_of_unused_gpu(tmp_path)
    said = capsys.readouterr().err
    assert bool(said) == warns
    assert not warns or f"pip install 'jax[cuda12]=={jax.__version__}'" in said


@pytest.fixture
def in_64_bits():
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


@pytest.mark.usefixtures("in_64_bits")
def test_64_bits_are_refused_by_training_and_by_loading(tmp_path):
    run = min((ROOT / "tests/goldens/runs").rglob("config.json")).parent
    with pytest.raises(UserError, match=r"computes in 64 bits .*, but the models of this"):
        t2t_jax.load(run)
    with pytest.raises(UserError, match=r"jax\.config\.update\('jax_enable_x64', False\)"):
        t2t_jax.train(Config(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            RuntimeError("Unable to initialize backend 'x'.\nIs it? (set JAX_PLATFORMS='' to"),
            " (Unable to initialize backend 'x'. Is it?); unset JAX_PLATFORMS to use any",
        ),
        (AssertionError(), "; unset JAX_PLATFORMS to use any device"),
    ],
)
def test_a_platform_that_is_not_there_is_told(monkeypatch, error, said):
    def fail():
        raise error

    monkeypatch.setattr(jax, "devices", fail)
    devices._start.cache_clear()
    with refused("JAX finds no device") as told:
        local_devices()
    asked = jax.config.values["jax_platforms"]
    assert str(told.value).startswith(f"JAX finds no device of JAX_PLATFORMS={asked}{said}")


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"JAX_PLATFORMS": "cuda"}, "error: JAX finds no device of JAX_PLATFORMS=cuda"),
        ({"JAX_ENABLE_X64": "1"}, "error: JAX computes in 64 bits"),
    ],
    ids=["CUDA without a GPU", "64 bits"],
)
def test_a_training_that_no_device_can_do_is_one_line(tmp_path, setting, said):
    command = ["train.py", "--config", "configs/quickstart.py", "--workdir", str(tmp_path / "run")]
    done = run_python(*command, **setting)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(said)
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()
