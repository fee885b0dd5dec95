"""The configs of multi-head attention and normalization."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property

from t2t_jax.config.attention_kinds import AttentionKind
from t2t_jax.config.checks import require
from t2t_jax.config.registry import Entry
from t2t_jax.config.tables import ATTENTION_KINDS, NORMALIZATIONS
from t2t_jax.errors import quote


@dataclass(frozen=True)
class NormConfig:
    """The config of a normalization."""

    kind: str = "layer"
    """Name of a normalization in `NORMALIZATIONS`."""
    epsilon: float = 1e-6
    """Epsilon added to the variance or the mean square."""

    def num_parameters(self, width: int) -> int:
        """Count the parameters, such as a scale and a bias, for vectors of a width."""
        return NORMALIZATIONS[self.kind].num_parameters(width)


@dataclass(frozen=True)
class AttentionConfig:
    """The config of multi-head attention."""

    d_model: int
    """Width of the input and output vectors."""
    num_heads: int
    """Number of attention heads h (section 3.2.2)."""
    d_k: int = 0
    """Width of the queries and keys of a head; 0 means d_model / num_heads, as in the paper."""
    d_v: int = 0
    """Width of the values of a head; 0 means d_model / num_heads, as in the paper."""
    dropout_rate: float = 0.0
    """Dropout rate of the attention weights."""
    num_kv_heads: int | None = None
    """Number of key and value heads, which the query heads share equally; None means num_heads."""
    attention_kind: str = "scaled_dot_product"
    """Name of a kind of attention in `ATTENTION_KINDS`."""
    has_bias: bool = False
    """Whether the projections have biases."""
    query_key_norm: NormConfig | None = None
    """Normalization of the queries and keys of each head; None means no normalization."""
    base_d_k: int = 0
    """Base d_k of muP, at which the score scale is 1 / sqrt(d_k). For other widths the scale is
    proportional to 1 / d_k, as learned queries and keys correlate (Yang et al. 2021). 0 means
    d_k."""

    def __post_init__(self) -> None:
        """Set default head widths, and check the sizes."""
        ATTENTION_KINDS.check("attention_kind", self.attention_kind)
        width, heads, kv_heads = self.d_model, self.num_heads, self.groups
        for name, size in (("d_model", width), ("num_heads", heads), ("num_kv_heads", kv_heads)):
            require(size >= 1, f"{name}={size} is not positive")
        for name in ("d_k", "d_v"):
            size = getattr(self, name)
            require(
                size or width % heads == 0,
                f"d_model={width} is not divisible by num_heads={heads}; set d_k and d_v",
            )
            object.__setattr__(self, name, size or width // heads)
        object.__setattr__(self, "base_d_k", self.base_d_k or self.d_k)
        require(
            heads % kv_heads == 0,
            f"num_heads={heads} is not a multiple of num_kv_heads={kv_heads}, which share the "
            "heads equally; choose a divisor",
        )

    def __getstate__(self) -> dict[str, object]:
        """Return the fields, without cached functions, which `pickle` may refuse."""
        return {leaf.name: getattr(self, leaf.name) for leaf in fields(self)}

    @cached_property
    def kind(self) -> AttentionKind:
        """Return the kind of attention."""
        return ATTENTION_KINDS[self.attention_kind].function

    @cached_property
    def scores(self) -> Entry | None:
        """Return the score function of the kind, with parameters per map; None for dot products."""
        return self.kind.score_function(ATTENTION_KINDS[self.attention_kind].title)

    @cached_property
    def combination(self) -> Entry | None:
        """Return `combine` of the kind, whose parameters depend on this config; None by default."""
        title, kind = ATTENTION_KINDS[self.attention_kind].title, self.kind
        return Entry(kind.combine, kind.parameters, title=title) if kind.combines else None

    @cached_property
    def groups(self) -> int:
        """Return the number of value heads, each with one key head per map."""
        return self.num_kv_heads or self.num_heads

    @cached_property
    def num_maps(self) -> int:
        """Return the number of attention maps: query heads."""
        return self.num_heads * self.kind.maps_per_head

    @cached_property
    def key_groups(self) -> int:
        """Return the number of key heads."""
        return self.groups * self.kind.maps_per_head

    @property
    def heads_per_group(self) -> int:
        """Return the number of heads that share a value."""
        return self.num_heads // self.groups

    @cached_property
    def projections(self) -> dict[str, int]:
        """Return the total width over all heads of W^Q, W^K and W^V."""
        return {
            "query": self.num_maps * self.d_k,
            "key": self.key_groups * self.d_k,
            "value": self.groups * self.d_v,
        }

    @cached_property
    def gates(self) -> dict[str, int]:
        """Return the total width over all heads of each gate of the kind."""
        sizes, title = self.kind.gates(self), ATTENTION_KINDS[self.attention_kind].title
        require(
            isinstance(sizes, Mapping)
            and all(isinstance(n, int) and n > 0 for n in sizes.values()),
            f"gates of {title} returned {quote(sizes)}; return the width of a head of each gate, "
            "by name",
        )
        return {name: self.num_heads * size for name, size in sizes.items()}

    def cache_shapes(self, rows: int, slots: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the cache shapes of keys and values for `kernels.cached_attention`."""
        return (rows, self.key_groups, self.d_k, slots), (rows, self.groups, slots, self.d_v)

    @cached_property
    def scale(self) -> float | None:
        """Return the factor on dot-product scores; None means 1 / sqrt(d_k)."""
        return self.kind.scale(self.d_k, self.base_d_k)

    @property
    def cache_width(self) -> int:
        """Return the number of cached values per position in decoding: keys and values."""
        return self.projections["key"] + self.projections["value"]

    @property
    def memory_parameters(self) -> int:
        """Count the parameters of W^K and W^V."""
        return self.d_model * self.cache_width

    @property
    def query_parameters(self) -> int:
        """Count the parameters of W^Q, W^O and the gates."""
        widths = self.projections["query"], self.num_heads * self.d_v, *self.gates.values()
        return self.d_model * sum(widths)

    @property
    def matrix_parameters(self) -> int:
        """Count the parameters of the matrices."""
        return self.memory_parameters + self.query_parameters

    @property
    def num_parameters(self) -> int:
        """Count all parameters, also of biases, normalizations and attention kind."""
        biases = sum((*self.projections.values(), *self.gates.values(), self.d_model))
        norms = 2 * self.query_key_norm.num_parameters(self.d_k) if self.query_key_norm else 0
        scores = self.num_maps * self.scores.num_parameters(self.d_k) if self.scores else 0
        further = self.combination.num_parameters(self) if self.combination else 0
        return self.matrix_parameters + biases * self.has_bias + norms + scores + further

    @property
    def multiply_adds_per_pair(self) -> int:
        """Count the multiply-adds for a pair of positions, for its scores and its values."""
        return self.num_maps * (self.d_k + self.d_v)

    @property
    def head_outputs(self) -> int:
        """Count the weighted values per position, and the values that the kind makes of them."""
        return (self.num_maps + self.num_heads * self.kind.combines) * self.d_v

    @property
    def activations(self) -> int:
        """Count the activations per position: queries, keys, values, gates and head outputs."""
        return sum((*self.projections.values(), *self.gates.values(), self.head_outputs))

    def check_devices(self, tensor: int) -> None:
        """Refuse a number of tensor-parallel devices that cannot share the heads equally."""
        for name, heads in (("num_heads", self.num_heads), ("num_kv_heads", self.groups)):
            require(
                heads % tensor == 0,
                f"model.{name}={heads} is not divisible by parallel.tensor={tensor}, over which "
                "heads are split; choose a divisor",
            )
