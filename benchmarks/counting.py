"""Matrix products and convolutions of a function, counted in its jaxpr.

XLA's cost analysis counts the body of a loop once, however often it runs. Here a loop counts as
often as it runs. The operations of `dot_general` and `conv_general_dilated` are counted, two for a
multiplication and an addition. Elementwise operations, as those of a softmax, are not.

The longest chain is the number of products of which each needs the result of the one before. It
follows from the dependencies and not from the order in which a program computes: iterations of a
loop count one after the other only as far as a product of one needs a product of an earlier one.

For each array a vector is kept: its element i is the most products on a path from source i to the
array, or -inf where there is no path. In the body of a loop each input is a source, and the last
source stands for arrays that need no input. The vectors of a body's outputs are a matrix that turns
the vectors before an iteration into those after it, by a product in which sums take the place of
products and maxima the place of sums. A power of this matrix stands for all iterations.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

_PRODUCTS = ("dot_general", "conv_general_dilated")
_CALLS = ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call")


class Counts(NamedTuple):
    """The counts of a function's matrix products and convolutions.

    Attributes:
      operations: the floating point operations of the products.
      num_bytes: the bytes of operands and results, summed over the products.
      chain: the most products of which each depends on the one before.
      has_loops: whether the function has a loop, whose body XLA's cost analysis counts once.
    """

    operations: int = 0
    num_bytes: int = 0
    chain: int = 0
    has_loops: bool = False


class _Value(NamedTuple):
    """The facts that are known of an array without running the function."""

    ways: np.ndarray
    """For each source, the most products on a path from it to the array; -inf without a path."""
    number: Any = None
    """The array itself, if it is one integer that does not depend on the function's arguments."""


def count(function: Callable[..., Any], *arguments: Any) -> Counts:
    """Count the products of a function.

    Args:
      function: a function of arrays.
      arguments: its arguments, or their shapes and dtypes.

    Raises:
      NotImplementedError: there are products in branches or the like, or there is a loop whose
        number of iterations depends on data.
    """
    closed = jax.make_jaxpr(function)(*arguments)
    start = np.zeros(1)
    outputs, total = _walk(closed, [_Value(start)] * len(closed.in_avals), start)
    return total._replace(chain=int(max((value.ways[0] for value in outputs), default=0)))


def _walk(
    closed: ClosedJaxpr, inputs: Sequence[_Value], start: np.ndarray
) -> tuple[list[_Value], Counts]:
    """Return the outputs of a jaxpr and its counts, without the chain.

    Args:
      closed: the jaxpr and its constants.
      inputs: the facts on its inputs.
      start: the `ways` of an array that needs no input.
    """
    jaxpr = closed.jaxpr
    constants = [_Value(start, _integer(constant)) for constant in closed.consts]
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *inputs], strict=True))

    def read(atom: Any) -> _Value:
        return _Value(start, _integer(atom.val)) if isinstance(atom, Literal) else values[atom]

    total = Counts()
    for equation in _needed(jaxpr):
        outputs, part = _of_equation(equation, [read(atom) for atom in equation.invars], start)
        values |= zip(equation.outvars, outputs, strict=True)
        total = _sum(total, part)
    return [read(atom) for atom in jaxpr.outvars], total


def _needed(jaxpr: Jaxpr) -> list[Any]:
    """Return the equations that an output depends on. JAX does not compile the others."""
    equations = []
    wanted = {atom for atom in jaxpr.outvars if not isinstance(atom, Literal)}
    for equation in reversed(jaxpr.eqns):
        if not wanted.isdisjoint(equation.outvars):
            equations.append(equation)
            wanted |= {atom for atom in equation.invars if not isinstance(atom, Literal)}
    return equations[::-1]


def _of_equation(
    equation: Any, inputs: Sequence[_Value], start: np.ndarray
) -> tuple[list[_Value], Counts]:
    """Return the outputs of an equation and its counts, without the chain."""
    name, params = equation.primitive.name, equation.params
    if name == "scan":
        return _of_scan(params, inputs, start)
    if name == "while":
        return _of_while(params, inputs, start)
    if name == "optimization_barrier":
        return [*inputs], Counts()
    inner = [x for x in jax.tree.leaves([*params.values()]) if isinstance(x, ClosedJaxpr | Jaxpr)]
    if name in _CALLS:
        return _walk(inner[0], inputs, start)
    if any(f"{product}[" in str(jaxpr) for jaxpr in inner for product in _PRODUCTS):
        raise NotImplementedError(f"there are products in a {name}, which is not counted")
    part = _of_product(equation) if name in _PRODUCTS else Counts()
    ways = _longest([start, *(value.ways for value in inputs)]) + (name in _PRODUCTS)
    return [_Value(ways, number) for number in _numbers(equation, inputs)], part


def _of_product(equation: Any) -> Counts:
    """Count one product, whose second operand is the kernel if it is a convolution."""
    (left, right), (out,) = (
        [atom.aval for atom in atoms] for atoms in (equation.invars, equation.outvars)
    )
    numbers = equation.params["dimension_numbers"]
    if equation.primitive.name == "dot_general":
        summed = math.prod(left.shape[axis] for axis in numbers[0][0])
    else:
        summed = right.size // right.shape[numbers.rhs_spec[0]]
    num_bytes = sum(x.size * x.dtype.itemsize for x in (left, right, out))
    return Counts(2 * out.size * summed, num_bytes)


