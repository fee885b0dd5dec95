"""Memory of the host, and the devices that its environment asks for."""

import gc
import subprocess
import sys

import pytest

from t2t_jax.parallel.host import collect_garbage_seldom, num_virtual_devices

_PROGRAM = """
import resource
import numpy as np
from t2t_jax.parallel.host import keep_freed_memory

def faults_of_a_block_used_again():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(2**24, np.uint8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

assert keep_freed_memory()
faults_of_a_block_used_again()
print(faults_of_a_block_used_again())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a setting of glibc")
def test_a_block_that_was_freed_is_used_again_without_new_pages():
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, check=True)
    # 16 MiB are 4,096 pages, each of which a fresh block would fault in.
    assert int(done.stdout) < 100


def test_a_million_objects_are_made_with_next_to_no_search_for_garbage():
    searches = []
    before = gc.get_threshold()
    gc.callbacks.append(lambda phase, info: searches.append(phase))
    try:
        collect_garbage_seldom()
        made = [[number] for number in range(1_000_000)]
    finally:
        gc.callbacks.pop()
        gc.set_threshold(*before)
    assert len(made) == 1_000_000
    assert 0 < searches.count("start") <= 10


@pytest.mark.parametrize(
    ("environment", "devices"),
    [
        ({}, 1),
        ({"JAX_NUM_CPU_DEVICES": "3"}, 3),
        ({"XLA_FLAGS": "--a=b --xla_force_host_platform_device_count=8 --c=d"}, 8),
        ({"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=true", "JAX_NUM_CPU_DEVICES": "2"}, 2),
    ],
)
def test_devices_are_asked_for_by_either_of_two_variables(monkeypatch, environment, devices):
    for name in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert num_virtual_devices() == devices
