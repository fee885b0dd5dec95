"""The host: its name, its cloud, and its processor, memory and threads, as JAX uses them."""

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

# Threads of a translation with a model of one layer and of its training, on 2 cores and on 8.
_THREADS, _THREADS_A_CORE = 70, 3
_ADDRESSES = 256 << 20

_X86_SETS = ("avx2", "fma", "avx512f", "avx512_bf16", "avx512_vnni", "avx512_fp16", "avx_vnni")
_AMX_SETS = ("amx_tile", "amx_bf16", "amx_int8")
_ARM_SETS = ("asimd", "bf16", "i8mm", "sve")


def processor_name(path: str | Path = "/proc/cpuinfo") -> str:
    """Return the model of the processor, or its architecture if the system names no model."""
    return _cpuinfo(path).get("model name") or platform.processor() or platform.machine()


def processor_vendor(path: str | Path = "/proc/cpuinfo") -> str:
    """Return the vendor of an x86 processor: "GenuineIntel" or "AuthenticAMD".

    The name is empty if the system does not report it as Linux does.
    """
    return _cpuinfo(path).get("vendor_id", "")


def instruction_sets(path: str | Path = "/proc/cpuinfo") -> tuple[str, ...]:
    """Return the processor's instruction sets for matmuls, in Linux's spelling.

    On x86 they are those of avx2, fma, avx512f, avx512_bf16, avx512_vnni, avx512_fp16, avx_vnni,
    amx_tile, amx_bf16 and amx_int8 that the processor has, on ARM those of asimd, bf16, i8mm and
    sve, in this order. There are none if the system does not report them as Linux does.
    """
    facts = _cpuinfo(path)
    known = f"{facts.get('flags', '')} {facts.get('Features', '')}".split()  # on x86, on ARM
    return tuple(name for name in (*_X86_SETS, *_AMX_SETS, *_ARM_SETS) if name in known)


@cache
def _cpuinfo(path: str | Path) -> Mapping[str, str]:
    """Return the facts of the first processor by name; none without such a file."""
    facts: dict[str, str] = {}
    with suppress(OSError):
        for line in Path(path).read_text().splitlines():
            name, _, value = line.partition(":")
            facts.setdefault(name.strip(), value.strip())
    return facts


def keep_freed_memory() -> None:
    """Let the C library keep the memory that a training step frees, if it is glibc.

    By default glibc returns large blocks to the kernel at once, and every step pays for fresh,
    zeroed pages again: a quarter of its time for small models on CPU. The process stays as large as
    it once was. Call it at the start of a program, before threads are started.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(_M_ARENA_MAX, 1)


def keep_libtpu_quiet() -> None:
    """Keep the library for TPUs from printing that this machine has none."""
    if not any(glob.iglob("/dev/accel*")) and not any(glob.iglob("/dev/vfio/*")):
        os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-4")
        os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")


def collect_garbage_seldom() -> None:
    """Make Python collect reference cycles a hundred times less often.

    JAX makes millions of objects while it traces a program, and hardly any of them need the
    collector, which by default takes a tenth of the time of a short run.
    """
    gc.set_threshold(100_000, 20, 100)


def num_virtual_devices() -> int:
    """Return the number of CPU devices that the environment asks XLA for, by default one."""
    flag = r"--xla_force_host_platform_device_count=(\d+)"
    counts = re.findall(flag, os.environ.get("XLA_FLAGS", ""))
    counts.append(os.environ.get("JAX_NUM_CPU_DEVICES", ""))
    return max(int(count) if count.isdecimal() else 1 for count in counts)


def let_devices_wait() -> None:
    """Give XLA enough threads for CPU devices that wait for each other, before XLA is started.

    A device waits in a thread. XLA has one for each core or device. A program that was dispatched
    ahead can take the thread that another device needs: a deadlock.
    """
    threads = max(os.cpu_count() or 1, 8 * num_virtual_devices())
    os.environ.setdefault("NPROC", str(threads))


def resident_memory() -> int | None:
    """Return the bytes of main memory that this process has; None if unknown."""
    with suppress(OSError, ValueError):
        pages = (_PROC / "self" / "statm").read_text().split()[1]
        return int(pages) * resource.getpagesize()
    return None


def usable_host_memory() -> int | None:
    """Return the bytes of main memory that this process may still take; None if unknown.

    It is the minimum of the kernel's available memory, of the limits of its control groups
    (containers, and jobs of a batch system), and of its limit of addresses (`ulimit -v`).
    """
    return min(_memory_limits(), default=None)


def _memory_limits() -> Iterator[int]:
    with suppress(OSError):
        meminfo = (_PROC / "meminfo").read_text()
        found = re.findall(r"^(?:MemAvailable|SwapFree): *(\d+) kB$", meminfo, re.MULTILINE)
        if found:
            yield 1024 * sum(map(int, found))
    with suppress(OSError):
        for line in (_PROC / "self" / "cgroup").read_text().splitlines():
            yield from _limits_of_group(*line.split(":", 2)[1:])
    with suppress(OSError, ValueError):
        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit != resource.RLIM_INFINITY:
            pages = int((_PROC / "self" / "statm").read_text().split()[0])
            yield max(0, limit - pages * resource.getpagesize())


def _limits_of_group(controllers: str, group: str) -> Iterator[int]:
    """Yield the limits of a control group and of all its ancestors.

    In a container the paths of its groups may be those of the host, which it cannot see; then the
    outermost visible group is the container's.
    """
    if controllers == "":
        root, name = _CGROUPS, "memory.max"
    elif "memory" in controllers.split(","):
        root, name = _CGROUPS / "memory", "memory.limit_in_bytes"
    else:
        return
    inner = root / group.lstrip("/")
    for directory in (inner, *inner.parents):
        with suppress(OSError, ValueError):  # ValueError: "max"
            yield int((directory / name).read_text())
        if directory == root:
            return


def check_threads() -> None:
    """Refuse to start JAX if a limit of the user, of a container or of addresses is too low.

    The runtime starts dozens of threads. If a thread or a memory block is refused, it ends the
    program without a message, or hangs.
    """
    told = os.environ.get("NPROC", "")
    cores = int(told) if told.isdecimal() else os.cpu_count() or 1
    needed = _THREADS + _THREADS_A_CORE * cores
    done = threading.Event()
    started: list[threading.Thread] = []
    try:
        for _ in range(needed):
            thread = threading.Thread(target=done.wait, daemon=True)
            thread.start()
            started.append(thread)
        mmap.mmap(-1, _ADDRESSES).close()
    except (RuntimeError, MemoryError, OSError) as error:
        raise UserError(
            f"JAX needs about {needed} threads, and {_ADDRESSES >> 20} MiB of addresses beside "
            f"them; the system lets this process start {len(started)} threads more; raise the "
            "limit on processes (ulimit -u, or that of the container) or on addresses (ulimit -v)"
        ) from error
    finally:
        done.set()
        for thread in started:
            thread.join()


def host_name() -> str:
    """Return the name of this host, as Slurm knows it under Slurm."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


Cloud = Literal["gce", "aws"]
"""The name of a cloud, as in `--preemption-notices`."""
