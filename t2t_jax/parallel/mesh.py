"""A mesh of devices, and the layout of batches on it. One device is a mesh of one.

Devices are arranged by the links between them: fast ones within a slice, slow ones between slices.
A slice is a set of devices with fast links: the chips of a TPU slice, or the GPUs of a host. XLA
numbers them (`slice_index`): slices of TPUs by their system, GPUs by the boot identifier of their
host (xla/pjrt/distributed/topology_util.cc) or by `JAX_PARTITION_INDEX`, if NVLinks join several
hosts.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

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
    """Arrange the devices as a mesh with the axes `data`, `fsdp` and `tensor`.

    With several slices or hosts of GPUs, `fsdp` and `tensor` stay within one if they fit.

    Args:
      devices: None is all devices of all processes.
    """
    devices = all_devices() if devices is None else devices
    shape = mesh_shape(config, len(devices), jax.process_count())
    return Mesh(laid_out(shape, devices[: math.prod(shape)]), AXES)


def mesh_shape(config: MeshConfig, num_devices: int, num_processes: int) -> tuple[int, int, int]:
    """Return the sizes of the axes of a mesh, without access to any device."""
    inner = config.fsdp * config.tensor
    flags = f"parallel.fsdp={config.fsdp} times parallel.tensor={config.tensor}"
    if config.data == -1 and num_devices % inner:
        raise UserError(
            f"{flags} is {inner}, which does not divide the {num_devices} devices there are; "
            "choose other sizes, or say with parallel.data how many of the devices to use"
        )
    data = num_devices // inner if config.data == -1 else config.data
    size = data * inner
    if size > num_devices:
        raise UserError(
            f"parallel.data={config.data} times {flags} asks for {size} devices, but there are "
            f"{num_devices}; lower one of them, or use parallel.data=-1 for what is left"
        )
    if size < num_devices and num_processes > 1:
        raise UserError(
            f"parallel.data={config.data} times {flags} is {size} of the {num_devices} devices of "
            f"{num_processes} processes; several processes use all of theirs: set "
            "parallel.data=-1, or start fewer"
        )
    return data, config.fsdp, config.tensor


def mesh_of(params: PyTree[jax.Array]) -> Mesh:
    """Return the mesh of a model's parameters."""
    sharding = jax.tree.leaves(params)[0].sharding
    mesh = sharding.mesh if isinstance(sharding, NamedSharding) else None
    if isinstance(mesh, Mesh) and mesh.axis_names == AXES:
        return mesh
    devices = sorted(sharding.device_set, key=lambda device: device.id)
    return Mesh(np.asarray(devices).reshape(-1, 1, 1), AXES)


def replicated(mesh: Mesh) -> NamedSharding:
    """Return the sharding in which every device has the whole array."""
    return NamedSharding(mesh, PartitionSpec())


def by_rows(mesh: Mesh) -> NamedSharding:
    """Return the sharding of a batch `[passes, rows, length]`: equal parts of each pass's rows."""
    return NamedSharding(mesh, PartitionSpec(None, *partition_spec(["batch"])))


def row_parts(mesh: Mesh) -> int:
    """Return the number of parts of a batch's rows on different devices."""
    return math.prod(mesh.shape[axis] for axis in RULES["batch"])


def put_rows(x: Shaped[np.ndarray, "rows ..."], mesh: Mesh) -> Shaped[Array, "rows ..."]:
    """Split an array, which every process has whole, over devices by rows.

    The number of rows must be a multiple of `row_parts`.
    """
    rows = NamedSharding(mesh, partition_spec(["batch"]))
    return jax.make_array_from_callback(x.shape, rows, lambda index: x[index])


def on_host(tree: _Tree) -> _Tree:
    """Return the arrays of a tree as NumPy arrays, gathered from all processes."""
    if all(x.is_fully_addressable or x.is_fully_replicated for x in jax.tree.leaves(tree)):
        return jax.device_get(tree)
    return multihost_utils.process_allgather(tree, tiled=True)


def one_ahead(items: Iterator[_T]) -> Iterator[_T]:
    """Yield items one step late, so that the devices compute one while the host awaits another."""
    held: list[_T] = []
    for item in items:
        yield from held
        held = [item]
    yield from held


