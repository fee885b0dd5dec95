"""Facts and settings of the host: name, cloud, processor, memory and threads."""

import ctypes
import gc
import glob
import mmap
import os
import platform
import re
import resource
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Literal

from t2t_jax.errors import UserError

_PROC, _CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")

# From glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8

# Threads that JAX starts, measured for a one-layer model on 2 and 8 cores.
_THREADS, _THREADS_A_CORE = 70, 3
_ADDRESSES = 256 << 20

_X86_SETS = ("avx2", "fma", "avx512f", "avx512_bf16", "avx512_vnni", "avx512_fp16", "avx_vnni")
_AMX_SETS = ("amx_tile", "amx_bf16", "amx_int8")
_ARM_SETS = ("asimd", "bf16", "i8mm", "sve")


def processor_name(path: str | Path = "/proc/cpuinfo") -> str:
    """Return the model of the processor, or its architecture if the model is unknown."""
    return _cpuinfo(path).get("model name") or platform.processor() or platform.machine()


def processor_vendor(path: str | Path = "/proc/cpuinfo") -> str:
    """Return the vendor of an x86 processor on Linux: "GenuineIntel", "AuthenticAMD"; else ""."""
    return _cpuinfo(path).get("vendor_id", "")


def instruction_sets(path: str | Path = "/proc/cpuinfo") -> tuple[str, ...]:
    """Return the processor's instruction sets for matmuls, as Linux names them.

    Return () on a system other than Linux.
    """
    fields = _cpuinfo(path)
    flags = f"{fields.get('flags', '')} {fields.get('Features', '')}".split()  # on x86, on ARM
    return tuple(name for name in (*_X86_SETS, *_AMX_SETS, *_ARM_SETS) if name in flags)


@cache
def _cpuinfo(path: str | Path) -> Mapping[str, str]:
    """Read the fields of the first processor; {} if the file is missing."""
    fields: dict[str, str] = {}
    with suppress(OSError):
        for line in Path(path).read_text().splitlines():
            name, _, value = line.partition(":")
            fields.setdefault(name.strip(), value.strip())
    return fields


def keep_freed_memory() -> None:
    """Make glibc keep the memory that a training step frees.

    By default, zeroing new pages takes a quarter of the step time of small models on CPU. Call this
    function before other threads start.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(_M_ARENA_MAX, 1)


def keep_libtpu_quiet() -> None:
    """Set environment variables so that libtpu prints no warning on machines without TPUs."""
    if not any(glob.iglob("/dev/accel*")) and not any(glob.iglob("/dev/vfio/*")):
        os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-4")
        os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")


def collect_garbage_seldom() -> None:
    """Make Python collect garbage a hundred times less often.

    While JAX traces a program, garbage collection takes a tenth of the time of a short run.
    """
    gc.set_threshold(100_000, 20, 100)


def num_virtual_devices() -> int:
    """Return the number of CPU devices that the environment configures, by default 1."""
    pattern = r"--xla_force_host_platform_device_count=(\d+)"
    counts = re.findall(pattern, os.environ.get("XLA_FLAGS", ""))
    counts.append(os.environ.get("JAX_NUM_CPU_DEVICES", ""))
    return max(int(count) if count.isdecimal() else 1 for count in counts)


def let_devices_wait() -> None:
    """Give XLA enough threads for virtual CPU devices; call this before XLA starts.

    In a collective, each device blocks a thread. By default, XLA has one thread per core or device,
    so the next program can take the last thread and cause a deadlock.
    """
    num_threads = max(os.cpu_count() or 1, 8 * num_virtual_devices())
    os.environ.setdefault("NPROC", str(num_threads))


def resident_memory() -> int | None:
    """Return the resident memory of this process in bytes; None if unknown."""
    with suppress(OSError, ValueError):
        num_pages = (_PROC / "self" / "statm").read_text().split()[1]
        return int(num_pages) * resource.getpagesize()
    return None


def usable_host_memory() -> int | None:
    """Return the memory in bytes that this process may still allocate; None if unknown.

    The value is the minimum of the available memory, the cgroup limits (containers and batch jobs)
    and the address space limit (`ulimit -v`).
    """
    return min(_memory_limits(), default=None)


def _memory_limits() -> Iterator[int]:
    with suppress(OSError):
        meminfo = (_PROC / "meminfo").read_text()
        sizes = re.findall(r"^(?:MemAvailable|SwapFree): *(\d+) kB$", meminfo, re.MULTILINE)
        if sizes:
            yield 1024 * sum(map(int, sizes))
    with suppress(OSError):
        for line in (_PROC / "self" / "cgroup").read_text().splitlines():
            yield from _limits_of_group(*line.split(":", 2)[1:])
    with suppress(OSError, ValueError):
        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit != resource.RLIM_INFINITY:
            num_pages = int((_PROC / "self" / "statm").read_text().split()[0])
            yield max(0, limit - num_pages * resource.getpagesize())


def _limits_of_group(controllers: str, group: str) -> Iterator[int]:
    """Yield the memory limits of a cgroup and its ancestors, in bytes.

    The arguments are the last two fields of a line of /proc/self/cgroup.
    """
    if controllers == "":
        root, file_name = _CGROUPS, "memory.max"
    elif "memory" in controllers.split(","):
        root, file_name = _CGROUPS / "memory", "memory.limit_in_bytes"
    else:
        return
    group_directory = root / group.lstrip("/")
    for directory in (group_directory, *group_directory.parents):
        with suppress(OSError, ValueError):  # ValueError: "max"
            yield int((directory / file_name).read_text())
        if directory == root:
            return


def check_threads() -> None:
    """Raise a `UserError` if limits on threads or address space are too low for JAX.

    Otherwise, JAX would crash without a message or hang.
    """
    nproc = os.environ.get("NPROC", "")
    num_cores = int(nproc) if nproc.isdecimal() else os.cpu_count() or 1
    num_threads = _THREADS + _THREADS_A_CORE * num_cores
    stop = threading.Event()
    threads: list[threading.Thread] = []
    try:
        for _ in range(num_threads):
            thread = threading.Thread(target=stop.wait, daemon=True)
            thread.start()
            threads.append(thread)
        mmap.mmap(-1, _ADDRESSES).close()
    except (RuntimeError, MemoryError, OSError) as error:
        raise UserError(
            f"JAX needs about {num_threads} threads and {_ADDRESSES >> 20} MiB of address space; "
            f"this process can start only {len(threads)} more threads; raise the limit on "
            "processes (ulimit -u, or the container limit) or on address space (ulimit -v)"
        ) from error
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def host_name() -> str:
    """Return the name of this host; in a Slurm job, its Slurm node name."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


Cloud = Literal["gce", "aws"]
"""The name of a cloud, for `--preemption-notices`."""
