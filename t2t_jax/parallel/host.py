"""The host's memory and threads, where JAX computes on its CPU."""

import ctypes
import gc
import os
import re
import sys

# From glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8


def keep_freed_memory() -> bool:
    """Let the C library keep the memory that a training step frees, for the next step.

    By default glibc returns large blocks to the kernel at once, and every step pays for fresh,
    zeroed pages again: a quarter of its time for small models on CPU. The price is that the process
    stays as large as it once was. Call it at the start of a program, before threads are started.

    Returns:
      Whether the C library took it; libraries other than glibc are left as they are.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, 2**31 - 1), (_M_ARENA_MAX, 1))
    accepted = [mallopt(*setting) for setting in settings]  # all of them, whatever the first says
    return all(accepted)


def collect_garbage_seldom() -> None:
    """Have Python look for objects that refer to each other a hundred times less often.

    JAX makes millions of objects while it traces a program, and hardly any of them need the
    collector, which by default takes a tenth of the time of a short run.
    """
    gc.set_threshold(100_000, 20, 100)


def num_virtual_devices() -> int:
    """CPU devices that the environment asks XLA for; one if it says nothing."""
    flag = r"--xla_force_host_platform_device_count=(\d+)"
    counts = re.findall(flag, os.environ.get("XLA_FLAGS", ""))
    counts.append(os.environ.get("JAX_NUM_CPU_DEVICES", ""))
    return max(int(count) if count.isdecimal() else 1 for count in counts)


def let_devices_wait() -> None:
    """Give XLA threads enough for CPU devices that wait for each other, before it is started.

    A device waits in a thread. XLA has one for each core or device, and a program that was
    dispatched ahead can take the one that another device needs to arrive: then all wait for ever.
    """
    threads = max(os.cpu_count() or 1, 8 * num_virtual_devices())
    os.environ.setdefault("NPROC", str(threads))
