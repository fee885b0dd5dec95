"""Kernels against the plain formulas of `t2t_jax.functional`, in values and derivatives.

A case is about one kernel. `ours` computes it, and `plain` the formula: in float64, again with
inputs that differ by a rounding, and in the dtype of the case.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.against.part import OURS, Case, Difference, Part, Step

ROUNDINGS, LAYER_ROUNDINGS = 4.0, 128.0
"""Most roundings of its inputs that the error of a kernel may be worth, as it rounds weights and
sums too; and that of two layers, of some 30 products, sums and norms in both directions."""
RESULT_ROUNDINGS = 2.0
"""Most roundings of a result by itself."""
PLAIN_ERRORS = 2.0
"""Most errors of the plain formula in the same dtype, where numbers overflow or cancel."""
LEAST = 1e-34
"""An error that needs no reason: below 1e-38, numbers and their products are 0 in float32."""
EPSILON = {"float32": 2.0**-23, "bfloat16": 2.0**-7}
"""The distance of 1 to the next number."""

RESULT = "the derivative of attention uses the rounded result"
LOGITS = "logits are rounded to bfloat16"
SUMS = "the variance is a difference of two sums"

_NUMBERS = 1, 2, 3, 5, 8, 13, 16, 17, 33
FIELDS: dict[str, Sequence[Any]] = {
    "dtype": ("float32", "bfloat16"),
    "values": ("normal", "equal", "rows", "integers", "outliers", "far"),
    "factor": (1.0, 1e-20, 30.0, 1e6),
    "batch": (1, 2, 3),
    "length": _NUMBERS,
    "keys": _NUMBERS,
    "heads": (1, 2, 4),
    "groups": (1, 2),
    "width": (8, 1, 3, 16, 40),
    "width_out": (8, 1, 5, 16, 24),
    "vocab": (12, 1, 2, 15, 16, 17, 63, 64, 65, 129, 300),
    "mask": ("self", "causal", "cross", "whole", "of_heads"),
    "window": (0, 1, 2, 3, 5, 12, 50),
    "score": ("products", "biased", "additive"),
    "use": ("",),
    "rate": (0.0, 0.1, 0.7),
    "epsilon": (1e-6, 1e-12, 1e-3, 10.0),
    "remat": ("none", "dots", "full"),
}
"""The values of each field, the simplest first. A rate is also that of label smoothing."""


@dataclass(frozen=True)
class Kernel:
    """A row of the table, by the name of the choices in `kernels.choice.Kernels`.

    Attributes:
      formula: the function of `ours`, and of `plain`, that computes it.
      takes: the values of fields that the kernel takes, where they are not those of `FIELDS`.
      precision: the dtype of its sums; None is the dtype of the case.
      documented: the kind of difference that a rounding of its own makes.
      roundings: most roundings of its inputs that its error may be worth.
    """

    formula: str
    takes: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    precision: str | None = None
    documented: str = ""
    roundings: float = ROUNDINGS


_EVEN = 2, 8, 16, 34, 64
_FUSED = {  # see `kernels.attention.is_fused`; a width_out of 0 is the width
    "dtype": ("bfloat16",),
    "length": _EVEN,
    "keys": _EVEN,
    "width": (16, 32, 64),
    "width_out": (0,),
    "score": ("products",),
    "rate": (0.0,),
}
_SHORT = _FUSED | {"heads": (2,), "groups": (2,), "mask": ("self", "causal", "cross", "whole")}
_LONG = {"mask": ("self", "causal", "cross"), "score": ("products",)}
_NEAR = {"values": ("normal", "equal", "rows", "integers"), "factor": (1.0, 1e-20)}
_SMALL = 1.0, 1e-20, 30.0  # the kernel adds greatest scores and the logarithms of sums
_FEW = {"mask": ("whole",), "keys": (8, 17, 33), "length": (1, 2, 4), "rate": (0.0,)}
_LARGE = {"factor": (1.0, 1e-20, 30.0, 1e6, 1e18, 1e37)}  # in attention, float64 is not exact
_PRODUCTS = _LARGE | {"use": ("linear", "bias", "rows", "transposed", "logits", "next_token")}
_LAYERS = {
    "use": ("post", "pre", "deep"),
    "width": (8, 16),
    "values": ("normal",),
    "factor": (1.0,),
}
_UPDATES = {"use": ("adam", "lion"), "dtype": ("float32",)}
_GREATEST = {"use": ("greedy", "beam"), "dtype": ("float32",), "rate": (0.0, 0.7, 1.0)}
_ACTIVATIONS = _LARGE | {"use": ("relu", "gelu", "silu")}

KERNELS = {
    "attention=xla": Kernel("attention"),
    "attention=xla_fused": Kernel("attention"),
    "attention=cudnn": Kernel("attention", _FUSED, documented=RESULT),
    "attention=cudnn by XLA": Kernel("attention", _FUSED),
    "products=plain": Kernel("products", _PRODUCTS),
    "products=fused": Kernel("products", _PRODUCTS),
    "products=float32_results": Kernel("products", _PRODUCTS),
    "layers=loop": Kernel("layers", _LAYERS, roundings=LAYER_ROUNDINGS),
    "layers=unrolled": Kernel("layers", _LAYERS, roundings=LAYER_ROUNDINGS),
    "loss=in_passes": Kernel("loss"),
    "loss=in_one_pass": Kernel("loss"),
    "loss=within_the_product": Kernel("loss"),
    "logits=float32": Kernel("loss"),
    "logits=rounded": Kernel("loss", _NEAR, documented=LOGITS),
    "norms=plain": Kernel("norm", _LARGE, "float32"),
    "norms=kept_moments": Kernel("norm", _LARGE, "float32"),
    "norms=with_products": Kernel("norm", {"dtype": ("bfloat16",)}, "float32", SUMS),
    "activations=plain": Kernel("activation", _ACTIVATIONS),
    "activations=from_results": Kernel("activation", _ACTIVATIONS),
    "dropout=kept": Kernel("dropout", _LARGE),
    "dropout=found_again": Kernel("dropout", _LARGE),
    "updates=in_turn": Kernel("updates", _UPDATES),
    "updates=at_once": Kernel("updates", _UPDATES),
    "greatest=in_blocks": Kernel("greatest", _GREATEST),
    "greatest=in_one_pass": Kernel("greatest", _GREATEST),
    "cached_attention=xla": Kernel("cached", _FEW | {"use": ("turned", "before", "stacked")}),
    "cached_attention=cudnn": Kernel("cached", _FUSED | _FEW | {"use": ("in_order",)}),
    "cached_attention=cudnn by XLA": Kernel("cached", _FUSED | _FEW | {"use": ("in_order",)}),
    "long_rows=blockwise": Kernel("attention", _LONG, documented=RESULT),
    "long_rows=splash": Kernel(
        "attention", _LONG | {"window": (0,), "rate": (0.0,), "factor": _SMALL}, documented=RESULT
    ),
    "short_rows=as_others": Kernel("attention"),
    "attention=cudnn short_rows=at_once": Kernel("attention", _SHORT),
}
OF_GPUS = "attention=cudnn", "cached_attention=cudnn"


def generate(rng: np.random.Generator) -> Case:
    """Return a case of one kernel."""
    name = [*KERNELS][rng.integers(len(KERNELS))]
    fields = FIELDS | dict(KERNELS[name].takes)
    while True:
        drawn = {key: values[rng.integers(len(values))] for key, values in fields.items()}
        case = {"kernel": name, "seed": int(rng.integers(1 << 30)), **drawn}
        if is_valid(case):
            return case


def is_valid(case: Case) -> bool:
    """Return whether a kernel takes a case, and promises a result."""
    if any(case[key] not in values for key, values in KERNELS[case["kernel"]].takes.items()):
        return False
    window, mask = case["window"], case["mask"]
    # Windows drop other weights than the whole mask does.
    drops = case["rate"] and 0 < (2 if mask == "causal" else 3) * window < case["length"]
    is_near = window == 0 or mask in ("self", "causal")  # queries and keys of the same places
    is_stacked_beam = case["use"] == "stacked" and case["length"] > 1
    return is_near and case["heads"] % case["groups"] == 0 and not drops and not is_stacked_beam


def settled(case: Case) -> Case:
    """Return a case with the sizes that follow from others."""
    keys = case["length"] if case["mask"] in ("self", "causal") else case["keys"]
    return case | {"keys": keys, "width_out": case["width_out"] or case["width"]}


def routes(case: Case) -> Mapping[str, Sequence[Step]]:
    """Compare the case's kernel with its formula."""
    return {case["kernel"]: [(OURS, "compute"), ("plain", "compute")]}


