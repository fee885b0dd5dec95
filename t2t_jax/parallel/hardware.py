"""The peaks of devices from their vendors. Measured figures are lower."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import jax

from t2t_jax.parallel.devices import attached_memory

_GIB = 1 << 30


@dataclass(frozen=True)
class Hardware:
    """The published peaks of a device.

    Attributes:
      flops_per_s: FLOP/s of bfloat16 matmuls that accumulate in float32, without sparsity. By
        default TPUs compute float32 matmuls this way too; GPUs take at least twice as long for
        them. For GPUs that multiply no bfloat16, FLOP/s of float32 matmuls.
      memory_bytes: the size of the memory that holds arrays.
      memory_bytes_per_s: bytes per second that this memory reads or writes.
      sent_bytes_per_s: bytes per second sent to other devices, over all links together; as many can
        be received in the same time.
      clock_hz: cycles per second, for devices whose compiler counts them; None for others. It
        follows from the peak and the number of units, each of 2 x 128 x 128 FLOPs a cycle.
    """

    flops_per_s: float
    memory_bytes: int
    memory_bytes_per_s: float
    sent_bytes_per_s: float
    clock_hz: float | None = None


CHIPS = {
    # cloud.google.com/tpu/docs/v4; links: "TPU v4: An Optically Reconfigurable Supercomputer for
    # Machine Learning" (Jouppi et al. 2023), Table 4: six of 50 GB/s.
    "TPU v4": Hardware(275e12, 32 * _GIB, 1200e9, 300e9, 1.05e9),
    # cloud.google.com/tpu/docs/v5e
    "TPU v5 lite": Hardware(197e12, 16 * _GIB, 819e9, 200e9, 1.5e9),
    # cloud.google.com/tpu/docs/v5p
    "TPU v5": Hardware(459e12, 95 * _GIB, 2765e9, 600e9, 1.75e9),
    # cloud.google.com/tpu/docs/v6e
    "TPU v6 lite": Hardware(918e12, 32 * _GIB, 1638e9, 400e9, 1.75e9),
    # nvidia.com/en-us/data-center/tesla-t4, data sheet; PCIe in place of links. Its 65e12 FLOP/s in
    # float16 are not used, and its driver shows 15,360 MiB of its 16 GB.
    "Tesla T4": Hardware(8.1e12, 15 * _GIB, 320e9, 16e9),
    # nvidia.com/en-us/data-center/a100, "NVIDIA A100 Tensor Core GPU" data sheet
    "NVIDIA A100-SXM4-40GB": Hardware(312e12, 40 * _GIB, 1555e9, 300e9),
    "NVIDIA A100-SXM4-80GB": Hardware(312e12, 80 * _GIB, 2039e9, 300e9),
    # nvidia.com/en-us/data-center/h100 and h200, data sheets; products without sparsity are half
    # of what they print
    "NVIDIA H100 80GB HBM3": Hardware(989e12, 80 * _GIB, 3350e9, 450e9),
    "NVIDIA H200": Hardware(989e12, 141 * _GIB, 4800e9, 450e9),
    # nvidia.com/en-us/data-center/dgx-b200, data sheet of a system of eight
    "NVIDIA B200": Hardware(2250e12, 180 * _GIB, 8000e9, 900e9),
}
"""The peaks of a chip by its `device_kind`. Links are half of what vendors state for both
directions."""


def peaks(devices: Sequence[jax.Device]) -> Hardware | None:
    """Return the peaks of each device; all devices have one kind. None if the kind is unknown.

    If a chip's cores are separate devices, as those of TPU v4 in a described topology, each has an
    equal part of the chip.
    """
    chip = CHIPS.get(devices[0].device_kind)
    cores = 1 + max(getattr(device, "core_on_chip", 0) or 0 for device in devices)
    if chip is None or cores == 1:
        return chip
    return replace(
        chip,
        flops_per_s=chip.flops_per_s / cores,
        memory_bytes=chip.memory_bytes // cores,
        memory_bytes_per_s=chip.memory_bytes_per_s / cores,
        sent_bytes_per_s=chip.sent_bytes_per_s / cores,
    )


def usable_memory(devices: Sequence[jax.Device]) -> int | None:
    """Return the bytes that a program may use on each device: its reported size, or the peak."""
    attached = attached_memory(devices[0])
    known = peaks(devices)
    return attached if attached is not None or known is None else known.memory_bytes
