"""The operators of ONNX for the equations of a jaxpr, by the name of the primitive of JAX."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from t2t_jax.interchange.onnx.graph import Graph, Operation, Tensor, Value, element_type


def _broadcast(shapes: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    """Return the shape that arrays of some shapes have together."""
    rank = max(map(len, shapes))
    filled = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(
        next((size for size in sizes if size != 1), 1) for sizes in zip(*filled, strict=True)
    )


def _elementwise(
    graph: Graph, equation: Any, *operands: Value, operator: str, **attributes: Any
) -> Tensor:
    del equation
    tensors = [graph.tensor(x) for x in operands]
    name = graph.node(operator, *(x.name for x in tensors), **attributes)
    return Tensor(name, _broadcast([x.shape for x in tensors]))


def _same(graph: Graph, equation: Any, x: Value) -> Value:
    del graph, equation
    return x


def _chain(*operators: str) -> Operation:
    """Return the operation that applies operators of one operand to the result of the first."""

    def write(graph: Graph, equation: Any, *operands: Value) -> Tensor:
        result = _elementwise(graph, equation, *operands, operator=operators[0])
        for operator in operators[1:]:
            result = _elementwise(graph, equation, result, operator=operator)
        return result

    return write


def _square(graph: Graph, equation: Any, x: Value) -> Tensor:
    return _elementwise(graph, equation, x, x, operator="Mul")


def _integer_power(graph: Graph, equation: Any, x: Value) -> Tensor:
    exponent = np.array(equation.params["y"], np.float32)
    return _elementwise(graph, equation, x, exponent, operator="Pow")


def _erfc(graph: Graph, equation: Any, x: Value) -> Tensor:
    erf = _elementwise(graph, equation, x, operator="Erf")
    return _elementwise(graph, equation, np.ones((), np.float32), erf, operator="Sub")


def _clamp(graph: Graph, equation: Any, least: Value, x: Value, most: Value) -> Tensor:
    above = _elementwise(graph, equation, x, least, operator="Max")
    return _elementwise(graph, equation, above, most, operator="Min")


def _select(graph: Graph, equation: Any, which: Value, no: Value, yes: Value) -> Tensor:
    return _elementwise(graph, equation, which, yes, no, operator="Where")


def _convert(graph: Graph, equation: Any, x: Value) -> Tensor:
    to = element_type(equation.params["new_dtype"])
    return _elementwise(graph, equation, x, operator="Cast", to=to)


def _broadcast_in_dim(graph: Graph, equation: Any, x: Value) -> Tensor:
    places = equation.params["broadcast_dimensions"]
    added = [axis for axis in range(len(equation.params["shape"])) if axis not in places]
    if not isinstance(x, Tensor):
        return graph.tensor(np.expand_dims(x, added))
    if not added:
        return x
    name = graph.node("Unsqueeze", x.name, graph.integers(*added))
    shape = dict(zip(places, x.shape, strict=True)) | dict.fromkeys(added, 1)
    return Tensor(name, tuple(shape[axis] for axis in sorted(shape)))


def _reshape(graph: Graph, equation: Any, x: Value) -> Tensor:
    before, after = equation.invars[0].aval.shape, tuple(equation.params["new_sizes"])
    whole = graph.whole(x, before)
    symbols = [axis for axis, size in enumerate(after) if not isinstance(size, int)]
    moved = [axis for axis in symbols if axis >= len(before) or before[axis] != after[axis]]
    if len(moved) > 1:
        return Tensor(graph.node("Reshape", whole, graph.shape(after)), after)
    # ONNX takes 0 for the size at the same place before, and -1 for the size that is left.
    marked = [
        -1 if axis in moved else 0 if axis in symbols else after[axis] for axis in range(len(after))
    ]
    return Tensor(graph.node("Reshape", whole, graph.integers(*marked)), after)


def _squeeze(graph: Graph, equation: Any, x: Value) -> Tensor:
    tensor, axes = graph.tensor(x), equation.params["dimensions"]
    shape = tuple(size for axis, size in enumerate(tensor.shape) if axis not in axes)
    return Tensor(graph.node("Squeeze", tensor.name, graph.integers(*axes)), shape)


def _transpose(graph: Graph, equation: Any, x: Value) -> Tensor:
    tensor, order = graph.tensor(x), equation.params["permutation"]
    return _transposed(graph, tensor, order)


def _transposed(graph: Graph, x: Tensor, order: Sequence[int]) -> Tensor:
    if list(order) == list(range(len(order))):
        return x
    name = graph.node("Transpose", x.name, perm=list(order))
    return Tensor(name, tuple(x.shape[axis] for axis in order))


def _reduce(graph: Graph, equation: Any, x: Value, *, operator: str) -> Tensor:
    axes = equation.params["axes"]
    whole = graph.whole(x, equation.invars[0].aval.shape)
    name = graph.node(operator, whole, graph.integers(*axes), keepdims=0)
    return Tensor(name, tuple(equation.outvars[0].aval.shape))


def _concatenate(graph: Graph, equation: Any, *operands: Value) -> Tensor:
    avals = (variable.aval for variable in equation.invars)
    names = [graph.whole(x, aval.shape) for x, aval in zip(operands, avals, strict=True)]
    name = graph.node("Concat", *names, axis=equation.params["dimension"])
    return Tensor(name, tuple(equation.outvars[0].aval.shape))


def _stack(graph: Graph, equation: Any, *operands: Value) -> Tensor:
    axis, avals = equation.params["axis"], [variable.aval for variable in equation.invars]
    whole = [graph.whole(x, aval.shape) for x, aval in zip(operands, avals, strict=True)]
    names = [graph.node("Unsqueeze", name, graph.integers(axis)) for name in whole]
    name = graph.node("Concat", *names, axis=axis)
    return Tensor(name, tuple(equation.outvars[0].aval.shape))


def _split(graph: Graph, equation: Any, x: Value) -> list[Value]:
    whole = graph.whole(x, equation.invars[0].aval.shape)
    sizes, axis = equation.params["sizes"], equation.params["axis"]
    names = graph.nodes_of("Split", len(sizes), whole, graph.integers(*sizes), axis=axis)
    shapes = (tuple(variable.aval.shape) for variable in equation.outvars)
    return [Tensor(*each) for each in zip(names, shapes, strict=True)]


def _slice(graph: Graph, equation: Any, x: Value) -> Tensor:
    params, before = equation.params, equation.invars[0].aval.shape
    bounds = graph.shape(params["start_indices"]), graph.shape(params["limit_indices"])
    axes = graph.integers(*range(len(before)))
    steps = graph.integers(*(params["strides"] or [1] * len(before)))
    name = graph.node("Slice", graph.whole(x, before), *bounds, axes, steps)
    return Tensor(name, tuple(equation.outvars[0].aval.shape))


def _pad(graph: Graph, equation: Any, x: Value, fill: Value) -> Tensor:
    low, high, between = zip(*equation.params["padding_config"], strict=True)
    assert not any(between)
    whole = graph.whole(x, equation.invars[0].aval.shape)
    name = graph.node("Pad", whole, graph.integers(*low, *high), graph.tensor(fill).name)
    return Tensor(name, tuple(equation.outvars[0].aval.shape))


def _dimension(graph: Graph, equation: Any) -> Tensor:
    size = graph.node("Squeeze", graph.size(equation.params["dim"]), graph.integers(0))
    return Tensor(graph.node("Cast", size, to=element_type(np.int32)), ())


def _count(graph: Graph, size: Any) -> str:
    """Return the name of the numbers from 0 up to a size, one of an axis."""
    end = graph.node("Squeeze", graph.size(size), graph.integers(0))
    return graph.node("Range", graph.constant(np.int64(0)), end, graph.constant(np.int64(1)))


def _iota(graph: Graph, equation: Any) -> Tensor:
    params = equation.params
    rank, axis = len(params["shape"]), params["dimension"]
    size = params["shape"][axis]
    name = graph.node("Cast", _count(graph, size), to=element_type(params["dtype"]))
    if others := [each for each in range(rank) if each != axis]:
        name = graph.node("Unsqueeze", name, graph.integers(*others))
    return Tensor(name, tuple(size if each == axis else 1 for each in range(rank)))


def _dynamic_update_slice(
    graph: Graph, equation: Any, x: Value, update: Value, *starts: Value
) -> Tensor:
    """Write an update that has one element along one axis, and along all others as many as `x`."""
    shape, new = (tuple(variable.aval.shape) for variable in equation.invars[:2])
    [axis] = [axis for axis in range(len(shape)) if shape[axis] != new[axis]]
    assert new[axis] == 1
    at = graph.node("Cast", graph.tensor(starts[axis]).name, to=element_type(np.int64))
    chosen = graph.node("Equal", _count(graph, shape[axis]), at)
    if others := [each for each in range(len(shape)) if each != axis]:
        chosen = graph.node("Unsqueeze", chosen, graph.integers(*others))
    return Tensor(
        graph.node("Where", chosen, graph.tensor(update).name, graph.whole(x, shape)), shape
    )


def _gather(graph: Graph, equation: Any, x: Value, indices: Value) -> Tensor:
    """Write the choice of elements along one axis; all indices have to be in range."""
    shape, wanted = (tuple(variable.aval.shape) for variable in equation.invars)
    numbers, sizes = equation.params["dimension_numbers"], equation.params["slice_sizes"]
    [axis] = numbers.start_index_map
    assert numbers.collapsed_slice_dims == (axis,)
    assert not numbers.operand_batching_dims
    assert all(size == shape[each] for each, size in enumerate(sizes) if each != axis)
    which = graph.node("Squeeze", graph.whole(indices, wanted), graph.integers(-1))
    if "CLIP" in str(equation.params["mode"]).upper():
        dtype = equation.invars[1].aval.dtype
        size = graph.node("Squeeze", graph.size(shape[axis]), graph.integers(0))
        size = graph.node("Cast", size, to=element_type(dtype))
        last = graph.node("Sub", size, graph.constant(np.ones((), dtype)))
        which = graph.node("Max", which, graph.constant(np.zeros((), dtype)))
        which = graph.node("Min", which, last)
    name = graph.node("Gather", graph.whole(x, shape), which, axis=axis)
    # Gather puts the axes of the indices in the place of the axis; JAX says where all others go.
    after = tuple(equation.outvars[0].aval.shape)
    chosen = [each for each in range(len(after)) if each not in numbers.offset_dims]
    order = [*numbers.offset_dims[:axis], *chosen, *numbers.offset_dims[axis:]]
    made = Tensor(name, tuple(after[each] for each in order))
    return _transposed(graph, made, np.argsort(order).tolist())


def _dot_general(graph: Graph, equation: Any, a: Value, b: Value) -> Tensor:
    """Write a sum of products: as MatMul, where it is one of batches of matrices."""
    (sum_a, sum_b), (batch_a, batch_b) = equation.params["dimension_numbers"]
    shapes = [tuple(variable.aval.shape) for variable in equation.invars]
    taken = {*sum_a, *batch_a}, {*sum_b, *batch_b}
    free_a, free_b = (
        [axis for axis in range(len(shape)) if axis not in out]
        for shape, out in zip(shapes, taken, strict=True)
    )
    after = tuple(equation.outvars[0].aval.shape)
    if len(sum_a) == 1 and len(free_b) == 1 and (not batch_a or len(free_a) == 1):
        left = _ordered(graph, a, shapes[0], [*batch_a, *free_a, *sum_a])
        right = _ordered(graph, b, shapes[1], [*batch_b, *sum_b, *free_b])
        return Tensor(graph.node("MatMul", left, right), after)
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    names_a = dict(enumerate(next(letters) for _ in shapes[0]))
    names_b = {axis: next(letters) for axis in free_b}
    names_b |= dict(zip([*sum_b, *batch_b], [names_a[x] for x in [*sum_a, *batch_a]], strict=True))
    result = [names_a[x] for x in [*batch_a, *free_a]] + [names_b[x] for x in free_b]
    sides = ("".join(names[x] for x in sorted(names)) for names in (names_a, names_b))
    whole = (graph.whole(x, shape) for x, shape in zip((a, b), shapes, strict=True))
    text = f"{','.join(sides)}->{''.join(result)}"
    return Tensor(graph.node("Einsum", *whole, equation=text), after)


def _ordered(graph: Graph, x: Value, shape: tuple[Any, ...], order: list[int]) -> str:
    if not isinstance(x, Tensor):  # a parameter, which is kept in the order of its products
        return graph.constant(np.transpose(x, order))
    return _transposed(graph, Tensor(graph.whole(x, shape), shape), order).name


_ELEMENTWISE = {
    "add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "max": "Max", "min": "Min",
    "neg": "Neg", "abs": "Abs", "sign": "Sign", "floor": "Floor", "exp": "Exp", "log": "Log",
    "sqrt": "Sqrt", "sin": "Sin", "cos": "Cos", "tanh": "Tanh", "logistic": "Sigmoid",
    "erf": "Erf", "pow": "Pow", "eq": "Equal", "lt": "Less", "le": "LessOrEqual",
    "gt": "Greater", "ge": "GreaterOrEqual", "and": "And", "or": "Or", "not": "Not",
}  # fmt: skip
_SAME = "name", "stop_gradient", "copy", "copy_p", "optimization_barrier", "sharding_constraint"
_REDUCTIONS = {"reduce_sum": "ReduceSum", "reduce_max": "ReduceMax", "reduce_min": "ReduceMin"}

OPERATIONS: Mapping[str, Operation] = {
    **{name: partial(_elementwise, operator=operator) for name, operator in _ELEMENTWISE.items()},
    **dict.fromkeys(_SAME, _same),
    **{name: partial(_reduce, operator=operator) for name, operator in _REDUCTIONS.items()},
    "ne": _chain("Equal", "Not"),
    "rsqrt": _chain("Sqrt", "Reciprocal"),
    "rem": partial(_elementwise, operator="Mod", fmod=1),
    "square": _square,
    "integer_pow": _integer_power,
    "erfc": _erfc,
    "clamp": _clamp,
    "select_n": _select,
    "convert_element_type": _convert,
    "broadcast_in_dim": _broadcast_in_dim,
    "reshape": _reshape,
    "squeeze": _squeeze,
    "transpose": _transpose,
    "concatenate": _concatenate,
    "stack": _stack,
    "split": _split,
    "slice": _slice,
    "pad": _pad,
    "dim_as_value": _dimension,
    "iota": _iota,
    "dynamic_update_slice": _dynamic_update_slice,
    "gather": _gather,
    "dot_general": _dot_general,
}
"""The function that writes the equations of each primitive."""