def compare(case: Case, name: str, answers: Sequence[Any]) -> Difference | None:
    """Return a difference that the dtype does not explain, as the constants above have it."""
    kernel, (ours, (exact, rounded, noisy, plain)) = KERNELS[name], answers
    explained = None
    for key, found in ours.items():
        right, formula = exact[key], plain[key]
        with np.errstate(all="ignore"):
            near = kernel.roundings * _spread(key, right, rounded) + LEAST
            near += RESULT_ROUNDINGS * EPSILON[case["dtype"]] * abs(right)
            near += PLAIN_ERRORS * abs(formula - right)
            is_wrong = ~(abs(found - right) <= near) & (found != right) & np.isfinite(formula)
            if noisy and is_wrong.any():
                explained = Difference(kernel.documented, key)
                near += kernel.roundings * _spread(key, right, noisy)
                is_wrong &= ~(abs(found - right) <= near)
        if is_wrong.any():
            numbers = [f"{x[is_wrong][0]:.9g}" for x in (found, right, formula, near)]
            detail = "{} and {} in float64, {} plain; explained: {}".format(*numbers)
            is_number = np.isfinite(found[is_wrong]).all()
            return Difference(f"{'numbers' if is_number else 'not finite'} in {key}", detail)
    return explained


def _spread(key: str, right: Any, others: Sequence[Any]) -> Any:
    """Return how far results are from the right one: the most in each vector."""
    same = [np.where(one[key] == right, 0, one[key] - right) for one in others]  # infinite ones too
    apart = np.abs(same).max(axis=0)
    return apart.max(-1, keepdims=True) + 0 * apart if apart.ndim else apart


PART = Part(
    programs={OURS: f"{__package__}.ours", "plain": f"{__package__}.plain"},
    generate=generate,
    routes=routes,
    compare=compare,
    simplest={"kernel": "attention=xla", "seed": 0}
    | {k: values[0] for k, values in FIELDS.items()},
    documented={kind: kind for kind in (RESULT, LOGITS, SUMS)},
    is_valid=is_valid,
    may_not_run=OF_GPUS,
)
