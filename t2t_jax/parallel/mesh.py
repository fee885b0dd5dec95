"""The device mesh, and the layout of batches on it.

A slice is a set of devices with fast links: the chips of a TPU slice, or the GPUs of a host. The
links between slices are slow. XLA numbers slices (`slice_index`): for GPUs by the boot identifier
of the host (xla/pjrt/distributed/topology_util.cc), or by `JAX_PARTITION_INDEX` if NVLinks connect
several hosts.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jax.experimental import mesh_utils, multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Int, PyTree, Shaped

from t2t_jax.config import MeshConfig
from t2t_jax.errors import UserError
from t2t_jax.parallel.axes import RULES, partition_spec
from t2t_jax.parallel.devices import all_devices

AXES = ("data", "fsdp", "tensor")

_Batch = TypeVar("_Batch", bound=tuple)
_Tree = TypeVar("_Tree")
_T = TypeVar("_T")


def make_mesh(config: MeshConfig, devices: Sequence[object] | None = None) -> Mesh:
    """Make a mesh with the axes `data`, `fsdp` and `tensor`.

    Each group of `fsdp` times `tensor` devices lies within one slice if it fits.

    Args:
      devices: None uses all devices of all processes.
    """
    devices = all_devices() if devices is None else devices
    shape = mesh_shape(config, len(devices), jax.process_count())
    return Mesh(arrange_devices(shape, devices[: math.prod(shape)]), AXES)


def mesh_shape(config: MeshConfig, num_devices: int, num_processes: int) -> tuple[int, int, int]:
    """Return the sizes of the mesh axes data, fsdp and tensor, without accessing devices."""
    inner = config.fsdp * config.tensor
    flags = f"parallel.fsdp={config.fsdp} times parallel.tensor={config.tensor}"
    if config.data == -1 and num_devices % inner:
        raise UserError(
            f"{flags} is {inner}, which does not divide the {num_devices} devices; "
            "choose other sizes, or set parallel.data to use only some of the devices"
        )
    data = num_devices // inner if config.data == -1 else config.data
    size = data * inner
    if size > num_devices:
        raise UserError(
            f"parallel.data={config.data} times {flags} asks for {size} devices, but there are "
            f"{num_devices}; lower one of them, or use parallel.data=-1 for all devices"
        )
    if size < num_devices and num_processes > 1:
        raise UserError(
            f"parallel.data={config.data} times {flags} is {size} of the {num_devices} devices of "
            f"{num_processes} processes; several processes always use all devices: set "
            "parallel.data=-1, or start fewer processes"
        )
    return data, config.fsdp, config.tensor


def mesh_of(params: PyTree[jax.Array]) -> Mesh:
    """Return the mesh over which the parameters of a model are sharded."""
    sharding = jax.tree.leaves(params)[0].sharding
    mesh = sharding.mesh if isinstance(sharding, NamedSharding) else None
    if isinstance(mesh, Mesh) and mesh.axis_names == AXES:
        return mesh
    devices = sorted(sharding.device_set, key=lambda device: device.id)
    return Mesh(np.asarray(devices).reshape(-1, 1, 1), AXES)


def replicated(mesh: Mesh) -> NamedSharding:
    """Return the sharding that puts a full copy of an array on every device."""
    return NamedSharding(mesh, PartitionSpec())


def by_rows(mesh: Mesh) -> NamedSharding:
    """Return the sharding of a batch `[passes, rows, length]`, which splits the rows of a pass."""
    return NamedSharding(mesh, PartitionSpec(None, *partition_spec(["batch"])))


def row_parts(mesh: Mesh) -> int:
    """Return the number of parts into which the mesh splits the rows of a batch."""
    return math.prod(mesh.shape[axis] for axis in RULES["batch"])


def put_rows(x: Shaped[np.ndarray, "rows ..."], mesh: Mesh) -> Shaped[Array, "rows ..."]:
    """Shard an array, which every process holds completely, over devices by rows.

    The number of rows must be a multiple of `row_parts`.
    """
    rows = NamedSharding(mesh, partition_spec(["batch"]))
    return jax.make_array_from_callback(x.shape, rows, lambda index: x[index])


def on_host(tree: _Tree) -> _Tree:
    """Gather the arrays of a tree from all processes as NumPy arrays."""
    if all(x.is_fully_addressable or x.is_fully_replicated for x in jax.tree.leaves(tree)):
        return jax.device_get(tree)
    return multihost_utils.process_allgather(tree, tiled=True)


def prefetch_one(items: Iterator[_T]) -> Iterator[_T]:
    """Yield each item after the next one was requested, so that devices compute in the meantime."""
    end: Any = None
    return (item for item, _ in pairwise(chain(items, [end])))


class BatchLayout(NamedTuple):
    """The layout of a global batch: pass `r // rows_per_pass` computes row `r`.

    Attributes:
      mesh: the devices.
      passes: the number of sequential passes.
      rows_per_pass: the number of rows per pass, a multiple of `row_parts`. Empty rows follow those
        of the batch.
    """

    mesh: Mesh
    passes: int
    rows_per_pass: int

    @property
    def rows(self) -> int:
        """Return the number of rows that the devices compute, including empty rows."""
        return self.passes * self.rows_per_pass

    def local_rows(self) -> Int[np.ndarray, " n"]:
        """Return the sorted indices of the global batch rows that this process computes."""
        first_pass_rows = np.arange(self.rows_per_pass)
        if len(self.mesh.local_devices) < self.mesh.size:
            shape = (self.passes, self.rows_per_pass, 1)
            indices = by_rows(self.mesh).addressable_devices_indices_map(shape).values()
            first_pass_rows = np.unique([first_pass_rows[index[1]] for index in indices if index])
        return (np.arange(self.passes)[:, None] * self.rows_per_pass + first_pass_rows).ravel()

    def put(self, batch: _Batch) -> _Batch:
        """Put a batch on the devices.

        Args:
          batch: arrays `[rows, length]`: the `local_rows` of the global batch. Empty rows at the
            end may be left out.

        Returns:
          Arrays `[passes, rows_per_pass, length]`, over all devices of all processes.
        """
        num_rows = len(self.local_rows())

        def lay_out(x: np.ndarray) -> jax.Array:
            padded = np.pad(x, ((0, num_rows - len(x)), *[(0, 0)] * (x.ndim - 1)))
            # [local rows, length] -> [passes, local rows per pass, length]
            rows_by_pass = padded.reshape(self.passes, num_rows // self.passes, *x.shape[1:])
            shape = (self.passes, self.rows_per_pass, *x.shape[1:])
            return jax.make_array_from_process_local_data(by_rows(self.mesh), rows_by_pass, shape)

        return jax.tree.map(lay_out, batch)


def batch_layout(
    mesh: Mesh, rows: int, length: int, tokens_per_device: int | None = None
) -> BatchLayout:
    """Divide a global batch into passes that fit the devices.

    Args:
      length: the larger of the source and target lengths.
      tokens_per_device: maximal number of source or target positions per device and pass; None
        makes one pass.
    """
    num_parts, passes = row_parts(mesh), 1
    if tokens_per_device is not None:
        passes = -(-rows // (max(1, tokens_per_device // length) * num_parts))
    return BatchLayout(mesh, passes, -(-rows // (passes * num_parts)) * num_parts)


def arrange_devices(shape: tuple[int, int, int], devices: Sequence[object]) -> np.ndarray:
    """Arrange devices so that most communication uses the fast links.

    The axis `data`, over which a step reduces gradients once, crosses slices. If a group of `fsdp`
    times `tensor` devices does not fit a slice, the outer part of `fsdp` also crosses slices, and
    then the outer part of `tensor`.

    Args:
      shape: the sizes of the axes `data`, `fsdp` and `tensor`.
      devices: exactly as many devices as `shape` needs.

    Returns:
      The devices as an array `[data, fsdp, tensor]`.
    """
    attribute, slice_indices = _slice_indices(devices)
    counts = {index: slice_indices.count(index) for index in sorted(set(slice_indices))}
    if len(counts) == 1:
        return mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
    _, fsdp, tensor = shape
    if len(set(counts.values())) > 1:
        return _over_unequal_slices(fsdp, tensor, devices, slice_indices)
    # The factor of each axis that crosses slices, as much of the first axes as possible.
    crossing, slices_left = [], len(counts)
    for size in shape:
        crossing.append(math.gcd(size, slices_left))
        slices_left //= crossing[-1]
    return mesh_utils.create_hybrid_device_mesh(
        [size // part for size, part in zip(shape, crossing, strict=True)],
        crossing,
        devices,
        process_is_granule=attribute == "process_index",
        allow_split_physical_axes=True,
    )


def _over_unequal_slices(
    fsdp: int, tensor: int, devices: Sequence[object], slice_indices: Sequence[int]
) -> np.ndarray:
    """Arrange the devices of each slice separately, and concatenate the slices along `data`."""
    grids = []
    for index in sorted(set(slice_indices)):
        members = [d for d, i in zip(devices, slice_indices, strict=True) if i == index]
        if len(members) % (fsdp * tensor):
            raise UserError(
                f"parallel.fsdp={fsdp} times parallel.tensor={tensor} does not divide the "
                f"{len(members)} devices of slice (or host) {index}, and slices differ in size; "
                "choose sizes that divide each slice, or use as many devices of each slice"
            )
        shape = len(members) // (fsdp * tensor), fsdp, tensor
        grids.append(mesh_utils.create_device_mesh(shape, members, allow_split_physical_axes=True))
    return np.concatenate(grids)


def described_slices(mesh: Mesh) -> str:
    """Describe the axes of a mesh that cross slow links; the text is empty for one slice."""
    indices = np.asarray(_slice_indices(list(mesh.devices.flat))[1]).reshape(mesh.devices.shape)
    # [data, fsdp, tensor]: the slices of the first devices along each axis.
    edges = indices[:, 0, 0], indices[0, :, 0], indices[0, 0, :]
    counts = {name: len({*edge.tolist()}) for name, edge in zip(AXES, edges, strict=True)}
    text = " and ".join(f"{name} in {count} parts" for name, count in counts.items() if count > 1)
    return text and f"over the slower links between slices or hosts: {text}"


def _slice_indices(devices: Sequence[object]) -> tuple[str, list[int]]:
    """Return the attribute that identifies the slice of a device, and its value for each device."""
    # GPUs of a described topology all have slice_index 0, so their process index identifies the
    # host.
    slice_indices = [getattr(device, "slice_index", None) or 0 for device in devices]
    is_gpu = getattr(devices[0], "platform", "") == "gpu"
    if is_gpu and len(set(slice_indices)) == 1 and jax.process_count() == 1:
        return "process_index", [getattr(device, "process_index", 0) for device in devices]
    return "slice_index", slice_indices
