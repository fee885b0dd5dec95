"""Kernels against the plain formulas of `t2t_jax.functional`, in values and derivatives.

A case is about one kernel. `ours` computes it, and `plain` the formula: in float64, again with
inputs that differ by a rounding, and in the dtype of the case.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.against.part import OURS, Case, Difference, Part, Step

ROUNDINGS, LAYER_ROUNDINGS = 16.0, 128.0
"""Most roundings of its inputs that the error of a kernel may be worth, as it rounds weights and
sums too; and that of layers, which round about as often in each of their parts."""
RESULT_ROUNDINGS = 2.0
"""Most roundings of a result by itself."""
PLAIN_ERRORS = 2.0
"""Most errors of the plain formula in the same dtype, where numbers overflow or cancel."""
LEAST = 1e-34
"""An error that needs no reason: below 1e-38, numbers and their products are 0 in float32."""
EPSILON = {"float32": 2.0**-23, "bfloat16": 2.0**-7}
"""The distance of 1 to the next number."""

RESULT, LOGITS, SUMS = "rounded result in a derivative", "rounded logits", "variance from sums"
DOCUMENTED = {
    RESULT: "the derivative of attention uses the rounded result",
    LOGITS: "logits are rounded to bfloat16",
    SUMS: "the variance is a difference of two sums",
}
"""The kinds of differences that a kernel is documented for, with a text of the page."""

_NUMBERS = 1, 2, 3, 5, 8, 13, 16, 17, 33
FIELDS: dict[str, Sequence[Any]] = {
    "dtype": ("float32", "bfloat16"),
    "values": ("normal", "equal", "rows", "integers", "outliers", "far"),
    "factor": (1.0, 1e-20, 30.0, 1e3, 1e12),
    "batch": (1, 2, 3),
    "length": _NUMBERS,
    "keys": _NUMBERS,
    "heads": (1, 2, 4),
    "groups": (1, 2),
    "width": (8, 1, 3, 16, 40),
    "width_out": (8, 1, 5, 16, 24),
    "vocab": (12, 1, 2, 15, 16, 17, 63, 64, 65, 129, 300),
    "mask": ("self", "cross", "whole", "of_heads"),
    "causal": (False, True),
    "window": (0, 1, 2, 3, 5, 12, 50),
    "bias": (False, True),
    "score": ("products", "additive"),
    "use": ("",),
    "block": (8, 16),
    "rate": (0.0, 0.1, 0.7),
    "smoothing": (0.0, 0.1, 0.9),
    "chunks": (1, 2, 3),
    "epsilon": (1e-6, 1e-12, 1e-3, 10.0),
    "activation": ("relu", "gelu", "silu"),
    "depth": (1, 2),
    "norm_order": ("post", "pre", "deep"),
    "remat": ("none", "dots", "full"),
    "optimizer": ("adam", "lion"),
}
"""The values of each field of a case, the simplest first."""


@dataclass(frozen=True)
class Kernel:
    """A row of the table; its name is the choice in `kernels.choice.Kernels`.

    Attributes:
      formula: the function of `ours` and of `plain`, or the program of `inputs`, that computes it.
      takes: the values of fields that the kernel takes, where they are not those of `FIELDS`.
      with_choices: other choices that it needs.
      precision: the dtype of its sums; None is the dtype of the case.
      documented: the kind of difference that a rounding of its own makes; see `DOCUMENTED`.
      noise: the axes of what it rounds so.
      roundings: most roundings of its inputs that its error may be worth.
    """

    formula: str
    takes: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    with_choices: Mapping[str, Any] = field(default_factory=dict)
    precision: str | None = None
    documented: str = ""
    noise: str = ""
    roundings: float = ROUNDINGS


_PLAIN = {"bias": (False,), "score": ("products",)}
_LONG = _PLAIN | {"mask": ("self", "cross")}
_EVEN = 2, 8, 16, 34, 64
_FUSED = _PLAIN | {  # see `kernels.attention.is_fused`; a width_out of 0 is the width
    "dtype": ("bfloat16",),
    "length": _EVEN,
    "keys": _EVEN,
    "width": (16, 32, 64),
    "width_out": (0,),
    "rate": (0.0,),
}
_SHORT = _FUSED | {"heads": (2,), "groups": (2,), "mask": ("self", "cross", "whole")}
_CACHED = {"mask": ("whole",), "keys": (2, 3, 8, 17, 33), "length": (1, 2, 4), "rate": (0.0,)}
_FEW = _FUSED | _CACHED | {"use": ("fused",)}
_PRODUCTS = {"use": ("linear", "rows", "transposed", "logits", "next_token")}
_LAYERS = {"width": (8, 16), "values": ("normal",), "factor": (1.0,), "length": (1, 5, 8)}
_GREATEST = {"dtype": ("float32",), "use": ("greedy", "beam"), "rate": (0.0, 0.7, 1.0)}
_RESULT: Any = {"documented": RESULT, "noise": "batch length heads width_out"}
_CUDNN = {"attention": "cudnn"}

KERNELS = {
    "attention=xla": Kernel("attention"),
    "attention=xla_fused": Kernel("attention"),
    "attention=cudnn": Kernel("attention", _FUSED, **_RESULT),
    "attention=cudnn, computed by XLA": Kernel("attention", _FUSED),
    "products=plain": Kernel("products", _PRODUCTS),
    "products=fused": Kernel("products", _PRODUCTS),
    "products=float32_results": Kernel("products", _PRODUCTS),
    "layers=loop": Kernel("layers", _LAYERS, roundings=LAYER_ROUNDINGS),
    "layers=unrolled": Kernel("layers", _LAYERS, roundings=LAYER_ROUNDINGS),
    "loss=in_passes": Kernel("loss"),
    "loss=in_one_pass": Kernel("loss"),
    "loss=within_the_product": Kernel("loss"),
    "logits=float32": Kernel("loss"),
    "logits=rounded": Kernel("loss", documented=LOGITS, noise="vocab"),
    "norms=plain": Kernel("norm", precision="float32"),
    "norms=kept_moments": Kernel("norm", precision="float32"),
    "norms=with_products": Kernel(
        "norm", {"dtype": ("bfloat16",)}, {}, "float32", SUMS, "batch length width"
    ),
    "activations=plain": Kernel("activation"),
    "activations=from_results": Kernel("activation"),
    "dropout=kept": Kernel("dropout"),
    "dropout=found_again": Kernel("dropout"),
    "updates=in_turn": Kernel("updates", {"dtype": ("float32",)}),
    "updates=at_once": Kernel("updates", {"dtype": ("float32",)}),
    "greatest=in_blocks": Kernel("greatest", _GREATEST),
    "greatest=in_one_pass": Kernel("greatest", _GREATEST),
    "cached_attention=xla": Kernel(
        "cached_attention", _CACHED | {"use": ("cached", "new", "both")}
    ),
    "cached_attention=cudnn": Kernel("cached_attention", _FEW),
    "cached_attention=cudnn, computed by XLA": Kernel("cached_attention", _FEW),
    "long_rows=blockwise": Kernel("attention", _LONG, **_RESULT),
    "long_rows=splash": Kernel("attention", _LONG | {"window": (0,), "rate": (0.0,)}, **_RESULT),
    "short_rows=as_others": Kernel("attention"),
    "short_rows=at_once": Kernel("attention", _SHORT, _CUDNN),
}


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
    is_self, causal, window = case["mask"] == "self", case["causal"], case["window"]
    is_narrow = 0 < (2 if causal else 3) * window < case["length"]
    is_right = is_self or not (causal or window)  # both need queries and keys of the same places
    if is_narrow and case["rate"]:  # windows drop other weights than the whole mask
        return False
    is_divided = case["heads"] % case["groups"] == case["length"] % case["chunks"] == 0
    return is_right and is_divided and (case["use"] != "new" or case["length"] == 1)


def settled(case: Case) -> Case:
    """Return a case with the sizes that follow from others."""
    keys = case["length"] if case["mask"] == "self" else case["keys"]
    return case | {"keys": keys, "width_out": case["width_out"] or case["width"]}


def routes(case: Case) -> Mapping[str, Sequence[Step]]:
    """Compare the case's kernel with its formula."""
    return {case["kernel"]: [(OURS, "compute"), ("plain", "compute")]}


