"""Graphs of ONNX under construction, made of functions of JAX by their jaxprs.

`graph_of` traces a function and writes an operator of ONNX for every equation of its jaxpr. So a
graph computes what the function does, whatever the config of the model, and no equation of the
paper stands here a second time. Equations whose operands are all known, such as the transposition
of a parameter, are computed at once.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import jax
import numpy as np
import onnx
from jax.extend.core import Literal
from onnx import helper, numpy_helper

from t2t_jax.errors import UserError
from t2t_jax.version import __version__

OPSET = 18
"""The version of the set of operators, which onnxruntime has had since 1.14."""


class Tensor(NamedTuple):
    """An array that a graph computes."""

    name: str
    """The name of the array in the graph."""
    shape: tuple[Any, ...]
    """Its shape. The shape that JAX gives the array may have more where this one has a 1:
    operators broadcast, so that the array itself is repeated only where one needs it whole."""


Value: TypeAlias = Tensor | np.ndarray
"""An array in a graph, or one whose numbers are known."""

Operation: TypeAlias = Callable[..., Value | Sequence[Value]]
"""A function of a graph, an equation and its operands, which writes operators for the equation."""


class Graph:
    """The operators, the constants and the inputs of a graph so far."""

    def __init__(self) -> None:
        """Begin without operators."""
        self.nodes: list[Any] = []
        self.inputs: list[Any] = []
        self._constants: dict[tuple[Any, ...], Any] = {}
        self._sizes: dict[Any, str] = {}
        self._sources: list[tuple[Any, str, int]] = []

    def add_input(self, name: str, aval: Any) -> Tensor:
        """Add an input with the shape and the dtype of an abstract value of JAX."""
        self.inputs.append(_described(name, aval))
        self._sources += [(size, name, axis) for axis, size in enumerate(aval.shape)]
        return Tensor(name, tuple(aval.shape))

    def node(self, operator: str, *operands: str, **attributes: Any) -> str:
        """Add an operator with one result, and return the name of the result."""
        return self.nodes_of(operator, 1, *operands, **attributes)[0]

    def nodes_of(self, operator: str, count: int, *operands: str, **attributes: Any) -> list[str]:
        """Add an operator with several results, and return their names."""
        results = [f"{operator}_{len(self.nodes)}_{number}" for number in range(count)]
        self.nodes.append(helper.make_node(operator, operands, results, **attributes))
        return results

    def constant(self, array: Any) -> str:
        """Return the name of a constant; equal constants are one."""
        array = np.asarray(array, order="C")
        key = array.dtype.str, array.shape, array.tobytes()
        if key not in self._constants:
            name = f"constant_{len(self._constants)}"
            self._constants[key] = numpy_helper.from_array(array, name)
        return str(self._constants[key].name)

    def integers(self, *numbers: int) -> str:
        """Return the name of a constant vector of whole numbers, as axes are given."""
        return self.constant(np.array(numbers, np.int64))

    def tensor(self, value: Value) -> Tensor:
        """Return a value as an array in the graph."""
        if isinstance(value, Tensor):
            return value
        return Tensor(self.constant(value), np.shape(value))

    def whole(self, value: Value, shape: Sequence[Any]) -> str:
        """Return the name of an array that has all of the shape that JAX gives it."""
        name, held = self.tensor(value)
        if held == tuple(shape):
            return name
        return self.node("Expand", name, self.shape(shape))

    def shape(self, sizes: Sequence[Any]) -> str:
        """Return the name of a vector with the sizes of an array, some of which are symbols."""
        if all(isinstance(size, int) for size in sizes):
            return self.integers(*sizes)
        return self.node("Concat", *map(self.size, sizes), axis=0)

    def size(self, size: Any) -> str:
        """Return the name of a vector of one element, the size of an axis."""
        if isinstance(size, int):
            return self.integers(size)
        if size not in self._sizes:
            self._sizes[size] = self._computed_size(size)
        return self._sizes[size]

    def _computed_size(self, size: Any) -> str:
        for known, name, axis in self._sources:
            more = size - known
            if isinstance(more, int) and not isinstance(known, int):
                found = self.node("Shape", name, start=axis, end=axis + 1)
                return self.node("Add", found, self.integers(more)) if more else found
        raise UserError(f"a model with an axis of {size} elements is not written as onnx")

    def model(self, outputs: Mapping[str, tuple[Value, Any]]) -> Any:
        """Return the finished model, an `onnx.ModelProto`.

        Args:
          outputs: the value of each output and its abstract value in JAX, by name.
        """
        for name, (value, aval) in outputs.items():
            self.nodes.append(helper.make_node("Identity", [self.whole(value, aval.shape)], [name]))
        graph = helper.make_graph(
            self.nodes,
            "t2t_jax",
            self.inputs,
            [_described(name, aval) for name, (_, aval) in outputs.items()],
            [*self._constants.values()],
        )
        imports = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(
            graph, opset_imports=imports, producer_name="t2t_jax", producer_version=__version__
        )
        model.ir_version = helper.find_min_ir_version_for(imports)
        onnx.checker.check_model(model)
        return model


def _described(name: str, aval: Any) -> Any:
    sizes = [size if isinstance(size, int) else str(size) for size in aval.shape]
    return helper.make_tensor_value_info(name, element_type(aval.dtype), sizes)


def element_type(dtype: Any) -> int:
    """Return the number by which ONNX names a dtype."""
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def graph_of(
    function: Callable[..., Any],
    inputs: Mapping[str, jax.ShapeDtypeStruct],
    outputs: Sequence[str],
    operations: Mapping[str, Operation],
) -> Any:
    """Return the model of ONNX that computes a function of JAX.

    Args:
      function: the function, of arrays that are named as `inputs` are; it returns a list of arrays.
      inputs: shapes and dtypes of the arguments, by name.
      outputs: the names of the results.
      operations: the functions that write an equation, by the name of its primitive.

    Raises:
      UserError: the function has an equation that is not among the operations.
    """
    names = [*inputs]
    traced = jax.make_jaxpr(lambda *xs: function(**dict(zip(names, xs, strict=True))))
    closed, graph = traced(*inputs.values()), Graph()
    arguments = [
        graph.add_input(name, aval) for name, aval in zip(names, closed.in_avals, strict=True)
    ]
    values = _written(graph, closed, arguments, operations)
    results = zip(values, closed.out_avals, strict=True)
    return graph.model(dict(zip(outputs, results, strict=True)))


def _written(
    graph: Graph, closed: Any, arguments: Sequence[Value], operations: Mapping[str, Operation]
) -> list[Value]:
    """Write the equations of a jaxpr, and return its results."""
    jaxpr = closed.jaxpr
    values: dict[Any, Value] = dict(
        zip(jaxpr.constvars, map(np.asarray, closed.consts), strict=True)
    )
    values |= dict(zip(jaxpr.invars, arguments, strict=True))

    def read(variable: Any) -> Value:
        if isinstance(variable, Literal):
            return np.asarray(variable.val, cast(Any, variable.aval).dtype)
        return values[variable]

    for equation in jaxpr.eqns:
        operands = [*map(read, equation.invars)]
        results = _of_equation(graph, equation, operands, operations)
        values |= dict(zip(equation.outvars, results, strict=True))
    return [*map(read, jaxpr.outvars)]


_CALLS = "jaxpr", "call_jaxpr", "fun_jaxpr"
"""The parameters of an equation that hold the jaxpr of the function that it calls."""


def _of_equation(
    graph: Graph, equation: Any, operands: list[Value], operations: Mapping[str, Operation]
) -> Sequence[Value]:
    name = equation.primitive.name
    if name == "scan":
        return _scanned(graph, equation.params, operands, operations)
    for key in _CALLS:
        if key in equation.params:
            return _written(graph, equation.params[key], operands, operations)
    sizes = (size for variable in equation.outvars for size in variable.aval.shape)
    is_known = operands and not any(isinstance(value, Tensor) for value in operands)
    if is_known and all(isinstance(size, int) for size in sizes):
        results = equation.primitive.bind(*operands, **equation.params)
        return [*map(np.asarray, results if equation.primitive.multiple_results else [results])]
    if name not in operations:
        raise UserError(
            f"onnx cannot have this model, which computes {name}; export it --to safetensors"
        )
    written: Any = operations[name](graph, equation, *operands)
    return written if isinstance(written, list) else [written]  # a Tensor is a tuple


def _scanned(
    graph: Graph, params: Any, operands: list[Value], operations: Mapping[str, Operation]
) -> Sequence[Value]:
    """Write a loop over the layers of a stack, whose parameters are known, layer by layer."""
    fixed, kept = params["num_consts"], params["num_consts"] + params["num_carry"]
    constants, carried, stacked = operands[:fixed], operands[fixed:kept], operands[kept:]
    assert len(params["jaxpr"].out_avals) == len(carried)
    for number in range(params["length"]):
        of_layer = [np.asarray(array)[number] for array in stacked]
        carried = _written(graph, params["jaxpr"], [*constants, *carried, *of_layer], operations)
    return carried
