"""Logical axes, which modules name, and the mesh axes that split them.

    data      each device takes its rows of the batch
    fsdp      each device takes its rows, too, and keeps only its part of every matrix and of the
              optimiser's state (the parts are gathered for as long as a layer needs them)
    tensor    the devices share the heads, the feed-forward network's inner width and the vocabulary

Only this module maps logical axes to mesh axes.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar

import flax.linen as nn
import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, PyTree, Shaped

from t2t_jax.errors import UserError
from t2t_jax.system.context import with_value

_Shaped = Array | jax.ShapeDtypeStruct


RULES: Mapping[str, tuple[str, ...]] = {
    "vocab": ("tensor",),  # the entries of the vocabulary
    "embed": ("fsdp",),  # the axis of a matrix that is d_model wide
    "heads": ("tensor",),  # the attention heads, or the widths of all heads side by side
    "mlp": ("tensor",),  # the inner width of the feed-forward network, d_ff
    "layers": (),  # the layers of a stack, which are computed one after the other
    "vector": (),  # the d_model entries of a bias or a norm, too few to be worth splitting
    "positions": (),  # the rows of a learned position table
    "batch": ("data", "fsdp"),  # the rows of a batch
    "length": (),  # the positions of a row
    "channels": (),  # the axis of activations that is d_model wide
}
"""The mesh axes that split each logical axis, outermost first."""

HEADS = "batch", "length", "heads", None
"""The logical axes of queries, keys and values that are split into heads."""


def partition_spec(names: Sequence[str | None], without: Collection[str] = ()) -> PartitionSpec:
    """Return the mesh axes that split each axis of an array, given its logical axes.

    JAX refuses a layout in which one mesh axis splits two axes.

    Args:
      without: mesh axes that split nothing.

    Raises:
      ValueError: a name is no logical axis.
    """
    unknown = [name for name in names if name is not None and name not in RULES]
    if unknown:
        raise ValueError(f"no logical axis {unknown[0]!r}; there are {', '.join(RULES)}")
    rules = [() if name is None else RULES[name] for name in names]
    split = [tuple(axis for axis in axes if axis not in without) for axes in rules]
    # Entries as JAX itself would write them, so that equal layouts compare equal.
    return PartitionSpec(*(axes[0] if len(axes) == 1 else axes or None for axes in split))


_only_shapes: ContextVar[bool] = ContextVar("only_shapes", default=False)


def only_shapes() -> AbstractContextManager[None]:
    """Make parameters whose shapes are used within the context, and whose values are not."""
    return with_value(_only_shapes, True)


def uses_values() -> bool:
    """Return whether the values of parameters are used, that is, outside of `only_shapes`."""
    return not _only_shapes.get()


_mesh: ContextVar[Mesh | None] = ContextVar("mesh", default=None)


def on_mesh(mesh: Mesh | None) -> AbstractContextManager[None]:
    """Let `constrain` take effect in code traced within the context, for the devices of a mesh.

    Args:
      mesh: the devices that the traced program is compiled for; None constrains nothing.
    """
    return with_value(_mesh, mesh)


def constrain(x: Shaped[Array, "..."], *names: str | None) -> Shaped[Array, "..."]:
    """Have the compiler split `x` by its logical axes.

    Outside of `on_mesh`, and on a single device, `x` is returned unchanged.

    Without the constraint, the compiler may choose to split activations as the matrices are, and
    to add up partial sums of them, which are larger.
    """
    mesh = _mesh.get()
    if mesh is None or mesh.size == 1:
        return x
    return jax.lax.with_sharding_constraint(x, _sharding(mesh, names))


def is_divided(x: Shaped[Array, "..."], *names: str | None) -> bool:
    """Return whether `x`, split by its logical axes, has equal parts on the devices.

    Outside of `on_mesh` the answer is False, as the devices are unknown.
    """
    mesh = _mesh.get()
    if mesh is None:
        return False
    try:
        _sharding(mesh, names).shard_shape(x.shape)
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
    specs = tuple(_sharding(mesh, names).spec for names in taken)
    return jax.shard_map(
        function, mesh=mesh, in_specs=specs, out_specs=_sharding(mesh, given).spec, check_vma=False
    )


def _sharding(mesh: Mesh, names: Sequence[str | None]) -> NamedSharding:
    """Return the sharding of an array of traced code; axes mapped by `jax.vmap` split nothing."""
    mapped = [axis for axis in mesh.axis_names if _is_mapped(axis)]
    return NamedSharding(mesh, partition_spec(names, mapped))


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
        spec = partition_spec(names)
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
