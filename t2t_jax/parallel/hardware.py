"""Published peak rates and memory sizes of devices; measured rates are lower."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import jax

from t2t_jax.parallel.devices import attached_memory

_GIB = 1 << 30


@dataclass(frozen=True)
class Hardware:
    """The published peaks of a device.

    Attributes:
      flops_per_s: FLOP/s of dense bfloat16 matmuls that accumulate in float32. TPUs by default
        compute float32 matmuls at this rate too; GPUs reach at most half of it. For GPUs without
        bfloat16 matmuls, FLOP/s of float32 matmuls.
      memory_bytes: the size of the device memory.
      memory_bytes_per_s: the bandwidth of the device memory, reads and writes together.
      sent_bytes_per_s: bytes per second sent to other devices over all links; the device receives
        at the same rate.
      clock_hz: cycles per second, for devices whose compiler counts cycles; None for others.
    """

    flops_per_s: float
    memory_bytes: int
    memory_bytes_per_s: float
    sent_bytes_per_s: float
    # The peak divided by the number of units and by 2 x 128 x 128 FLOPs per unit and cycle.
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
    # nvidia.com/en-us/data-center/tesla-t4, data sheet; PCIe instead of links. The 65e12 FLOP/s in
    # float16 are unused. The driver reports 15,360 MiB of the 16 GB.
    "Tesla T4": Hardware(8.1e12, 15 * _GIB, 320e9, 16e9),
    # nvidia.com/en-us/data-center/a100, "NVIDIA A100 Tensor Core GPU" data sheet
    "NVIDIA A100-SXM4-40GB": Hardware(312e12, 40 * _GIB, 1555e9, 300e9),
    "NVIDIA A100-SXM4-80GB": Hardware(312e12, 80 * _GIB, 2039e9, 300e9),
    # nvidia.com/en-us/data-center/h100 and h200, data sheets; dense matmuls reach half of the
    # printed rate
    "NVIDIA H100 80GB HBM3": Hardware(989e12, 80 * _GIB, 3350e9, 450e9),
    "NVIDIA H200": Hardware(989e12, 141 * _GIB, 4800e9, 450e9),
    # nvidia.com/en-us/data-center/dgx-b200, data sheet of a system of eight
    "NVIDIA B200": Hardware(2250e12, 180 * _GIB, 8000e9, 900e9),
}
"""The peaks of each chip, keyed by `device_kind`. Link rates are half of the published rate for
both directions."""


def peaks(devices: Sequence[jax.Device]) -> Hardware | None:
    """Return the peaks of each device, which all have one kind, or None for an unknown kind.

    If the cores of a chip are separate devices, as in a described topology of TPU v4, each core
    gets an equal part of the chip.
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
    """Return the memory in bytes of each device: reported by it, or published, or None."""
    attached = attached_memory(devices[0])
    chip = peaks(devices)
    return attached if attached is not None or chip is None else chip.memory_bytes
