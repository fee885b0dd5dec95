"""Kernels against the plain formulas of `t2t_jax.functional`, in values and derivatives.

A case is about one kernel. The formula is computed in float64, again with inputs that differ by a
rounding, and in the dtype of the case.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tests.against.part import OURS, Case, Difference, Part, drawn, simplest_case

ROUNDINGS, LAYER_ROUNDINGS = 4.0, 32.0
"""Most roundings of its inputs that the error of a kernel may be worth, as it rounds weights and
sums too; and that of two layers, of some 30 products, sums and norms in both directions. Some rows
of their derivatives cancel, so that what counts is the most that a rounding changes in an array."""
RESULT_ROUNDINGS = 2.0
"""Most roundings of a result by itself."""
PLAIN_ERRORS = 2.0
"""Most errors of the plain formula in the same dtype, where numbers overflow or cancel."""
LEAST = 1e-34
"""An error that needs no reason: below 1e-38, numbers and their products are 0 in float32."""
EPSILON = {"float32": 2.0**-23, "bfloat16": 2.0**-7}
"""The distance of 1 to the next number."""
NUM_DRAWS = 8
"""How often the formula is computed with other roundings. All numbers of a vector may depend on one
rounding, as of a score: of three draws, all are below a quarter of it too often."""

RESULT = "the derivative of attention uses the rounded result"
LOGITS = "logits are rounded to bfloat16"
SUMS = "the variance is a difference of two sums"

_NUMBERS = 1, 2, 3, 5, 8, 13, 16, 17, 33
FIELDS: dict[str, Any] = {
    "dtype": ("float32", "bfloat16"),
    "power": (1, 0, 5),
    "decimals": (9, 0),
    "shift": (0.0, 100.1),
    "factor": (1.0, 1e-20, 30.0, 1e6),
    "batch": (1, 2, 3),
    **dict.fromkeys(("length", "keys"), _NUMBERS),
    "heads": (1, 2, 4),
    "groups": (1, 2),
    "width": (8, 1, 3, 16, 40),
    "width_out": (0, 1, 5, 16, 24),
    "vocab": (12, 1, 2, 15, 16, 17, 63, 64, 65, 129, 300),
    "mask": ("self", "causal", "cross", "whole", "of_heads"),
    "window": (0, 1, 2, 3, 5, 12, 50),
    "score": ("products", "biased", "additive"),
    "use": ("",),
    "rate": (0.0, 0.1, 0.7),
    "epsilon": (1e-6, 1e-12, 1e-3, 10.0),
    "remat": ("none", "dots", "full"),
}
"""The values of each field, the simplest first. Arrays are powers of normal numbers, rounded, and
shifted, times a factor: the power 0 makes them equal, and 5 far from others. A `width_out` of 0 is
the width, and a rate is also that of label smoothing."""


class Kernel(NamedTuple):
    """What a kernel computes, and of which inputs.

    Attributes:
      formula: the name of its function in `functions`.
      takes: the values of fields that the kernel takes; others have those of `FIELDS`.
      documented: the kind of difference that a rounding of its own makes.
    """

    formula: str
    takes: Mapping[str, Sequence[Any]] = FIELDS
    documented: str = ""


_PLAIN = {"score": ("products",), "rate": (0.0,)}
_EVEN = dict.fromkeys(("length", "keys"), (2, 8, 16, 34, 64))
# See `kernels.attention.is_fused`.
_FUSED = _PLAIN | _EVEN | {"dtype": ("bfloat16",), "width": (16, 32, 64), "width_out": (0,)}
_SHORT = _FUSED | {"heads": (2,), "groups": (2,), "mask": ("self", "causal", "cross", "whole")}
_LONG = {"mask": ("self", "causal", "cross"), "score": ("products",)}
_NEAR = {"power": (1, 0), "shift": (0.0,), "factor": (1.0, 1e-20)}
# Splash adds greatest scores and the logarithms of sums, so that weights in its derivative have the
# error of a rounding of the score. Of equal keys with large scores, roundings of inputs have less.
_SPLASH = _LONG | _PLAIN | _NEAR | {"window": (0,)}
# GPUs add up parts of a row. CPUs add up the logits in their order: the sum of 300 equal ones has
# the error of 60 roundings.
_NOT_EQUAL = {"power": (1, 5), "shift": (0.0,)}
_BFLOAT16 = {"dtype": ("bfloat16",)}
_FEW = {"mask": ("whole",), "keys": (8, 17, 33), "length": (1, 2, 4), "rate": (0.0,)}
_CACHED = _FEW | {"use": ("turned", "in_parts")}
# In attention, float64 is not exact. In products, large terms overflow in one order, and not in
# another.
_LARGE = {"factor": (1.0, 1e-20, 30.0, 1e6, 1e18, 1e37)}
# The derivative of a norm is orthogonal to the vector and to 1. Of three numbers, little but
# roundings may be left.
_NORM = {"width": (8, 1, 16, 40)}
_PRODUCTS = {"use": ("linear", "bias", "rows", "transposed", "logits", "next_logits")}
_ACTIVATIONS = _LARGE | {"use": ("relu", "gelu", "silu")}
_NORMAL = {"power": (1,), "decimals": (9,), "shift": (0.0,), "factor": (1.0,)}
_LAYERS = _NORMAL | {"use": ("post", "pre", "deep"), "width": (8, 16)}
_UPDATES = {"use": ("adam", "lion"), "dtype": ("float32",)}
_GREATEST = {"dtype": ("float32",), "rate": (0.0, 0.7, 1.0)}

_TABLE = {
    "attention of REFERENCE, attention of CPU, attention of TPU": Kernel("attention"),
    "attention of CPU_BFLOAT16": Kernel("attention", _BFLOAT16),
    "attention of CUDNN_GPU": Kernel("attention", _FUSED, RESULT),
    "attention of CUDNN_GPU by XLA": Kernel("attention", _FUSED),
    "short_rows of CUDNN_GPU": Kernel("attention", _SHORT),
    "long_rows of CPU": Kernel("attention", _LONG, RESULT),
    "long_rows of TPU": Kernel("attention", _SPLASH, RESULT),
    "cached of CPU": Kernel("cached", _CACHED),
    "cached of CPU_BFLOAT16": Kernel("cached", _CACHED | _BFLOAT16),
    "cached of CUDNN_GPU": Kernel("cached", _FEW | {"use": ("stacked",), "length": (1,)}),
    "cached of CUDNN_GPU_FEW_QUERIES": Kernel("cached", _FUSED | _FEW | {"use": ("cudnn",)}),
    "cached of CUDNN_GPU_FEW_QUERIES by XLA": Kernel("cached", _FUSED | _FEW | {"use": ("xla",)}),
    "products of CPU, products of GPU, products of TPU": Kernel("products", _PRODUCTS),
    "products of CPU_BFLOAT16": Kernel("products", _PRODUCTS | _BFLOAT16),
    "layers of CPU, layers of GPU, layers of TPU": Kernel("layers", _LAYERS),
    "losses of REFERENCE, losses of CPU": Kernel("losses"),
    "losses of GPU": Kernel("losses", _NOT_EQUAL),
    "losses of CPU_BFLOAT16": Kernel("losses", _BFLOAT16),
    # It adds the logit of the target to a logarithm. A rounding of a logit of 1e8 is 8 there.
    "losses of TPU": Kernel("losses", {"factor": (1.0, 1e-20, 30.0)}),
    "losses of GPU in training": Kernel("losses", _NEAR | {"power": (1,)}, LOGITS),
    "layer_norm of CPU, layer_norm of GPU": Kernel("layer_norm", _LARGE | _NORM),
    "layer_norm of TPU_BFLOAT16": Kernel("layer_norm", _BFLOAT16 | _NORM, SUMS),
    "activation of CPU, activation of GPU": Kernel("activation", _ACTIVATIONS),
    "dropout of CPU, dropout of GPU": Kernel("dropout", _LARGE),
    "updates of CPU, updates of GPU": Kernel("updates", _UPDATES),
    "greatest of CPU, greatest of GPU": Kernel("greatest", _GREATEST),
}
KERNELS = {name: kernel for names, kernel in _TABLE.items() for name in names.split(", ")}
"""The kernels, by what they compute and the preset in `kernels.choice` that they are from."""
OF_GPUS = "attention of CUDNN_GPU", "cached of CUDNN_GPU_FEW_QUERIES"


def generate(rng: np.random.Generator, index: int) -> Case:
    """Return a case of one kernel."""
    name = [*KERNELS][index % len(KERNELS)]
    fields = {**FIELDS, **KERNELS[name].takes}
    while True:
        case = {"kernel": name, "seed": int(rng.integers(1 << 30)), **drawn(rng, fields)}
        if is_valid(case):
            return case


def is_valid(case: Case) -> bool:
    """Return whether a kernel takes a case, and promises a result."""
    window, mask, takes = case["window"], case["mask"], KERNELS[case["kernel"]].takes
    # Queries and keys of windows have the same places. Windows drop other weights than whole masks.
    has_window = window == 0 or (mask in ("self", "causal") and not case["rate"])
    is_taken = all(case[name] in values for name, values in takes.items())
    has_groups = case["heads"] % case["groups"] == 0
    is_summed = case["use"] != "in_parts" or case["factor"] <= 30  # as in splash
    return has_window and is_taken and has_groups and is_summed and _is_stable(case)


def _is_stable(case: Case) -> bool:
    """Return whether roundings of inputs change the weights of attention by a share only.

    Equal keys, as those rounded near a shift, have equal weights. If their scores are large, a
    rounding leaves weight to one key only: derivatives are 0 then, and bound no roundings of those
    of the equal keys. The derivative by the vector of additive scores adds up to 0 where all
    tangents are 1, in any rounding.
    """
    formula, shift = KERNELS[case["kernel"]].formula, 1 + case["shift"]
    if formula not in ("attention", "cached", "losses"):
        return True
    if formula == "losses" and case["vocab"] == 1:  # derivatives are differences of equal numbers
        return False
    size = case["factor"] * shift
    has_equal_keys = 0 in (case["power"], case["decimals"]) or shift > 1
    rounding = EPSILON[case["dtype"]] * size**2 * case["width"] ** 0.5
    if formula == "losses":  # that of the logarithm of a sum, whose terms are equal
        rounding = EPSILON["float32"] * 0.3 * size * shift * case["width"]
    is_saturated = case["score"] == "additive" and (size > 1 or case["power"] > 1)
    return not (has_equal_keys and rounding > 1) and not is_saturated


def compare(case: Case, name: str, answers: Sequence[Any]) -> Difference | None:
    """Return a difference that the dtype does not explain, as the constants above have it."""
    kernel, ((ours, draws, plain),), explained = KERNELS[name], answers, None
    roundings, axis = (LAYER_ROUNDINGS, None) if kernel.formula == "layers" else (ROUNDINGS, -1)
    for key, found in ours.items():
        right, formula, others = draws[0][key], plain[key], [draw[key] for draw in draws]
        with np.errstate(all="ignore"):
            near = roundings * _spread(right, others[1::3], axis) + PLAIN_ERRORS * abs(
                formula - right
            )
            near += RESULT_ROUNDINGS * EPSILON[case["dtype"]] * abs(right) + LEAST
            near *= found.dtype.kind != "i"  # an index is right or wrong
            matters, error = (found != right) & np.isfinite(formula), abs(found - right)
            if kernel.documented and (matters & ~(error <= near)).any():
                explained = Difference(kernel.documented, key)
                near += roundings * _spread(right, others[2::3], axis)
            is_wrong = matters & ~(error <= near)
        if is_wrong.any():
            numbers = [f"{x[is_wrong][0]:.9g}" for x in (found, right, formula, near)]
            detail = "{} and {} in float64, {} plain; explained: {}".format(*numbers)
            return Difference(f"numbers in {key}", detail)
    return explained


def _spread(right: Any, others: Sequence[Any], axis: int | None) -> Any:
    """Return how far results are from the right one: the most in each vector, or in all."""
    apart = [np.where(one == right, 0, abs(one - right)) for one in others]  # infinite ones too
    return np.max(apart, axis=0).max(axis, keepdims=True)


PART = Part(
    programs={OURS: f"{__package__}.functions"},
    generate=generate,
    routes=lambda case: {case["kernel"]: [(OURS, "compute")]},
    compare=compare,
    simplest={"kernel": "attention of CPU", "seed": 0, **simplest_case(FIELDS)},
    documented={kind: kind for kind in (RESULT, LOGITS, SUMS)},
    is_valid=is_valid,
    may_not_run=OF_GPUS,
    niceness=2,
)
