"""The kinds of attention that `model.attention_kind` names."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from t2t_jax.config.registry import Entry, Function, Learned, Parameter, nothing
from t2t_jax.errors import UserError

if TYPE_CHECKING:
    from jax import Array

    from t2t_jax.config.attention import AttentionConfig

Arrays: TypeAlias = Mapping[str, "Array"]


@dataclass(frozen=True)
class AttentionKind:
    """Base class of kinds of attention: projections, scores, and the use of the weighted values.

    The default is scaled dot-product attention (section 3.2.1). A subclass overrides methods; its
    dataclass fields are the parameters of the kind in a config. Windows, grouped heads, positions
    and dropout work with every kind. Every method computes each position by itself, because
    decoding computes one position at a time.
    """

    maps_per_head: ClassVar[int] = 1
    """Number of attention maps m of a head. Queries have h m heads and keys have groups * m; map j
    of head i is head i m + j. The maps of a head share its values."""

    def scores(self, query: "Array", key: "Array", **learned: "Array") -> "Array":
        """Return the scores `[b, h m, q, k]` of queries `[b, q, h m, d_k]` and keys.

        The default is the scaled dot product, which fused and blockwise kernels support.
        `learned` has the arrays of `score_parameters`.
        """
        raise NotImplementedError

    def score_parameters(self, d_k: int) -> Mapping[str, Parameter]:
        """Return the learned parameters of one map by name; `scores` gets each as `[h m, ...]`."""
        return {}

    def scale(self, d_k: int, base_d_k: int) -> float | None:
        """Return the factor on dot products; None is 1 / sqrt(d_k). See `AttentionConfig`."""
        ratio = base_d_k / d_k
        return None if ratio == 1 else math.sqrt(ratio / d_k)

    def gates(self, config: "AttentionConfig") -> Mapping[str, int]:
        """Return the widths per head of further projections of the queries' input, by name."""
        return {}

    def parameters(self, config: "AttentionConfig") -> Mapping[str, Parameter]:
        """Return further learned arrays of a layer by name, for `combine`."""
        return {}

    def combine(
        self, heads: "Array", gates: Arrays, params: Arrays, layer: "Array | int"
    ) -> "Array":
        """Return the input of W^O, `[b, q, h, d_v]`.

        Args:
          heads: the weighted values of all maps, `[b, q, h m, d_v]`; zeros at padding.
          gates: the projections of `gates`, each `[b, q, h, width]`.
          params: the arrays of `parameters`.
          layer: the index in the stack, from 0; an integer array in training.
        """
        return heads

    def score_function(self, title: str) -> Entry | None:
        """Return `scores` with its parameters and its title in errors; None for dot products."""
        if type(self).scores is AttentionKind.scores:
            return None
        return Entry(self.scores, self.score_parameters, title=title)

    @property
    def is_dot_product(self) -> bool:
        """Return whether the scores are dot products, which have a rule for widths (muP)."""
        return self.score_function("") is None

    @property
    def combines(self) -> bool:
        """Return whether the kind has its own `combine`."""
        return type(self).combine is not AttentionKind.combine


@dataclass(frozen=True)
class DotProduct(AttentionKind):
    """Attention with dot products that are not scaled at the base width."""

    def scale(self, d_k: int, base_d_k: int) -> float:
        """Return the factor on dot products."""
        return base_d_k / d_k


@dataclass(frozen=True)
class ScoreFunction(AttentionKind):
    """Attention with another score function."""

    function: Function | str = field(hash=False)
    """The function, or the import path MODULE:NAME of a function of the package."""
    learned: Learned = nothing
    """A function from d_k to the learned parameters by name."""

    def score_function(self, title: str) -> Entry:
        """Return the function with its parameters."""
        return Entry(self.function, self.learned, title=title)


def attention_kind(part: Any, title: str) -> Entry:
    """Return the entry of a part that a user registers; refuse a part of another form.

    Args:
      part: an `AttentionKind`; a score function or a dataclass with the method `__call__` and, if
        needed, `parameters(d_k)`; or an `Entry` of a score function.
      title: the name of the part in errors.
    """
    kind = part.function if isinstance(part, Entry) else part
    if callable(kind):
        kind = ScoreFunction(kind, getattr(part, "parameters", nothing))
    if not isinstance(kind, AttentionKind):
        raise UserError(
            f"{title} is a {type(kind).__name__}; register a subclass of t2t_jax.AttentionKind, a "
            "function of queries and keys that returns scores, or a frozen dataclass with the "
            "method __call__(query, key)"
        )
    needs_combine = kind.maps_per_head > 1 or any(
        getattr(type(kind), name) is not getattr(AttentionKind, name)
        for name in ("gates", "parameters")
    )
    if needs_combine and not kind.combines:
        raise UserError(
            f"{title} has several maps per head, gates or parameters, but no method combine, which "
            "reads them; add it"
        )
    return Entry(kind, title=title)
