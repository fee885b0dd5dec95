"""A mesh of devices, and how batches and parameters lie on it. One device is a mesh of one."""

from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from t2t_jax.config import ParallelConfig
from t2t_jax.errors import UserError

_Batch = TypeVar("_Batch", bound=tuple)


def make_mesh(config: ParallelConfig) -> Mesh:
    """The devices as a mesh with one axis, `data`.

    Raises:
      UserError: more devices are asked for than there are, or they are on several hosts.
    """
    if jax.process_count() > 1:
        raise UserError(
            f"{jax.process_count()} processes have joined; this version trains on one host, "
            "so start one process"
        )
    devices = jax.devices()
    size = len(devices) if config.data == -1 else config.data
    if size > len(devices):
        raise UserError(
            f"parallel.data={size} devices are asked for, but there are {len(devices)}; "
            "use -1 for all"
        )
    return Mesh(np.asarray(devices[:size]), ("data",))


def mesh_of(params: Any) -> Mesh:
    """The mesh of the devices that a model's parameters are on."""
    devices = jax.tree.leaves(params)[0].sharding.device_set
    return Mesh(np.asarray(sorted(devices, key=lambda device: device.id)), ("data",))


def replicated(mesh: Mesh) -> NamedSharding:
    """The whole array on every device."""
    return NamedSharding(mesh, PartitionSpec())


def by_rows(mesh: Mesh) -> NamedSharding:
    """A batch of `[passes, rows, length]`: the rows of each pass in equal parts, one a device."""
    return NamedSharding(mesh, PartitionSpec(None, "data"))


def put_batch(batch: _Batch, mesh: Mesh, tokens_per_device: int | None = None) -> _Batch:
    """Put a batch on the mesh, cut into passes small enough for its devices.

    Args:
      batch: arrays `[rows, length]`.
      mesh: the devices.
      tokens_per_device: most positions of one array that a device may hold in a pass; None puts
        everything in one pass.

    Returns:
      Arrays `[passes, rows', length]`; empty rows fill the last pass up.
    """
    rows = max(len(x) for x in batch)
    longest = max(x.shape[1] for x in batch)
    passes = 1
    if tokens_per_device is not None:
        rows_per_pass = max(1, tokens_per_device // longest) * mesh.size
        passes = -(-rows // rows_per_pass)
    rows_per_pass = -(-rows // (passes * mesh.size)) * mesh.size

    def lay_out(x: np.ndarray) -> jax.Array:
        padded = np.pad(x, ((0, passes * rows_per_pass - rows), (0, 0)))
        return jax.device_put(padded.reshape(passes, rows_per_pass, -1), by_rows(mesh))

    return jax.tree.map(lay_out, batch)
