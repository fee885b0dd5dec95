"""Processor and memory of the host, and the devices that its environment asks for."""

import gc
import platform
import subprocess
import sys
import threading

import pytest

from t2t_jax.errors import UserError
from t2t_jax.system import host
from t2t_jax.system.host import (
    check_threads,
    collect_garbage_seldom,
    instruction_sets,
    num_virtual_devices,
    processor_name,
    processor_vendor,
)
from tests.programs import run_python

_PROGRAM = """
import resource
import numpy as np
from t2t_jax.system.host import keep_freed_memory

def faults_of_a_block_used_again():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(2**24, np.uint8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

keep_freed_memory()
faults_of_a_block_used_again()
print(faults_of_a_block_used_again())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a setting of glibc")
def test_a_block_that_was_freed_is_used_again_without_new_pages():
    done = run_python("-c", _PROGRAM)
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


_MEMINFO = "MemTotal: 9999 kB\nMemAvailable:    4000 kB\nSwapFree: 96 kB\nSwapTotal: 99 kB\n"


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """A kernel that has 4 MiB of memory, with the files that are given beside that."""

    def tells(**files):
        files = {"proc/meminfo": _MEMINFO, "proc/self/cgroup": "", **files}
        for name, content in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(content)
        monkeypatch.setattr(host, "_PROC", tmp_path / "proc")
        monkeypatch.setattr(host, "_CGROUPS", tmp_path / "cgroup")
        return host.usable_host_memory()

    return tells


_V2, _V1 = "0::/jobs/mine\n", "9:cpu,memory:/jobs/mine\n8:pids:/other\n0::/\n"


@pytest.mark.parametrize(
    ("files", "usable"),
    [
        ({}, 4096 * 1024),
        ({"proc/self/cgroup": _V2, "cgroup/jobs/mine/memory.max": "1000\n"}, 1000),
        ({"proc/self/cgroup": _V2, "cgroup/jobs/memory.max": "2000\n"}, 2000),
        ({"proc/self/cgroup": _V2, "cgroup/memory.max": "3000\n"}, 3000),
        (
            {
                "proc/self/cgroup": _V2,
                "cgroup/jobs/mine/memory.max": "max\n",
                "cgroup/jobs/memory.max": "2000\n",
            },
            2000,
        ),
        ({"proc/self/cgroup": "0::/../other\n", "cgroup/memory.max": "max\n"}, 4096 * 1024),
        ({"proc/self/cgroup": _V1, "cgroup/memory/jobs/mine/memory.limit_in_bytes": "5\n"}, 5),
        ({"proc/self/cgroup": _V1, "cgroup/memory/memory.limit_in_bytes": "6\n"}, 6),
        ({"proc/self/cgroup": _V1, "cgroup/memory/memory.limit_in_bytes": f"{2**63}"}, 4096 * 1024),
        ({"proc/meminfo": "MemTotal: 9999 kB\n"}, None),
    ],
)
def test_usable_memory_is_the_least_that_the_kernel_and_the_groups_say(kernel, files, usable):
    assert kernel(**files) == usable


def test_a_limit_of_addresses_counts(monkeypatch):
    monkeypatch.setattr(host.resource, "getrlimit", lambda _: (1 << 20, 1 << 20))
    assert host.usable_host_memory() == 0  # more is taken already


def test_a_machine_without_these_files_says_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(host, "_PROC", tmp_path)
    assert host.usable_host_memory() is None


_X86 = """processor\t: 0
vendor_id\t: {vendor}
model name\t: {name}
flags\t\t: fpu vme sse2 avx f16c {flags}
vmx flags\t: vnmi
bugs\t\t: spectre_v1

processor\t: 1
model name\t: another
flags\t\t: fpu
"""
_ARM = """processor\t: 0
BogoMIPS\t: 2100.00
Features\t: fp asimd evtstrm aes fphp asimdhp sve asimdfhm svei8mm svebf16 i8mm bf16 dgh rng
CPU implementer\t: 0x41
CPU part\t: 0xd40
"""


@pytest.mark.parametrize(
    ("vendor", "name", "flags", "known"),
    [
        (
            "GenuineIntel",
            "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz",
            "fma avx2 avx512f avx512bw avx_vnni avx512_bf16 avx512_vnni amx_bf16 avx512_fp16 "
            "amx_tile amx_int8",
            "avx2 fma avx512f avx512_bf16 avx512_vnni avx512_fp16 avx_vnni amx_tile amx_bf16 "
            "amx_int8",
        ),
        ("GenuineIntel", "Intel(R) Xeon(R) CPU E5-2673 v3 @ 2.40GHz", "fma avx2", "avx2 fma"),
    ],
    ids=["Sapphire Rapids", "Haswell"],
)
def test_processors_are_told_by_model_and_instruction_sets(tmp_path, vendor, name, flags, known):
    path = tmp_path / "cpuinfo"
    path.write_text(_X86.format(vendor=vendor, name=name, flags=flags))
    assert processor_name(path) == name
    assert processor_vendor(path) == vendor
    assert instruction_sets(path) == tuple(known.split())


def test_an_arm_processor_has_features_and_may_have_no_name(tmp_path, monkeypatch):
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    path = tmp_path / "cpuinfo"
    path.write_text(_ARM)
    assert processor_name(path) == "aarch64"
    assert processor_vendor(path) == ""
    assert instruction_sets(path) == ("asimd", "bf16", "i8mm", "sve")


def test_a_system_without_such_a_file_has_an_architecture_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(platform, "processor", lambda: "arm")
    assert processor_name(tmp_path / "cpuinfo") == "arm"
    assert instruction_sets(tmp_path / "cpuinfo") == ()


def test_this_processor_has_a_name():
    assert processor_name()
    assert len(set(instruction_sets())) == len(instruction_sets())


_START = threading.Thread.start


def _let_start(monkeypatch, number):
    """Refuse all threads but so many, as the system does at a limit."""
    left = [None] * number

    def start(thread):
        if not left:
            raise RuntimeError("can't start new thread")
        left.pop()
        _START(thread)

    monkeypatch.setattr(threading.Thread, "start", start)


@pytest.mark.parametrize("cores", [1, 16])
def test_too_few_threads_are_refused_before_any_is_missing(monkeypatch, cores):
    monkeypatch.setenv("NPROC", str(cores))
    _let_start(monkeypatch, 70 + 3 * cores)
    check_threads()
    before = threading.active_count()
    _let_start(monkeypatch, 69 + 3 * cores)
    with pytest.raises(UserError, match=rf"start only {69 + 3 * cores} more threads; .*ulimit -u"):
        check_threads()
    assert threading.active_count() == before


@pytest.mark.skipif(sys.platform != "linux", reason="its stacks and limits")
def test_too_few_addresses_are_refused():
    program = "from t2t_jax.system.host import check_threads as check; check()"
    command = f"ulimit -v 524288; exec {sys.executable} -c '{program}'"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1].startswith("t2t_jax.errors.UserError: JAX needs about")
    assert "256 MiB of address space" in done.stderr


def test_a_host_has_the_name_by_which_slurm_leaves_it_out(monkeypatch):
    monkeypatch.delenv("SLURMD_NODENAME", raising=False)
    assert host.host_name() == platform.node()
    monkeypatch.setenv("SLURMD_NODENAME", "n2")
    assert host.host_name() == "n2"