def _of_scan(
    params: Any, inputs: Sequence[_Value], start: np.ndarray
) -> tuple[list[_Value], Counts]:
    consts, carries = params["num_consts"], params["num_carry"]
    # A slice of an array, or a carry, has another value in each iteration.
    known = [*inputs[:consts], *(_Value(value.ways) for value in inputs[consts:])]
    return _of_loop(params["jaxpr"], params["length"], (consts, carries), known, start)


def _of_while(
    params: Any, inputs: Sequence[_Value], start: np.ndarray
) -> tuple[list[_Value], Counts]:
    of_condition, of_body = params["cond_nconsts"], params["body_nconsts"]
    condition, carries = inputs[:of_condition], inputs[of_condition + of_body :]
    iterations = _iterations(params, [*condition, *carries])
    known = [*inputs[of_condition : of_condition + of_body]]
    known += [_Value(value.ways) for value in carries]
    sizes = of_body, len(carries)
    return _of_loop(params["body_jaxpr"], iterations, sizes, known, start)


def _iterations(params: Any, inputs: Sequence[_Value]) -> int:
    """Return the number of iterations of a `fori_loop`, whose condition has these inputs.

    Raises:
      NotImplementedError: the loop is of another form, or its bounds depend on data.
    """
    condition, body = params["cond_jaxpr"].jaxpr, params["body_jaxpr"].jaxpr
    if [equation.primitive.name for equation in condition.eqns] == ["lt"]:
        numbers = dict(zip(condition.invars, (value.number for value in inputs), strict=True))
        counter, bound = condition.eqns[0].invars
        at = condition.invars.index(counter) - params["cond_nconsts"]
        first = numbers[counter]
        last = bound.val if isinstance(bound, Literal) else numbers[bound]
        if first is not None and last is not None and _adds_one(body, at):
            return max(0, int(last) - int(first))
    raise NotImplementedError("a loop's number of iterations cannot be told before it runs")


def _adds_one(body: Any, carry: int) -> bool:
    """Return whether the body of a loop adds one to a carry."""
    before = body.invars[len(body.invars) - len(body.outvars) + carry]
    for equation in body.eqns:
        if equation.primitive.name == "add" and body.outvars[carry] in equation.outvars:
            left, right = equation.invars
            return left is before and isinstance(right, Literal) and right.val == 1
    return False


def _of_loop(
    body: ClosedJaxpr,
    iterations: int,
    sizes: tuple[int, int],
    inputs: Sequence[_Value],
    start: np.ndarray,
) -> tuple[list[_Value], Counts]:
    """Return the outputs of a loop and its counts, without the chain.

    Args:
      body: inputs are constants, carries and slices of arrays; outputs are carries and slices.
      iterations: how often the body runs.
      sizes: the numbers of constants and of carries.
      inputs: the facts on constants, carries and the arrays that are sliced.
      start: the `ways` of an array that needs no input.
    """
    constants, carries = sizes
    sources = _unit(len(inputs) + 1)
    known = [_Value(ways, value.number) for ways, value in zip(sources, inputs, strict=False)]
    outputs, once = _walk(body, known, sources[-1])
    # An iteration turns the vectors of inputs, of the start and of stacked slices into those after
    # it: carries are new, stacked slices are as far as the furthest of them, the others stay.
    stacked = len(outputs) - carries
    step = _unit(len(sources) + stacked)
    for at, output in enumerate(outputs):
        row = constants + at if at < carries else len(sources) + at - carries
        if at < carries:
            step[row] = -np.inf
        step[row, : len(sources)] = output.ways
    nowhere = np.full_like(start, -np.inf)
    before = np.stack([*(value.ways for value in inputs), start, *[nowhere] * stacked])
    after = _after(step, iterations, before)
    results = [*after[constants : constants + carries], *after[len(sources) :]]
    return [_Value(ways) for ways in results], Counts(
        iterations * once.operations, iterations * once.num_bytes, has_loops=True
    )


def _after(step: np.ndarray, iterations: int, ways: np.ndarray) -> np.ndarray:
    """Return the vectors after some iterations, each of which is a product with the same matrix."""
    while iterations:
        if iterations % 2:
            ways = _max_plus(step, ways)
        step, iterations = _max_plus(step, step), iterations // 2
    return ways


def _max_plus(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Multiply two matrices, with maxima in place of sums and sums in place of products."""
    return (a[:, :, None] + b).max(1)


def _unit(size: int) -> np.ndarray:
    """Return the identity matrix of `_max_plus`."""
    return np.where(np.eye(size, dtype=bool), 0.0, -np.inf)


def _longest(ways: Iterable[np.ndarray]) -> np.ndarray:
    return np.max([*ways], axis=0)


def _sum(a: Counts, b: Counts) -> Counts:
    operations, num_bytes = a.operations + b.operations, a.num_bytes + b.num_bytes
    return Counts(operations, num_bytes, has_loops=a.has_loops or b.has_loops)


def _numbers(equation: Any, inputs: Sequence[_Value]) -> list[Any]:
    """Compute an equation's results if they and all inputs are single integers; else None."""
    results = [atom.aval for atom in equation.outvars]
    are_known = inputs and all(value.number is not None for value in inputs)
    if not are_known or any(not _is_integer(result) for result in results):
        return [None] * len(results)
    computed = equation.primitive.bind(*(value.number for value in inputs), **equation.params)
    return [*computed] if equation.primitive.multiple_results else [computed]


def _integer(constant: Any) -> Any:
    """Return a constant if it is a single integer, else None."""
    return constant if isinstance(constant, int) or _is_integer(constant) else None


def _is_integer(array: Any) -> bool:
    is_single = getattr(array, "shape", None) == ()
    return is_single and jnp.issubdtype(array.dtype, jnp.integer)
