"""Arrange devices by the links between them: fast ones within a slice, slow ones between slices.

A slice is a set of devices with fast links: the chips of a TPU slice, or the GPUs of a host. XLA
numbers them (`slice_index`): slices of TPUs by their system, GPUs by the boot identifier of their
host (xla/pjrt/distributed/topology_util.cc) or by `JAX_PARTITION_INDEX`, if NVLinks join several
hosts.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import Mesh

from t2t_jax.errors import UserError


def laid_out(shape: tuple[int, int, int], devices: Sequence[Any]) -> np.ndarray:
    """Arrange devices so that most of the communication uses the fast links.

    The axis `data`, over which gradients are added up once a step, crosses slices. If `fsdp` times
    `tensor` devices are more than a slice has, or do not divide it, the outer part of `fsdp`, and
    at last of `tensor`, also crosses slices, as far as necessary.

    Args:
      shape: the sizes of the axes `data`, `fsdp` and `tensor`.
      devices: as many devices as the mesh has.

    Returns:
      The devices as an array of that shape.

    Raises:
      UserError: slices have different numbers of devices, which `fsdp` times `tensor` does not
        divide.
    """
    attribute, found = _slice_indices(devices)
    counts = {index: found.count(index) for index in sorted(set(found))}
    if len(counts) == 1:
        return mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
    _, fsdp, tensor = shape
    if len(set(counts.values())) > 1:
        return _over_unequal_slices(fsdp, tensor, devices, found)
    # The part of each axis that lies between slices: as much of the first ones as possible.
    between, rest = [], len(counts)
    for size in shape:
        between.append(math.gcd(size, rest))
        rest //= between[-1]
    return mesh_utils.create_hybrid_device_mesh(
        [size // part for size, part in zip(shape, between, strict=True)],
        between,
        devices,
        process_is_granule=attribute == "process_index",
        allow_split_physical_axes=True,
    )


def _over_unequal_slices(
    fsdp: int, tensor: int, devices: Sequence[Any], found: Sequence[int]
) -> np.ndarray:
    """Arrange the devices of each slice separately, one slice after the other along `data`."""
    parts = []
    for index in sorted(set(found)):
        own = [device for device, other in zip(devices, found, strict=True) if other == index]
        if len(own) % (fsdp * tensor):
            raise UserError(
                f"parallel.fsdp={fsdp} times parallel.tensor={tensor} does not divide the "
                f"{len(own)} devices of slice (or host) {index}, and others have another number; "
                "choose sizes that divide the devices of each, or use as many of each"
            )
        shape = len(own) // (fsdp * tensor), fsdp, tensor
        parts.append(mesh_utils.create_device_mesh(shape, own, allow_split_physical_axes=True))
    return np.concatenate(parts)


def between_slices(mesh: Mesh) -> dict[str, int]:
    """Return the number of slices along each axis of a mesh; 1 is an axis within a slice.

    Args:
      mesh: a mesh from `laid_out`.
    """
    found = np.asarray(_slice_indices(list(mesh.devices.flat))[1]).reshape(mesh.devices.shape)
    first = found[:, 0, 0], found[0, :, 0], found[0, 0, :]
    return {
        name: len(set(line.tolist())) for name, line in zip(mesh.axis_names, first, strict=True)
    }


def described_slices(mesh: Mesh) -> str:
    """Return the axes of a mesh that cross the slow links, as text; empty for a single slice.

    Args:
      mesh: a mesh from `laid_out`.
    """
    crossing = {name: parts for name, parts in between_slices(mesh).items() if parts > 1}
    if not crossing:
        return ""
    axes = " and ".join(f"{name} in {parts} parts" for name, parts in crossing.items())
    return f"over the slower links between slices or hosts: {axes}"


def _slice_indices(devices: Sequence[Any]) -> tuple[str, list[int]]:
    """Return the attribute that identifies the slice of a device, and its value for each.

    Described GPUs all have the slice 0. Their processes identify their hosts, and this process has
    met none of them.
    """
    by_slice = [getattr(device, "slice_index", None) or 0 for device in devices]
    is_gpu = getattr(devices[0], "platform", "") == "gpu"
    if is_gpu and len(set(by_slice)) == 1 and jax.process_count() == 1:
        return "process_index", [device.process_index for device in devices]
    return "slice_index", by_slice
