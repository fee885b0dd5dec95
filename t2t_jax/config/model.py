"""The config fields that all network families share (section 3 of the paper)."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias

from t2t_jax.config import checks, tables
from t2t_jax.config.attention import AttentionConfig, NormConfig

StartToken: TypeAlias = Literal["begin", "end", "padding"]
Parametrisation: TypeAlias = Literal["standard", "mup", "complete"]
Part: TypeAlias = Literal["encoder", "decoder", "cross"]
Side: TypeAlias = Literal["source", "target", "output"]
PARTS: tuple[Part, ...] = "encoder", "decoder", "cross"
"""The attentions of the paper: encoder and decoder self-attention, and cross-attention."""
_RATE = checks.NOT_EXPORTED | checks.within(0, 0.99)
_ROTARY = checks.read_where(lambda model: model.positions.turns)
_SINUSOIDS = checks.read_where(lambda model: model.positions.sinusoids is not None)
_IN_MUP = checks.read_where(lambda model: model.parametrisation != "standard")
_IN_COMPLETE = checks.read_where(lambda model: model.parametrisation == "complete")
_BASE_D_K = 64  # d_k of the paper, at which all parametrisations scale attention scores equally


class Stack(NamedTuple):
    """The settings of a stack of identical layers, such as the encoder or the decoder."""

    num_layers: int
    """Number of layers N."""
    reads_source: bool
    """Whether the stack processes source tokens."""
    reads_target: bool
    """Whether the stack processes target tokens."""
    self_attention: AttentionConfig
    """The self-attention of each layer."""
    cross_attention: AttentionConfig | None
    """The cross-attention of each layer to the encoder output; None without cross-attention."""
    residual_scale: float = 1.0
    """DeepNorm alpha: the factor on the input of a residual connection."""
    initial_gain: float = 1.0
    """DeepNorm beta: the factor on the initial values of some matrices; see `modules.layers`."""
    is_causal: bool = False
    """Whether the self-attention is causal."""
    depth_multiple: float = 1.0
    """Number of layers divided by `base_depth`. Only the parametrisation "complete" uses it."""

    @property
    def attends_to_source(self) -> bool:
        """Return whether the layers have cross-attention."""
        return self.cross_attention is not None

    @property
    def attentions(self) -> list[AttentionConfig]:
        """Return the self-attention and, if present, the cross-attention of a layer."""
        cross = self.cross_attention
        return [self.self_attention] if cross is None else [self.self_attention, cross]


class InputProjection(NamedTuple):
    """The parameter counts of an input projection, for sources that are not tokens."""

    weights: int = 0
    """Number of parameters of the matrix, which projects every source position."""
    vectors: int = 0
    """Number of other parameters, such as biases."""


@dataclass(frozen=True)
class ModelConfig(checks.Section, ABC):
    """The network: section 3 of the paper, its ablations and later variants.

    Subclasses in `config.families` add the fields of each network family.
    """

    architecture: str = ""
    """Network family (determines the other model fields): encoder-decoder, as in the paper;
    decoder-only, which reads source and target as one sequence (Liu et al. 2018), as GPT does;
    encoder-only, as BERT; or an encoder of images, as ViT."""
    d_model: int = field(default=512, metadata=checks.SIZE)
    """Width of the output of every layer (section 3.1)."""
    num_heads: int = field(default=8, metadata=checks.SIZE)
    """Number of attention heads h (section 3.2.2)."""
    d_k: int | None = field(default=None, metadata=checks.FITS | checks.POSITIVE)
    """Width of the queries and keys of a head; None means d_model / num_heads, as in the paper."""
    d_v: int | None = field(default=None, metadata=checks.FITS | checks.POSITIVE)
    """Width of the values of a head; None means d_model / num_heads, as in the paper."""
    num_kv_heads: int | None = field(default=None, metadata=checks.POSITIVE)
    """Number of key and value heads, which the num_heads query heads share equally: 1 is
    multi-query attention (Shazeer 2019), more is grouped-query attention (Ainslie et al. 2023).
    None means num_heads, as in the paper."""
    attention_window: int | None = field(default=None, metadata=checks.FITS | checks.POSITIVE)
    """Window of self-attention: a position attends only to positions at a smaller distance than
    this value, on both sides in the encoder and to the left in the decoder (restricted
    self-attention, section 4). None means no limit."""
    attention_kind: str = "scaled_dot_product"
    """Kind of attention, here by the score of a query q and a key k: scaled_dot_product is q k /
    sqrt(d_k), dot_product is q k, and additive is v tanh(q + k) with a learned v (section 3.2.1). A
    config file can register other kinds (t2t_jax.AttentionKind)."""
    attention_bias: bool = False
    """Add a learned bias to the attention projections; the paper has no bias."""
    query_key_norm: bool = False
    """Normalize the queries and keys of each head (Henry et al. 2020, Dehghani et al. 2023)."""
    d_ff: int = field(default=2048, metadata=checks.SIZE)
    """Hidden width of the feed-forward network (section 3.3). A gated network has three matrices
    instead of two, so 2/3 of the width gives the same number of parameters."""
    feed_forward: str = "relu"
    """Activation of the feed-forward network: relu (the paper), gelu, gelu_tanh or silu; or a gated
    network without biases (Shazeer 2020): glu, reglu, geglu, geglu_tanh or swiglu. A config file
    can register other functions (t2t_jax.register)."""
    norm: str = "layer"
    """Normalization: layer normalization (layer, the paper) or RMSNorm (rms, Zhang and Sennrich
    2019). A config file can register other functions (t2t_jax.register)."""
    norm_epsilon: float = field(default=1e-6, metadata=checks.within(1e-12, 1))
    """Epsilon that the normalization adds to the variance or the mean square."""
    parametrisation: Parametrisation = "standard"
    """Scaling of initial values, factors and learning rates with the network size: as in the paper
    (standard); so that one learning rate is best for every width (mup: Yang et al. 2021); or for
    every width and depth (complete: Dey et al. 2025)."""
    base_width: int = field(default=512, metadata=checks.SIZE | _IN_MUP)
    """Width d_model at which mup equals the standard parametrisation."""
    base_depth: int = field(default=6, metadata=checks.SIZE | _IN_COMPLETE)
    """Number of layers per stack at which the parametrisation complete does not scale the residual
    connections."""
    norm_order: Literal["post", "pre", "deep"] = "post"
    """Position of the normalization: "post", after the residual sum (the paper, section 3.1);
    "pre", before the sub-layer; or "deep", as "post" with residuals scaled by depth (DeepNorm, Wang
    et al. 2022)."""
    position: tables.PositionName = "sinusoidal"
    """Position scheme. Added to embeddings: fixed sinusoids (section 3.5), the sinusoids of
    tensor2tensor, or a learned table (Table 3, row E). In self-attention: rotary positions (Su et
    al. 2021), ALiBi (Press et al. 2022) or the learned bias of T5 (Raffel et al. 2020)."""
    first_position: int = field(default=0, metadata=_SINUSOIDS | checks.within(0, 1024))
    """Position of the first token, for sinusoidal positions (the paper: 0; M2M100: 2)."""
    rotary_base: float = field(default=10_000.0, metadata=_ROTARY | checks.FITS | checks.within(2))
    """Base of the wavelengths of rotary positions."""
    rotary_scale: float = field(default=1.0, metadata=_ROTARY | checks.SIZE)
    """Factor by which rotary positions extend the sequence length beyond that of training."""
    rotary_scaling: tables.ScalingName = field(default="linear", metadata=_ROTARY)
    """Method of rotary_scale: "linear" divides the positions (Chen et al. 2023); "ntk" raises the
    base, which keeps close positions distinguishable ("NTK-aware")."""
    embedding_norm: bool = False
    """Normalize the sum of embedding and position before dropout."""
    output_bias: bool = False
    """Add a learned bias to the logits; the paper has no bias."""
    dropout_rate: float = field(default=0.1, metadata=_RATE)
    """Dropout rate P_drop (section 5.4) of every sub-layer output and of the sum of embedding and
    position."""
    attention_dropout_rate: float = field(default=0.0, metadata=_RATE)
    """Dropout rate of the attention weights; the paper uses no such dropout."""
    activation_dropout_rate: float = field(default=0.0, metadata=_RATE)
    """Dropout rate of the hidden feed-forward activations; the paper uses no such dropout."""
    compute_dtype: Literal["float32", "bfloat16", "auto"] = field(
        default="auto", metadata=checks.left_open("auto") | checks.NOT_EXPORTED
    )
    """Dtype of activations and matmuls; parameters, softmax and loss stay float32. "auto" selects
    bfloat16 if a new run starts on devices that are faster with bfloat16, or else float32."""

    section = "model"  # the section name in errors and flags

    def __post_init__(self) -> None:
        """Check every field."""
        super().__post_init__()
        self._check_heads()
        self._check_positions()
        self._check_parametrisation()

    def _check_heads(self) -> None:
        _ = self.attention  # its constructor checks the sizes
        names = [f"{part}_heads" for part in PARTS if self._heads_of(part) is not None]
        for name in names:
            checks.require(
                getattr(self, name) <= self.num_heads,
                f"model.{name}={getattr(self, name)} is more than model.num_heads="
                f"{self.num_heads}; raise num_heads, and set d_k and d_v",
            )
        checks.require(
            not names or self.num_kv_heads in (None, self.num_heads),
            f"model.{names and names[0]} and model.num_kv_heads cannot be given together; leave "
            "one of them out",
        )
        checks.require(
            not names or self.positions.bias is None,
            f"model.{names and names[0]} is not for model.position={self.position!r}, which has "
            "parameters for each of num_heads heads; choose another position",
        )

    def _check_positions(self) -> None:
        checks.require(
            self.positions.sinusoids is None or self.d_model % 2 == 0,
            f"d_model={self.d_model} is odd, but sinusoidal positions come in pairs of sine and "
            "cosine; use an even d_model or position='learned'",
        )
        checks.require(
            not self.positions.turns or self.key_size % 2 == 0,
            f"d_k={self.key_size} is odd, but rotary positions rotate pairs of values; use an even "
            "d_k or another position",
        )

    def _check_parametrisation(self) -> None:
        label = f"model.parametrisation={self.parametrisation!r}"
        checks.require(
            self.parametrisation != "complete" or self.norm_order == "pre",
            f"{label} is not for model.norm_order={self.norm_order!r}, whose norms undo a factor "
            "on residual connections; set model.norm_order='pre', or use 'mup'",
        )
        checks.require(
            self.parametrisation == "standard"
            or self.key_size == _BASE_D_K
            or self.attention.kind.is_dot_product,
            f"{label} has no rule for model.attention_kind={self.attention_kind!r} with heads of "
            f"d_k={self.key_size}; set model.d_k={_BASE_D_K}, and vary model.num_heads",
        )

    @property
    @abstractmethod
    def stacks(self) -> tuple[Stack, ...]:
        """Return the stacks of the network (section 3.1)."""

    @property
    @abstractmethod
    def embeddings(self) -> dict[Side, str]:
        """Return the matrix names of source embedding, target embedding and output projection.

        Networks that share matrices repeat names; networks without tokens have no embeddings.
        """

    @property
    @abstractmethod
    def num_positions(self) -> int:
        """Return the number of entries of a learned position table."""

    @property
    def input_projection(self) -> InputProjection:
        """Return the size of the input projection, for sources that are not tokens."""
        return InputProjection()

    @property
    def longest_sentence(self) -> float:
        """Return the maximum sentence length in tokens; infinity without a position table."""
        return self.num_positions if self.positions.has_table else checks.INFINITY

    @cached_property
    def embedding_scale(self) -> float:
        """Return the factor on embeddings."""
        return 1.0

    @cached_property
    def scaling_width(self) -> int:
        """Return the width in the embedding scale and the learning rate of equation 3.

        The width is d_model, or base_width if the parametrisation is not standard.
        """
        return self.d_model if self.parametrisation == "standard" else self.base_width

    @cached_property
    def width_multiple(self) -> float:
        """Return d_model divided by `scaling_width`."""
        return self.d_model / self.scaling_width

    def depth_multiple(self, depth: int) -> float:
        """Return depth / base_depth, or 1 unless the parametrisation is "complete"."""
        return depth / self.base_depth if self.parametrisation == "complete" else 1.0

    @property
    def decodes(self) -> bool:
        """Return whether the network generates targets token by token."""
        return any(stack.reads_target for stack in self.stacks)

    @cached_property
    def own_entries(self) -> dict[str, int]:
        """Return embedding sizes that differ from the size of the target vocabulary, by name."""
        return {}

    def entries(self, vocab_size: int) -> dict[str, int]:
        """Return the number of entries of each matrix of `embeddings`, by name.

        Args:
          vocab_size: the size of the target vocabulary.
        """
        return dict.fromkeys(self.embeddings.values(), vocab_size) | self.own_entries

    @property
    def key_size(self) -> int:
        """Return d_k, or d_model / num_heads if d_k is None."""
        return self.d_k or self.d_model // self.num_heads

    @property
    def value_size(self) -> int:
        """Return d_v, or d_model / num_heads if d_v is None."""
        return self.d_v or self.d_model // self.num_heads

    @cached_property
    def dtype(self) -> Literal["float32", "bfloat16"]:
        """Return `compute_dtype`; float32 for an "auto" that is still unresolved."""
        return "float32" if self.compute_dtype == "auto" else self.compute_dtype

    @cached_property
    def is_gated(self) -> bool:
        """Return whether the feed-forward network is gated: three matrices, no biases."""
        return tables.ACTIVATIONS[self.feed_forward].is_gated

    @property
    def feed_forward_matrices(self) -> int:
        """Return the number of `[d_model, d_ff]` matrices of a feed-forward network."""
        return 3 if self.is_gated else 2

    @property
    def feed_forward_weights(self) -> int:
        """Count the matrix parameters of a feed-forward network."""
        return self.feed_forward_matrices * self.d_model * self.d_ff

    @cached_property
    def positions(self) -> tables.PositionFacts:
        """Return the properties of the position scheme."""
        return tables.POSITIONS[self.position]

    @cached_property
    def normalization(self) -> NormConfig:
        """Return the config of all normalizations of the network."""
        return NormConfig(self.norm, self.norm_epsilon)

    @property
    def attention(self) -> AttentionConfig:
        """Return the config of attention with `num_heads` heads (section 3.2.3)."""
        return AttentionConfig(
            self.d_model,
            self.num_heads,
            self.d_k or 0,
            self.d_v or 0,
            self.attention_dropout_rate,
            self.num_kv_heads,
            self.attention_kind,
            self.attention_bias,
            self.normalization if self.query_key_norm else None,
            base_d_k=0 if self.parametrisation == "standard" else _BASE_D_K,
        )

    def attention_of(self, part: Part) -> AttentionConfig:
        """Return the config of one of the three attentions.

        Args:
          part: "encoder" or "decoder" for their self-attention; "cross" for cross-attention.
        """
        heads = self._heads_of(part)
        return self.attention if heads is None else replace(self.attention, num_heads=heads)

    def _heads_of(self, part: Part) -> int | None:
        return getattr(self, f"{part}_heads", None)

    def deep_norm(self, scale: int, gain: int) -> tuple[float, float]:
        """Return the constants alpha and beta of DeepNorm, or (1, 1) for other norm orders.

        Alpha scales residuals, and beta scales initial weights (Wang et al. 2022, figure 2).

        Args:
          scale: alpha^4, from the numbers of layers.
          gain: beta^(-4), from the numbers of layers.
        """
        return (scale ** (1 / 4), gain ** (-1 / 4)) if self.norm_order == "deep" else (1.0, 1.0)
