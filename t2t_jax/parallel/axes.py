"""Map the logical axes that modules name to the axes of the device mesh.

data      splits the rows of the batch
fsdp      splits the rows of the batch, every matrix and the optimizer state; the devices gather
          a matrix only while a layer needs it
tensor    splits the heads, the inner width of the feed-forward network and the vocabulary
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
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
    "heads": ("tensor",),  # the attention heads, or the concatenated widths of all heads
    "mlp": ("tensor",),  # the inner width of the feed-forward network, d_ff
    "layers": (),  # the layers of a stack, which are computed one after the other
    "vector": (),  # the d_model entries of a bias or a norm, too few to be worth splitting
    "positions": (),  # the rows of a learned position table
    "batch": ("data", "fsdp"),  # the rows of a batch
    "length": (),  # the positions of a row
    "channels": (),  # the axis of activations that is d_model wide
}
"""The mesh axes that split each logical axis, outermost axis first."""

HEADS = "batch", "length", "heads", None
"""The logical axes of queries, keys and values `[batch, length, heads, d_head]`."""


def partition_spec(names: Sequence[str | None], without: Collection[str] = ()) -> PartitionSpec:
    """Return the `PartitionSpec` of an array, given the names of its logical axes.

    Args:
      without: mesh axes to leave out.

    Raises:
      ValueError: a name is not a logical axis.
    """
    unknown = [name for name in names if name is not None and name not in RULES]
    if unknown:
        raise ValueError(f"no logical axis {unknown[0]!r}; there are {', '.join(RULES)}")
    rules = [() if name is None else RULES[name] for name in names]
    mesh_axes = [tuple(axis for axis in axes if axis not in without) for axes in rules]
    # The same entries as JAX writes (a name, a tuple or None), so that equal specs compare equal.
    return PartitionSpec(*(axes[0] if len(axes) == 1 else axes or None for axes in mesh_axes))


_only_shapes: ContextVar[bool] = ContextVar("only_shapes", default=False)


def only_shapes() -> AbstractContextManager[None]:
    """Return a context for code that uses only the shapes of parameters, not their values."""
    return with_value(_only_shapes, True)


def uses_values() -> bool:
    """Return False in an `only_shapes` context, whose code uses no parameter values; else True."""
    return not _only_shapes.get()


_mesh: ContextVar[Mesh | None] = ContextVar("mesh", default=None)


def on_mesh(mesh: Mesh | None) -> AbstractContextManager[None]:
    """Enable `constrain` for code that JAX traces within the context.

    Args:
      mesh: the mesh of the compiled program; None constrains nothing.
    """
    return with_value(_mesh, mesh)


def constrain(x: Shaped[Array, "..."], *names: str | None) -> Shaped[Array, "..."]:
    """Add a sharding constraint to `x` by its logical axes.

    Outside of `on_mesh`, and on a single device, the function returns `x` unchanged.
    """
    # Without constraints, the compiler may shard activations like the matrices. Then it all-reduces
    # partial sums, which are larger.
    mesh = _mesh.get()
    if mesh is None or mesh.size == 1:
        return x
    return jax.lax.with_sharding_constraint(x, _sharding(mesh, names))


def is_divided(x: Shaped[Array, "..."], *names: str | None) -> bool:
    """Return whether the mesh divides `x` by its logical axes into equal shards.

    Outside of `on_mesh` the result is False, because the devices are unknown.
    """
    mesh = _mesh.get()
    if mesh is None:
        return False
    with suppress(ValueError):
        _sharding(mesh, names).shard_shape(x.shape)
        return True
    return False


def in_parts(
    function: Callable[..., Array],
    argument_axes: Sequence[Sequence[str | None]],
    result_axes: Sequence[str | None],
) -> Callable[..., Array]:
    """Wrap a function so that each device computes it on its shards of the arguments.

    Kernels that the compiler cannot split need this wrapper. On a single device, the result is
    `function`.

    Args:
      function: a function of arrays, for which `is_divided` is True.
      argument_axes: the logical axes of each argument.
      result_axes: the logical axes of the result.
    """
    mesh = _mesh.get()
    if mesh is None or mesh.size == 1:
        return function
    specs = tuple(_sharding(mesh, axes).spec for axes in argument_axes)
    out_spec = _sharding(mesh, result_axes).spec
    return jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=out_spec, check_vma=False)


def _sharding(mesh: Mesh, names: Sequence[str | None]) -> NamedSharding:
    """Return the sharding of an array with logical axes `names` in compiled code.

    It omits mesh axes that an enclosing `jax.vmap` maps.
    """
    mapped = [axis for axis in mesh.axis_names if _is_mapped(axis)]
    return NamedSharding(mesh, partition_spec(names, mapped))


def _is_mapped(axis: str) -> bool:
    """Return whether the traced function is inside a `jax.vmap` over this mesh axis."""
    with suppress(NameError):
        jax.lax.axis_size(axis)
        return True
    return False


def abstract_arrays(mesh: Mesh, boxed: PyTree) -> PyTree[jax.ShapeDtypeStruct]:
    """Return a `jax.ShapeDtypeStruct` with a sharding for every array of a tree.

    Args:
      mesh: the devices, which may be a described topology.
      boxed: the tree of arrays or shapes, in boxes that name their logical axes.
    """
    plain = nn.unbox(boxed)
    targets = shardings(mesh, nn.get_partition_spec(boxed), plain)
    return jax.tree.map(
        lambda x, target: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=target), plain, targets
    )


def shardings(mesh: Mesh, specs: PyTree, shapes: PyTree) -> PyTree[NamedSharding]:
    """Return the shardings of the arrays of a tree over a mesh.

    Args:
      specs: a tree with the logical axes of each array, as a `PartitionSpec`.
      shapes: the same tree with arrays or `jax.ShapeDtypeStruct`.
    """

    def lay_out(path: jax.tree_util.KeyPath, axes: PartitionSpec, array: _Shaped) -> NamedSharding:
        names = (*axes, *[None] * (len(array.shape) - len(axes)))
        spec = partition_spec(names)
        for name, size, split in zip(names, array.shape, spec, strict=True):
            mesh_axes = (split,) if isinstance(split, str) else split or ()
            if size % math.prod(mesh.shape[axis] for axis in mesh_axes):
                label = jax.tree_util.keystr(path, simple=True, separator="/")
                flags = " times ".join(f"parallel.{axis}={mesh.shape[axis]}" for axis in mesh_axes)
                raise UserError(
                    f"{label} has {size} entries on its axis {name!r}, which {flags} does not "
                    "divide; choose a divisor of this size, or another size"
                )
        return NamedSharding(mesh, spec)

    return jax.tree_util.tree_map_with_path(
        lay_out, specs, shapes, is_leaf=lambda x: isinstance(x, PartitionSpec)
    )