def compare(case: Case, name: str, answers: Sequence[Any]) -> Difference | None:
    """Return a difference that the dtype does not explain, as the constants above have it."""
    kernel, (ours, (exact, rounded, noisy, plain)) = KERNELS[name], answers
    explained = None
    for key, right in exact.items():
        if ours[key].shape != right.shape:
            return Difference("shapes", f"{key}: {ours[key].shape} and {right.shape}")
        with np.errstate(all="ignore"):
            error, is_finite = abs(ours[key] - right), np.isfinite(plain[key])
            near = kernel.roundings * _spread(right, [one[key] for one in rounded])
            near += RESULT_ROUNDINGS * EPSILON[case["dtype"]] * abs(right)
            near += PLAIN_ERRORS * abs(plain[key] - right) + LEAST
            is_wrong = ~(error <= near) & is_finite
            if noisy and is_wrong.any():
                explained = Difference(kernel.documented, key)
                near += kernel.roundings * _spread(right, [one[key] for one in noisy])
                is_wrong = ~(error <= near) & is_finite
        if is_wrong.any():
            place = tuple(int(i) for i in np.argwhere(is_wrong)[0])
            numbers = [f"{x[place]:.9g}" for x in (ours[key], right, plain[key], near)]
            detail = "{} and {} in float64, {} plain; explained: {}".format(*numbers)
            is_number = np.isfinite(ours[key][is_wrong]).all()
            return Difference(f"{'numbers' if is_number else 'not finite'} in {key}", detail)
    return explained


def _spread(right: Any, others: Sequence[Any]) -> Any:
    """Return how far results are from the right one: the most in each vector."""
    apart = np.max([abs(one - right) for one in others], axis=0)
    return np.broadcast_to(
        apart.max(-1, keepdims=True) if apart.ndim else apart, right.shape
    ).copy()


PART = Part(
    programs={OURS: f"{__package__}.ours", "plain": f"{__package__}.plain"},
    generate=generate,
    routes=routes,
    compare=compare,
    simplest={"kernel": "attention=xla", "seed": 0}
    | {k: values[0] for k, values in FIELDS.items()},
    documented=DOCUMENTED,
    is_valid=is_valid,
    may_not_run=("attention=cudnn", "cached_attention=cudnn"),
)
