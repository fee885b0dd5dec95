"""The config of the network: section 3 of the paper."""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from t2t_jax.config.checks import INFINITY, check_fields, check_fits, check_range, require
from t2t_jax.config.fields import left_open
from t2t_jax.errors import UserError


@dataclass(frozen=True)
class AttentionConfig:
    """Sizes of a multi-head attention, from which projections, cache, cost and sharding follow."""

    d_model: int
    """Width of what comes in and goes out."""
    num_heads: int
    """Attention heads h (section 3.2.2)."""
    d_k: int
    """Width of a head's queries and keys."""
    d_v: int
    """Width of a head's values."""
    dropout_rate: float = 0.0
    """Share of the attention weights set to zero in training."""

    @property
    def projections(self) -> dict[str, int]:
        """Width of each projection of the input, all heads side by side: W^Q, W^K, W^V."""
        key_width, value_width = self.num_heads * self.d_k, self.num_heads * self.d_v
        return {"query": key_width, "key": key_width, "value": value_width}

    def cache_shapes(self, rows: int, slots: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shapes of the keys and the values that `kernels.attention.cached_attention` takes.

        Args:
          rows: sentences.
          slots: positions of each.
        """
        return (
            (rows, self.num_heads, self.d_k, slots),
            (rows, self.num_heads, slots, self.d_v),
        )

    @property
    def cache_width(self) -> int:
        """Numbers that decoding keeps of a position: its keys and values."""
        return self.projections["key"] + self.projections["value"]

    @property
    def memory_parameters(self) -> int:
        """Weights that a position meets to be attended to: those of keys and values."""
        return self.d_model * self.cache_width

    @property
    def query_parameters(self) -> int:
        """Weights that a position meets to attend: those of queries and of the output (W^O)."""
        return self.d_model * (self.projections["query"] + self.num_heads * self.d_v)

    @property
    def products_per_pair(self) -> int:
        """Multiply-adds for a position and one that it attends to: its score, and its value."""
        return self.num_heads * (self.d_k + self.d_v)

    @property
    def activations(self) -> int:
        """Numbers that a position has here: its queries, keys and values, and its heads' output."""
        return sum(self.projections.values()) + self.num_heads * self.d_v

    def check_devices(self, tensor: int) -> None:
        """Refuse a number of devices that cannot share the heads equally.

        Args:
          tensor: devices along the mesh axis `tensor`.

        Raises:
          UserError: it does not divide the heads.
        """
        if self.num_heads % tensor:
            raise UserError(
                f"model.num_heads={self.num_heads} is not divisible by parallel.tensor={tensor}, "
                "over which heads are split; choose a divisor"
            )


class Stack(NamedTuple):
    """A stack of equal layers, as far as its cost depends on it."""

    num_layers: int
    """Layers N."""
    reads_source: bool
    """Whether the tokens of sources pass through it."""
    reads_target: bool
    """Whether the tokens of targets do."""
    attends_to_source: bool
    """Whether each layer also attends to what another stack made of the source."""


@dataclass(frozen=True)
class ModelConfig:
    """The network: section 3 of the paper, with the options of its ablations."""

    d_model: int = 512
    """Width of every layer's output (section 3.1)."""
    num_heads: int = 8
    """Attention heads h (section 3.2.2)."""
    d_k: int | None = None
    """Width of a head's queries and keys; None means d_model / num_heads, as in the paper."""
    d_v: int | None = None
    """Width of a head's values; None means d_model / num_heads, as in the paper."""
    d_ff: int = 2048
    """Inner width of the position-wise feed-forward network (section 3.3)."""
    num_encoder_layers: int = 6
    """Encoder layers N."""
    num_decoder_layers: int = 6
    """Decoder layers N."""
    norm_order: Literal["post", "pre"] = "post"
    """Layer norm after the residual sum (the paper, section 3.1) or before the sub-layer."""
    position: Literal["sinusoidal", "learned"] = "sinusoidal"
    """Fixed sinusoids (section 3.5) or a learned table (Table 3, row E)."""
    max_positions: int = 1024
    """Rows of the learned position table; sinusoids have no limit and do not read it."""
    share_embeddings: bool = True
    """One matrix for source embedding, target embedding and output projection (section 3.4)."""
    dropout_rate: float = 0.1
    """P_drop: on every sub-layer's output and on the sum of embedding and position (5.4)."""
    attention_dropout_rate: float = 0.0
    """Dropout on the attention weights; the paper has none."""
    activation_dropout_rate: float = 0.0
    """Dropout on the feed-forward network's hidden activations; the paper has none."""
    compute_dtype: Literal["float32", "bfloat16", "auto"] = field(
        default="float32", metadata=left_open("auto")
    )
    """Dtype of activations and matrix products; parameters, softmax and loss stay float32. "auto"
    is bfloat16 where a new run starts on devices that are faster with it, and else float32."""

    def __post_init__(self) -> None:
        """Check every field."""
        check_fields(self)
        sizes = ("d_model", "num_heads", "d_ff", "max_positions")
        check_range(self, 1, INFINITY, *sizes, "num_encoder_layers", "num_decoder_layers")
        check_fits(self, *sizes, "num_encoder_layers", "num_decoder_layers", "d_k", "d_v")
        check_range(
            self, 0, 0.99, "dropout_rate", "attention_dropout_rate", "activation_dropout_rate"
        )
        for name in ("d_k", "d_v"):
            size = getattr(self, name)
            require(size is None or size >= 1, f"{name}={size} is not positive")
            require(
                size is not None or self.d_model % self.num_heads == 0,
                f"d_model={self.d_model} is not divisible by num_heads={self.num_heads}; "
                "set d_k and d_v",
            )
        require(
            self.position != "sinusoidal" or self.d_model % 2 == 0,
            f"d_model={self.d_model} is odd, but sinusoidal positions come in pairs of sine and "
            "cosine; use an even d_model or position='learned'",
        )

    @property
    def key_size(self) -> int:
        """d_k: the field, or if that is None, d_model / num_heads."""
        return self.d_k or self.d_model // self.num_heads

    @property
    def value_size(self) -> int:
        """d_v: the field, or if that is None, d_model / num_heads."""
        return self.d_v or self.d_model // self.num_heads

    @property
    def attention(self) -> AttentionConfig:
        """The sizes of each multi-head attention: all are of one kind (section 3.2.3)."""
        rate = self.attention_dropout_rate
        return AttentionConfig(self.d_model, self.num_heads, self.key_size, self.value_size, rate)

    @property
    def stacks(self) -> tuple[Stack, ...]:
        """Encoder and decoder (section 3.1)."""
        return (
            Stack(self.num_encoder_layers, True, False, attends_to_source=False),
            Stack(self.num_decoder_layers, False, True, attends_to_source=True),
        )

    @property
    def longest_sentence(self) -> float:
        """The number of tokens of the longest sentence that the model has positions for."""
        return self.max_positions if self.position == "learned" else INFINITY
