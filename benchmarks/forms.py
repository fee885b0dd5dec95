"""The products that `benchmarks/products.py` measures, and the forms in which it computes them.

Equations are those of `einsum`. Their axes are rows r, d_model i, d_ff o and vocabulary v; and in
attention sequences b, queries q, keys k, heads h, d_k d and d_v e.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any, NamedTuple

from workload import jax

from t2t_jax.functional.attention import masked_softmax, scaled
from t2t_jax.kernels.bfloat16 import transpose
from t2t_jax.kernels.int8 import int8_product
from t2t_jax.kernels.products import Transposed
from t2t_jax.kernels.reference import Kernels

OURS = "t2t_jax"
"""The form that t2t_jax computes a product in."""

_FORMS = ("plain", "float32 result", "in float32")
"""The forms in which every product of floating-point operands is measured."""

# Each product, with the forms that it has besides: the number of an operand to transpose in blocks,
# or another equation.
_LINEAR = {
    "x W": ("ri,io->ro", {}),
    "gradient of x": ("ro,io->ri", {"W transposed in blocks": 1, "W^T given": "ro,oi->ri"}),
    "gradient of W": (
        "ri,ro->io",
        {"x transposed in blocks": 0, "g transposed in blocks": 1, "x^T given": "ir,ro->io"},
    ),
}
_LOGITS = {
    "logits": ("ri,vi->rv", {"table transposed in blocks": 1}),
    "logits: gradient of x": ("rv,vi->ri", {"table transposed in blocks": 1}),
    "logits: gradient of table": (
        "rv,ri->vi",
        {"g transposed in blocks": 0, "x transposed in blocks": 1},
    ),
}
_DECODING = {
    "x W": ("ri,io->ro", {"W by rows": "ri,oi->ro"}),
    "logits": ("ri,vi->rv", {"table by columns": "ri,iv->rv"}),
}
_SCORES, _VALUES = "bqhd,bkhd->bhqk", "bhqk,bkhe->bqhe"
_ATTENTION = {"attention: scores": (_SCORES, {}), "attention: values": (_VALUES, {})}
_FLOAT32_RESULTS = ("ri,vi->rv", _SCORES)
"""The products whose results are not rounded."""

_INT8 = {
    "x W": {"W by columns": "ri,io", "W by rows": "ri,oi"},
    "logits": {"table by columns": "ri,iv", "table by rows": "ri,vi"},
}


class Form(NamedTuple):
    """A way to compute a product."""

    operands: str
    """The axes of the operands, as in an equation."""
    compute: Callable[..., Any]


class Product(NamedTuple):
    """A product, and the forms in which it is measured."""

    name: str
    equations: Sequence[str]
    """The equations whose multiply-adds are counted."""
    forms: Mapping[str, Form]

    @property
    def is_layers(self) -> bool:
        """Return whether every layer has such a product, unlike the one table of the vocabulary."""
        return not any("v" in equation for equation in self.equations)


def products(dtype: str, is_training: bool, kernels: Kernels) -> Iterator[Product]:
    """Yield the products of operands in a dtype, with the rows of training or those of a search.

    Args:
      dtype: the dtype of the operands; "int8" is the dtype of the matrices only.
      is_training: whether the rows are those of training.
      kernels: the functions that t2t_jax chooses, from `kernels_of`.
    """
    if dtype == "int8":
        yield from _int8_products(kernels)
    elif is_training:
        yield from _all(_LINEAR, _with_gradients(kernels.linear, "ri,io,ro"))
        yield from _all(_LOGITS, _with_gradients(kernels.logits, "ri,vi,rv"))
        yield from _all(_ATTENTION)
        yield from _whole_attention(kernels)
    else:
        kernel = Form("ri,oi", lambda x, w: kernels.linear(x[None], Transposed(w)))
        table = Form("ri,vi", lambda x, w: kernels.next_logits(x[None], w))
        yield from _all(_DECODING, (kernel, table))


def _all(table: Mapping[str, tuple], ours: Sequence[Form] = ()) -> Iterator[Product]:
    """Yield all products of a table, with the forms that t2t_jax chooses if they are given."""
    for (name, (equation, others)), chosen in zip_longest(table.items(), ours):
        forms = {kind: _form(equation, kind) for kind in _FORMS}
        for label, other in others.items():
            is_operand = isinstance(other, int)
            forms[label] = _in_blocks(equation, other) if is_operand else _form(equation, other)
        yield Product(name, (equation,), forms | ({OURS: chosen} if chosen else {}))


def _form(equation: str, kind: str) -> Form:
    """Return a product in one of `_FORMS`, or by another equation with a float32 result."""
    given = equation if kind in _FORMS else kind

    def compute(a: Any, b: Any) -> Any:
        if kind == "plain":
            return jax.numpy.einsum(equation, a, b)
        wide = (a.astype("float32"), b.astype("float32")) if kind == "in float32" else (a, b)
        return _rounded(equation, _float32(given, *wide), a)

    return Form(given.partition("->")[0], compute)


def _float32(equation: str, a: Any, b: Any) -> Any:
    return jax.numpy.einsum(equation, a, b, preferred_element_type="float32")


def _rounded(equation: str, result: Any, operand: Any) -> Any:
    return result if equation in _FLOAT32_RESULTS else result.astype(operand.dtype)


def _in_blocks(equation: str, number: int) -> Form:
    """Return a product with an operand transposed in blocks, and the result too if it has to be."""
    operands, _, result = equation.partition("->")
    axes = operands.split(",")
    axes[number] = axes[number][::-1]
    (summed,) = {*axes[0]} & {*axes[1]}
    # The axes of the result, in the order in which the product of these operands runs.
    natural = "".join(sorted(axes, key=lambda pair: pair.startswith(summed))).replace(summed, "")
    changed = f"{','.join(axes)}->{natural}"

    def compute(*pair: Any) -> Any:
        a, b = (transpose(x) if place == number else x for place, x in enumerate(pair))
        product = _rounded(equation, _float32(changed, a, b), a)
        return product if natural == result else transpose(jax.lax.optimization_barrier(product))

    return Form(operands, compute)


def _with_gradients(function: Callable[..., Any], axes: str) -> tuple[Form, ...]:
    """Return a function of x and a matrix, and its gradients by both, given its result's."""

    def gradient(number: int, x: Any, matrix: Any, cotangent: Any) -> Any:
        value, pull_back = jax.vjp(function, x[None], matrix)
        return pull_back(cotangent[None].astype(value.dtype))[number]

    forward = Form(axes[: axes.rindex(",")], lambda x, matrix: function(x[None], matrix))
    return forward, *(Form(axes, partial(gradient, number)) for number in (0, 1))


