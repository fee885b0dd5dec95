"""The GPUs of a machine, by its environment, a fake `nvidia-smi` and fake directories."""

import pytest

from t2t_jax.errors import UserError
from t2t_jax.sweep import launchers
from t2t_jax.sweep.launchers import Gpus, Local, find_gpus

VARIABLES = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "JAX_PLATFORMS"
TWO = """GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5a1f)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-77be)
"""
PARTS = """GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5a1f)
  MIG 3g.20gb     Device  0: (UUID: MIG-c0de)
  MIG 3g.20gb     Device  1: (UUID: MIG-beef)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-77be)
"""


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A function that makes a machine of what its `nvidia-smi` prints and its drivers show."""
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))

    def make(listed=None, code=0, nvidia=0, amd=()):
        if listed is not None:
            program = tmp_path / "nvidia-smi"
            program.write_text(f"#!/bin/sh\n[ \"$1\" = -L ] && printf '{listed}'\nexit {code}\n")
            program.chmod(0o755)
        for number in range(nvidia):
            (tmp_path / f"proc/driver/nvidia/gpus/0000:{number:02}:00.0").mkdir(parents=True)
        for number, identity in enumerate(amd):
            node = tmp_path / f"sys/class/kfd/kfd/topology/nodes/{number}"
            node.mkdir(parents=True)
            (node / "gpu_id").write_text(f"{identity}\n")
        return tmp_path

    return make


FOUND = {
    "two of nvidia-smi": ({"listed": TWO}, ("0", "1")),
    "one in parts, and another": ({"listed": PARTS}, ("MIG-c0de", "MIG-beef", "1")),
    "nvidia-smi without a driver": ({"listed": "NVIDIA-SMI has failed", "code": 9}, ()),
    "nvidia-smi that lists nothing": ({"listed": "No devices found"}, ()),
    "no nvidia-smi, and a driver": ({"nvidia": 3}, ("0", "1", "2")),
    "nvidia-smi fails, and a driver": ({"listed": TWO, "code": 9, "nvidia": 1}, ("0",)),
    "a processor and two GPUs of AMD": ({"amd": [0, 4321, 1234]}, ("0", "1")),
    "a processor of AMD alone": ({"amd": [0]}, ()),
    "nothing": ({}, ()),
}


@pytest.mark.parametrize(("parts", "names"), FOUND.values(), ids=FOUND.keys())
def test_gpus_are_those_that_the_machine_shows(machine, parts, names):
    found = find_gpus(machine(**parts))
    assert found.names == names
    if names:
        amd = "amd" in parts
        assert found.variable == ("HIP_VISIBLE_DEVICES" if amd else "CUDA_VISIBLE_DEVICES")


SAID = {
    "some of them": ({"CUDA_VISIBLE_DEVICES": "4, GPU-77be"}, ("4", "GPU-77be")),
    "none": ({"CUDA_VISIBLE_DEVICES": ""}, ()),
    "none by a number": ({"CUDA_VISIBLE_DEVICES": "-1"}, ()),
    "none in a job of Slurm": ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, ()),
    "one of AMD": ({"ROCR_VISIBLE_DEVICES": "2"}, ("2",)),
    "another platform": ({"JAX_PLATFORMS": "cpu"}, ()),
    "another platform beside a variable": ({"JAX_PLATFORMS": "tpu,cpu", VARIABLES[0]: "0"}, ()),
    "this platform": ({"JAX_PLATFORMS": "cuda,cpu"}, ("0", "1")),
}


@pytest.mark.parametrize(("environment", "names"), SAID.values(), ids=SAID.keys())
def test_the_environment_says_which_gpus_count(machine, monkeypatch, environment, names):
    root = machine(listed=TWO)
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    assert find_gpus(root).names == names


def test_each_job_has_gpus_of_its_own_and_there_are_no_more_jobs_than_gpus(machine, monkeypatch):
    machine(listed=TWO)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    own = [{"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "1"}]
    assert Local(2)._gpus == own
    with pytest.raises(UserError, match=r"jobs=3 is more than the 2 GPUs of nvidia-smi -L, .*=cpu"):
        Local(3)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert Local(3)._gpus == [{}, {}, {}]


def test_a_single_job_sees_what_its_sweep_does(monkeypatch):
    monkeypatch.setattr(launchers, "find_gpus", lambda: Gpus(("0", "1")))
    assert Local(1)._gpus == [{}]
