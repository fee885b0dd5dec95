"""Logical axes, which modules name, and the mesh axes that split them.

    data      each device takes its rows of the batch
    fsdp      each device takes its rows, too, and keeps only its part of every matrix and of the
              optimiser's state (the parts are gathered for as long as a layer needs them)
    tensor    the devices share the heads, the feed-forward network's inner width and the vocabulary

Only this module maps logical axes to mesh axes.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass

import flax.linen as nn
import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, PyTree, Shaped

from t2t_jax.errors import UserError

_MeshAxes = tuple[str, ...]
_Shaped = Array | jax.ShapeDtypeStruct


@dataclass(frozen=True)
class AxisRules:
    """The mesh axes that split each logical axis, outermost first."""

    vocab: _MeshAxes = ("tensor",)
    """The entries of the vocabulary."""
    embed: _MeshAxes = ("fsdp",)
    """The axis of a matrix that is d_model wide."""
    heads: _MeshAxes = ("tensor",)
    """The attention heads, or the widths of all heads side by side."""
    mlp: _MeshAxes = ("tensor",)
    """The inner width of the feed-forward network, d_ff."""
    layers: _MeshAxes = ()
    """The layers of a stack, which are computed one after the other."""
    vector: _MeshAxes = ()
    """The d_model entries of a bias or a norm, too few to be worth splitting."""
    positions: _MeshAxes = ()
    """The rows of a learned position table."""
    batch: _MeshAxes = ("data", "fsdp")
    """The rows of a batch."""
    length: _MeshAxes = ()
    """The positions of a row."""
    channels: _MeshAxes = ()
    """The axis of activations that is d_model wide."""

    def spec(self, names: Sequence[str | None]) -> PartitionSpec:
        """Return the mesh axes that split each axis of an array, given its logical axes.

        JAX refuses a layout in which one mesh axis splits two axes.

        Raises:
          ValueError: a name is no logical axis.
        """
        known = vars(self)
        unknown = [name for name in names if name is not None and name not in known]
        if unknown:
            raise ValueError(f"no logical axis {unknown[0]!r}; there are {', '.join(known)}")
        split: list[_MeshAxes] = [() if name is None else known[name] for name in names]
        # Entries as JAX itself would write them, so that equal layouts compare equal.
        return PartitionSpec(*(axes[0] if len(axes) == 1 else axes or None for axes in split))


RULES = AxisRules()

HEADS = "batch", "length", "heads", None
"""The logical axes of queries, keys and values that are split into heads."""


_only_shapes: ContextVar[bool] = ContextVar("only_shapes", default=False)


@contextlib.contextmanager
def only_shapes() -> Iterator[None]:
    """Make parameters whose shapes are used within the context, and whose values are not."""
    token = _only_shapes.set(True)
    try:
        yield
    finally:
        _only_shapes.reset(token)


def uses_values() -> bool:
    """Return whether the values of parameters are used, that is, outside of `only_shapes`."""
    return not _only_shapes.get()


_mesh: ContextVar[Mesh | None] = ContextVar("mesh", default=None)


@contextlib.contextmanager
def on_mesh(mesh: Mesh | None) -> Iterator[None]:
    """Let `constrain` take effect in code traced within the context, for the devices of a mesh.

    Args:
      mesh: the devices that the traced program is compiled for; None constrains nothing.
    """
    token = _mesh.set(mesh)
    try:
        yield
    finally:
        _mesh.reset(token)


def constrain(x: Shaped[Array, "..."], *names: str | None) -> Shaped[Array, "..."]:
    """Have the compiler split `x` by its logical axes.

    Outside of `on_mesh`, and on a single device, `x` is returned unchanged.

    Without the constraint, the compiler may choose to split activations as the matrices are, and
    to add up partial sums of them, which are larger.
    """
    mesh = _mesh.get()
    if mesh is None or mesh.size == 1:
        return x
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, _rules(mesh).spec(names)))


def is_divided(x: Shaped[Array, "..."], *names: str | None) -> bool:
    """Return whether `x`, split by its logical axes, has equal parts on the devices.

    Outside of `on_mesh` the answer is False, as the devices are unknown.
    """
    mesh = _mesh.get()
    if mesh is None:
        return False
    try:
        NamedSharding(mesh, _rules(mesh).spec(names)).shard_shape(x.shape)
    except ValueError:
        return False
    return True


def in_parts(
    function: Callable[..., Array],
    taken: Sequence[Sequence[str | None]],
    given: Sequence[str | None],
) -> Callable[..., Array]:
    """Return a function that each device computes on its parts of the arguments.

    Use it for kernels that the compiler cannot split. On a single device, it returns `function`.

    Args:
      function: a function of arrays, for which `is_divided` is True.
      taken: the logical axes of each argument.
      given: the logical axes of the result.
    """
    mesh = _mesh.get()
    if mesh is None or mesh.size == 1:
        return function
    rules = _rules(mesh)
    specs = tuple(rules.spec(names) for names in taken)
    return jax.shard_map(
        function, mesh=mesh, in_specs=specs, out_specs=rules.spec(given), check_vma=False
    )


def _rules(mesh: Mesh) -> AxisRules:
    """Return the rules that split nothing over mesh axes mapped by `jax.vmap`."""
    mapped = [axis for axis in mesh.axis_names if _is_mapped(axis)]
    kept = {
        name: tuple(axis for axis in axes if axis not in mapped)
        for name, axes in vars(RULES).items()
    }
    return AxisRules(**kept)


def _is_mapped(axis: str) -> bool:
    """Return whether `jax.vmap` maps the function being traced over this axis of the mesh."""
    try:
        jax.lax.axis_size(axis)
    except NameError:
        return False
    return True


def abstract_arrays(mesh: Mesh, boxed: PyTree) -> PyTree[jax.ShapeDtypeStruct]:
    """Return a `jax.ShapeDtypeStruct` with a sharding for every array of a tree.

    Args:
      mesh: the devices, which may be descriptions of absent devices.
      boxed: the tree, with arrays or their shapes in boxes that name their logical axes.
    """
    plain = nn.unbox(boxed)
    places = shardings(mesh, nn.get_partition_spec(boxed), plain)
    return jax.tree.map(
        lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), plain, places
    )


def shardings(mesh: Mesh, specs: PyTree, shapes: PyTree) -> PyTree[NamedSharding]:
    """Return the shardings of the arrays of a tree over a mesh.

    Args:
      specs: a tree of the arrays' logical axes, each a `PartitionSpec`.
      shapes: the same tree, of arrays or of anything that has their shapes.
    """

    def lay_out(path: jax.tree_util.KeyPath, axes: PartitionSpec, array: _Shaped) -> NamedSharding:
        names = (*axes, *[None] * (len(array.shape) - len(axes)))
        spec = RULES.spec(names)
        for name, size, split in zip(names, array.shape, spec, strict=True):
            chosen = (split,) if isinstance(split, str) else split or ()
            if size % math.prod(mesh.shape[axis] for axis in chosen):
                label = jax.tree_util.keystr(path, simple=True, separator="/")
                flags = " times ".join(f"parallel.{axis}={mesh.shape[axis]}" for axis in chosen)
                raise UserError(
                    f"{label} has {size} entries on its axis {name!r}, which {flags} does not "
                    "divide; choose a divisor of that size, or another size"
                )
        return NamedSharding(mesh, spec)

    return jax.tree_util.tree_map_with_path(
        lay_out, specs, shapes, is_leaf=lambda x: isinstance(x, PartitionSpec)
    )