def _whole_attention(kernels: Kernels) -> Iterator[Product]:
    """Yield attention with its softmax, and the same with its gradients."""

    def mask(key: Any) -> Any:
        return jax.numpy.ones((key.shape[0], 1, 1, key.shape[1]), bool)

    def of_kind(kind: str, query: Any, key: Any, value: Any) -> Any:
        scores = _form(_SCORES, kind).compute(scaled(query), key)
        weights = masked_softmax(scores.astype("float32"), mask(key))
        return _form(_VALUES, kind).compute(weights.astype(value.dtype), value)

    def ours(query: Any, key: Any, value: Any) -> Any:
        return kernels.attention(query, key, value, mask(key))[0]

    def gradients(function: Callable[..., Any], *operands: Any) -> Any:
        value, pull_back = jax.vjp(function, *operands[:-1])
        return value, pull_back(operands[-1])

    functions = {kind: partial(of_kind, kind) for kind in _FORMS} | {OURS: ours}
    axes, both = "bqhd,bkhd,bkhe", (_SCORES, _VALUES)
    forms = {name: Form(axes, function) for name, function in functions.items()}
    yield Product("attention", both, forms)
    forms = {
        name: Form(f"{axes},bqhe", partial(gradients, function))
        for name, function in functions.items()
    }
    yield Product("attention and gradients", 3 * both, forms)  # a gradient of every operand


def _int8_products(kernels: Kernels) -> Iterator[Product]:
    """Yield the products with matrices in 8 bits."""

    def product(axis: int, x: Any, matrix: Any) -> Any:
        return int8_product(x[None], matrix, axis)

    ours = {"x W": ("ri,io", kernels.linear), "logits": ("ri,vi", kernels.next_logits)}
    for name, orders in _INT8.items():
        forms = {
            order: Form(operands, partial(product, operands.split(",")[1].index("i")))
            for order, operands in orders.items()
        }
        operands, function = ours[name]
        chosen = Form(operands, lambda x, matrix, call=function: call(x[None], matrix))
        yield Product(name, (operands,), forms | {OURS: chosen})
