"""The size of the devices' memory, and the error when it does not suffice."""

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import jax
from jax.sharding import Mesh

from t2t_jax.errors import UserError, in_one_line
from t2t_jax.system.host import usable_host_memory

LESS_MEMORY = (
    "take less at once by parallel.tokens_per_device (or a smaller data.source_tokens_per_step and "
    "data.target_tokens_per_step), keep less by parallel.remat='layer' and parallel.loss_chunks=8, "
    "or share the parameters by parallel.fsdp (or make the model smaller)"
)
"""The settings that help where training takes too much memory, as errors name them."""

_LESS_TO_DECODE = "lower decoding.tokens_per_batch, decoding.beam_size or decoding.max_extra_length"
# As XLA words it where it allocates, and where an allocation fails in the middle of a program.
_EXHAUSTED = re.compile("RESOURCE_EXHAUSTED|Out of memory")


@contextmanager
def within_memory(*, decoding: bool = False) -> Iterator[None]:
    """Turn an out-of-memory exception within the context into a `UserError` of one line.

    Args:
      decoding: whether the work is decoding, and not training.

    Raises:
      UserError: memory did not suffice.
    """
    try:
        yield
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if not isinstance(error, MemoryError) and not _EXHAUSTED.search(str(error)):
            raise
        way_out = _LESS_TO_DECODE if decoding else LESS_MEMORY
        reason = in_one_line(str(error).split("\n")[0])[:200]
        raise UserError(f"out of memory{f' ({reason})' if reason else ''}; {way_out}") from error


def memory_of_a_device(mesh: Mesh) -> int | None:
    """Return the bytes that a program may use on each device, if known.

    CPU devices of a process share the memory that is left on its host.
    """
    devices = mesh.local_devices
    if devices[0].platform != "cpu":
        return attached_memory(devices[0])
    usable = usable_host_memory()
    return None if usable is None else usable // len(devices)


def attached_memory(device: jax.Device) -> int | None:
    """Return the bytes that a program may use, as reported by the device.

    Returns:
      The bytes; None if the device reports none, as in a described topology.
    """
    return _memory_stats(device).get("bytes_limit")


def peak_memory(devices: Sequence[jax.Device]) -> int | None:
    """Return the most bytes that a program has used on one of the devices, if they report it."""
    peaks = [_memory_stats(device).get("peak_bytes_in_use") for device in devices]
    return max((peak for peak in peaks if peak is not None), default=None)


def _memory_stats(device: jax.Device) -> dict[str, int]:
    try:
        return device.memory_stats() or {}
    except jax.errors.JaxRuntimeError:
        return {}


def bytes_of_a_device(tree: object) -> int:
    """Return the bytes that a tree of real or described arrays takes on each device."""
    return sum(
        math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree)
    )


def gib(size: int | None) -> str:
    """Format a number of bytes, which may be unknown."""
    return "not known" if size is None else f"{size / 2**30:,.1f} GiB"