class BatchLayout(NamedTuple):
    """The passes and devices that compute a global batch: row `r` is in pass `r // rows_per_pass`.

    Attributes:
      mesh: the devices.
      passes: the number of sequential passes.
      rows_per_pass: the rows of each pass, a multiple of `row_parts`. Rows beyond those of the
        batch are empty.
    """

    mesh: Mesh
    passes: int
    rows_per_pass: int

    @property
    def rows(self) -> int:
        """Return the rows that the devices compute, with the empty ones."""
        return self.passes * self.rows_per_pass

    def local_rows(self) -> Int[np.ndarray, " n"]:
        """Return the indices of this process's rows, in order."""
        if len(self.mesh.local_devices) == self.mesh.size:
            in_pass = np.arange(self.rows_per_pass)
        else:
            shape = (self.passes, self.rows_per_pass, 1)
            parts = filter(None, by_rows(self.mesh).addressable_devices_indices_map(shape).values())
            in_pass = np.unique([np.arange(self.rows_per_pass)[rows] for _, rows, _ in parts])
        return (np.arange(self.passes)[:, None] * self.rows_per_pass + in_pass).ravel()

    def put(self, batch: _Batch) -> _Batch:
        """Put a batch on the devices.

        Args:
          batch: arrays `[rows, length]`: the `local_rows` of the global batch, possibly without the
            empty ones at the end.

        Returns:
          Arrays `[passes, rows_per_pass, length]`, over all devices of all processes.
        """
        local = self.local_rows()
        in_pass = local[: len(local) // self.passes]

        def lay_out(x: np.ndarray) -> jax.Array:
            padded = np.pad(x, ((0, len(local) - len(x)), *[(0, 0)] * (x.ndim - 1)))
            passes = padded.reshape(self.passes, len(in_pass), *x.shape[1:])

            def part(index: tuple[slice, ...] | None) -> np.ndarray:
                assert index is not None
                start, stop, _ = index[1].indices(self.rows_per_pass)
                return passes[:, np.searchsorted(in_pass, start) :][:, : stop - start]

            shape = (self.passes, self.rows_per_pass, *x.shape[1:])
            return jax.make_array_from_callback(shape, by_rows(self.mesh), part)

        return jax.tree.map(lay_out, batch)


def batch_layout(
    mesh: Mesh, rows: int, length: int, tokens_per_device: int | None = None
) -> BatchLayout:
    """Cut a global batch into passes small enough for the devices.

    Args:
      length: the length of the batch's longer side.
      tokens_per_device: most positions of one side on a device in a pass; None makes one pass.
    """
    parts, passes = row_parts(mesh), 1
    if tokens_per_device is not None:
        passes = -(-rows // (max(1, tokens_per_device // length) * parts))
    return BatchLayout(mesh, passes, -(-rows // (passes * parts)) * parts)


def laid_out(shape: tuple[int, int, int], devices: Sequence[object]) -> np.ndarray:
    """Arrange devices so that most of the communication uses the fast links.

    The axis `data`, over which gradients are added up once a step, crosses slices. If `fsdp` times
    `tensor` devices are more than a slice has, or do not divide it, the outer part of `fsdp`, and
    at last of `tensor`, also crosses slices, as far as necessary.

    Args:
      shape: the sizes of the axes `data`, `fsdp` and `tensor`.
      devices: as many devices as the mesh has.

    Returns:
      The devices as an array of that shape.
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
    fsdp: int, tensor: int, devices: Sequence[object], found: Sequence[int]
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


def described_slices(mesh: Mesh) -> str:
    """Return the axes of a mesh that cross the slow links, as text; empty for a single slice.

    Args:
      mesh: a mesh from `laid_out`.
    """
    found = np.asarray(_slice_indices(list(mesh.devices.flat))[1]).reshape(mesh.devices.shape)
    lines = found[:, 0, 0], found[0, :, 0], found[0, 0, :]  # the first devices along each axis
    slices = {name: len({*line.tolist()}) for name, line in zip(AXES, lines, strict=True)}
    axes = " and ".join(f"{name} in {count} parts" for name, count in slices.items() if count > 1)
    return axes and f"over the slower links between slices or hosts: {axes}"


def _slice_indices(devices: Sequence[object]) -> tuple[str, list[int]]:
    """Return the attribute that identifies the slice of a device, and its value for each.

    Described GPUs all have the slice 0. Their processes identify their hosts, and this process has
    met none of them.
    """
    by_slice = [getattr(device, "slice_index", None) or 0 for device in devices]
    is_gpu = getattr(devices[0], "platform", "") == "gpu"
    if is_gpu and len(set(by_slice)) == 1 and jax.process_count() == 1:
        return "process_index", [getattr(device, "process_index", 0) for device in devices]
    return "slice_index", by_slice
