"""The sizes of a multi-head attention and a normalisation."""

import math
from dataclasses import dataclass
from functools import cached_property

from t2t_jax.config.checks import require
from t2t_jax.config.tables import NORMALIZATIONS, SCORE_FUNCTIONS


@dataclass(frozen=True)
class NormConfig:
    """A normalisation of vectors."""

    kind: str = "layer"
    """The name of a normalisation in `NORMALIZATIONS`."""
    epsilon: float = 1e-6
    """Number that is added to the variance or the mean square."""

    def num_parameters(self, width: int) -> int:
        """Count the learned numbers, such as a scale and a bias, for vectors of this width."""
        return NORMALIZATIONS[self.kind].num_parameters(width)


@dataclass(frozen=True)
class AttentionConfig:
    """A multi-head attention, from which projections, cache, cost and sharding follow."""

    d_model: int
    """Width of the vectors that the attention takes and returns."""
    num_heads: int
    """Attention heads h (section 3.2.2)."""
    d_k: int = 0
    """Width of a head's queries and keys; 0 becomes d_model / num_heads, as in the paper."""
    d_v: int = 0
    """Width of a head's values; 0 becomes d_model / num_heads, as in the paper."""
    dropout_rate: float = 0.0
    """Share of the attention weights set to zero in training."""
    num_kv_heads: int | None = None
    """Heads of keys and values, each shared by equally many heads; None means one for each head."""
    score_function: str = "scaled_dot_product"
    """The function that scores how well a query and a key match: a name of `SCORE_FUNCTIONS`."""
    has_bias: bool = False
    """Whether a bias is added in each of the four projections."""
    query_key_norm: NormConfig | None = None
    """The normalisation of every head's queries and keys; None means none."""
    base_d_k: int = 0
    """Width d_k at which scores have their usual size. In wider heads they fall with 1 / d_k and
    not with its root, as learned queries and keys agree with each other (Yang et al. 2021). 0
    becomes d_k."""

    def __post_init__(self) -> None:
        """Work out the widths of a head, and check the sizes."""
        SCORE_FUNCTIONS.check("score_function", self.score_function)
        width, heads, groups = self.d_model, self.num_heads, self.groups
        for name, size in (("d_model", width), ("num_heads", heads), ("num_kv_heads", groups)):
            require(size >= 1, f"{name}={size} is not positive")
        for name in ("d_k", "d_v"):
            given = getattr(self, name)
            require(
                given or width % heads == 0,
                f"d_model={width} is not divisible by num_heads={heads}; set d_k and d_v",
            )
            object.__setattr__(self, name, given or width // heads)
        object.__setattr__(self, "base_d_k", self.base_d_k or self.d_k)
        require(
            heads % groups == 0,
            f"num_heads={heads} is not a multiple of num_kv_heads={groups}, which share the heads "
            "equally; choose a divisor",
        )

    @cached_property
    def groups(self) -> int:
        """Return the number of heads of keys and values."""
        return self.num_kv_heads or self.num_heads

    @cached_property
    def projections(self) -> dict[str, int]:
        """Return the width, over all heads, of each projection of the input: W^Q, W^K, W^V."""
        return {
            "query": self.num_heads * self.d_k,
            "key": self.groups * self.d_k,
            "value": self.groups * self.d_v,
        }

    def cache_shapes(self, rows: int, slots: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the shapes of the keys and values of `kernels.cached_attention`."""
        return (rows, self.groups, self.d_k, slots), (rows, self.groups, slots, self.d_v)

    @cached_property
    def scale(self) -> float | None:
        """Return the factor on the products of queries and keys; None means 1 / sqrt(d_k)."""
        share = self.base_d_k / self.d_k
        if self.score_function == "dot_product":
            return share
        return None if share == 1 else math.sqrt(share / self.d_k)

    @property
    def cache_width(self) -> int:
        """Return how many numbers decoding keeps for a position: its keys and values."""
        return self.projections["key"] + self.projections["value"]

    @property
    def memory_parameters(self) -> int:
        """Count the weights that make the keys and values of a position (W^K, W^V)."""
        return self.d_model * self.cache_width

    @property
    def query_parameters(self) -> int:
        """Count the weights that make the queries and the output of a position (W^Q, W^O)."""
        return self.d_model * (self.projections["query"] + self.num_heads * self.d_v)

    @property
    def matrix_parameters(self) -> int:
        """Count the weights in the four matrices."""
        return self.memory_parameters + self.query_parameters

    @property
    def num_parameters(self) -> int:
        """Count all parameters: of matrices, biases, norms and score function."""
        biases = sum(self.projections.values()) + self.d_model
        norms = 2 * self.query_key_norm.num_parameters(self.d_k) if self.query_key_norm else 0
        scores = self.num_heads * SCORE_FUNCTIONS[self.score_function].num_parameters(self.d_k)
        return self.matrix_parameters + biases * self.has_bias + norms + scores

    @property
    def products_per_pair(self) -> int:
        """Count the multiply-adds of a pair of positions: those for its score and its value."""
        return self.num_heads * (self.d_k + self.d_v)

    @property
    def activations(self) -> int:
        """Count the numbers of a position: its queries, keys, values and the heads' output."""
        return sum(self.projections.values()) + self.num_heads * self.d_v

    def check_devices(self, tensor: int) -> None:
        """Refuse a number of devices that cannot share the heads equally."""
        for name, heads in (("num_heads", self.num_heads), ("num_kv_heads", self.groups)):
            require(
                heads % tensor == 0,
                f"model.{name}={heads} is not divisible by parallel.tensor={tensor}, over which "
                "heads are split; choose a divisor",
            )
