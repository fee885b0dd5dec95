"""The part of a network's config that all families share (section 3 of the paper)."""

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
"""The attentions of the paper: self-attention in two stacks, and cross-attention."""
_RATE = checks.NOT_EXPORTED | checks.within(0, 0.99)
_ROTARY = checks.read_where(lambda model: model.positions.turns)
_SINUSOIDS = checks.read_where(lambda model: model.positions.sinusoids is not None)
_IN_MUP = checks.read_where(lambda model: model.parametrisation != "standard")
_IN_COMPLETE = checks.read_where(lambda model: model.parametrisation == "complete")
_BASE_D_K = 64  # d_k of the paper, at which scores of attention are alike in all parametrisations


class Stack(NamedTuple):
    """A stack of equal layers: its depth, its inputs, and the constants of its residuals."""

    num_layers: int
    """Layers N."""
    reads_source: bool
    """Whether the tokens of sources pass through the stack."""
    reads_target: bool
    """Whether the tokens of targets pass through the stack."""
    self_attention: AttentionConfig
    """The self-attention of each layer."""
    cross_attention: AttentionConfig | None
    """The attention of each layer to the output of the encoder; None where there is none."""
    residual_scale: float = 1.0
    """Factor alpha of DeepNorm on the input that a residual connection adds to a sub-layer."""
    initial_gain: float = 1.0
    """Factor beta of DeepNorm on the first values of some matrices; see `modules.layers`."""
    is_causal: bool = False
    """Whether no position attends to a later one."""
    depth_multiple: float = 1.0
    """How many times as deep the stack is as the base of the parametrisation "complete"."""

    @property
    def attends_to_source(self) -> bool:
        """Return whether each layer also attends to the output of the encoder."""
        return self.cross_attention is not None

    @property
    def attentions(self) -> list[AttentionConfig]:
        """Return the attentions of each layer: self-attention, then cross-attention if any."""
        cross = self.cross_attention
        return [self.self_attention] if cross is None else [self.self_attention, cross]


class InputProjection(NamedTuple):
    """The size of what a network reads another input than tokens with."""

    weights: int = 0
    """Numbers of its matrix, which every position of a source meets."""
    vectors: int = 0
    """Other numbers that are learned with it, such as biases."""


@dataclass(frozen=True)
class ModelConfig(checks.Section, ABC):
    """The network: section 3 of the paper, with the options of its ablations and of later work.

    These are the fields of all networks. Each family of networks has a config of its own, with the
    fields that it alone reads; see `config.families`.
    """

    architecture: str = ""
    """Family of the network (`config.families`), each of which has fields of its own: encoder and
    decoder (the paper); the decoder alone, which reads source and target as one sequence (Liu et
    al. 2018), as GPT does; the encoder alone, as BERT; or such an encoder of images, as ViT."""
    d_model: int = field(default=512, metadata=checks.SIZE)
    """Width of every layer's output (section 3.1)."""
    num_heads: int = field(default=8, metadata=checks.SIZE)
    """Attention heads h (section 3.2.2)."""
    d_k: int | None = field(default=None, metadata=checks.FITS | checks.POSITIVE)
    """Width of a head's queries and keys; None means d_model / num_heads, as in the paper."""
    d_v: int | None = field(default=None, metadata=checks.FITS | checks.POSITIVE)
    """Width of a head's values; None means d_model / num_heads, as in the paper."""
    num_kv_heads: int | None = field(default=None, metadata=checks.POSITIVE)
    """Heads of keys and values, each shared by equally many of the num_heads heads of queries: 1 is
    multi-query attention (Shazeer 2019), more are grouped-query attention (Ainslie et al. 2023).
    None means num_heads, as in the paper."""
    attention_window: int | None = field(default=None, metadata=checks.FITS | checks.POSITIVE)
    """Distance below which self-attention reaches other positions: on both sides in the encoder, to
    the left in the decoder (restricted self-attention, section 4). None means no bound."""
    score_function: str = "scaled_dot_product"
    """How well a query and a key match: scaled_dot_product is q k / sqrt(d_k), dot_product q k,
    additive v tanh(q + k) with a learned v (section 3.2.1); or a name that a config file gives to a
    function of its own (t2t_jax.register_score_function)."""
    attention_bias: bool = False
    """Add a learned bias in the projections of attention; the paper has none."""
    query_key_norm: bool = False
    """Normalise the queries and the keys of each head (Henry et al. 2020, Dehghani et al. 2023)."""
    d_ff: int = field(default=2048, metadata=checks.SIZE)
    """Width within the feed-forward network (section 3.3). A gated network has three matrices in
    place of two: 2/3 of the width keeps the number of parameters."""
    feed_forward: str = "relu"
    """The network's activation, relu (the paper), gelu, gelu_tanh or silu; or how its gate works
    (Shazeer 2020): glu, reglu, geglu, geglu_tanh and swiglu have no biases; or a name that a config
    file gives to a function of its own (t2t_jax.register_activation)."""
    norm: str = "layer"
    """Layer normalisation (the paper: layer), or by the root mean square (rms, Zhang and Sennrich
    2019); or a name that a config file gives to a function of its own
    (t2t_jax.register_normalization)."""
    norm_epsilon: float = field(default=1e-6, metadata=checks.within(1e-12, 1))
    """Number that a norm adds to the variance or the mean square."""
    parametrisation: Parametrisation = "standard"
    """How first values, factors and learning rates depend on the size of the network: as in the
    paper (standard); so that the best learning rate stays that of base_width in networks of every
    width (mup: Yang et al. 2021); or of base_depth too (complete: Dey et al. 2025)."""
    base_width: int = field(default=512, metadata=checks.SIZE | _IN_MUP)
    """The d_model at which the parametrisation mup equals the standard one."""
    base_depth: int = field(default=6, metadata=checks.SIZE | _IN_COMPLETE)
    """Layers of a stack whose residual connections the parametrisation complete leaves as they
    are."""
    norm_order: Literal["post", "pre", "deep"] = "post"
    """Place of the norm: "post", after the residual sum (the paper, section 3.1); "pre", before the
    sub-layer; or "deep", as "post" with residuals scaled by depth (DeepNorm, Wang et al. 2022)."""
    position: tables.PositionName = "sinusoidal"
    """Fixed sinusoids (section 3.5), tensor2tensor's own, or a learned table (Table 3, row E),
    added to embeddings; in self-attention rotary positions (Su et al. 2021), ALiBi (Press et al.
    2022) or T5's learned bias (Raffel et al. 2020); or none."""
    first_position: int = field(default=0, metadata=_SINUSOIDS | checks.within(0, 1024))
    """Position of the first token, where positions are sinusoids (the paper: 0; M2M100: 2)."""
    rotary_base: float = field(default=10_000.0, metadata=_ROTARY | checks.FITS | checks.within(2))
    """Base of the wavelengths of rotary positions."""
    rotary_scale: float = field(default=1.0, metadata=_ROTARY | checks.SIZE)
    """Factor by which texts may be longer than those of training, for rotary positions."""
    rotary_scaling: tables.ScalingName = field(default="linear", metadata=_ROTARY)
    """How rotary_scale works: "linear" divides the positions (Chen et al. 2023), "ntk" raises the
    base so that near positions stay apart ("NTK-aware")."""
    embedding_norm: bool = False
    """Normalise the sum of embedding and position, ahead of its dropout."""
    output_bias: bool = False
    """Add a learned bias to the logits; the paper has none."""
    dropout_rate: float = field(default=0.1, metadata=_RATE)
    """Dropout rate P_drop (section 5.4), on every sub-layer's output and on the sum of embedding
    and position."""
    attention_dropout_rate: float = field(default=0.0, metadata=_RATE)
    """Dropout on the attention weights; the paper has none."""
    activation_dropout_rate: float = field(default=0.0, metadata=_RATE)
    """Dropout on the feed-forward network's hidden activations; the paper has none."""
    compute_dtype: Literal["float32", "bfloat16", "auto"] = field(
        default="auto", metadata=checks.left_open("auto") | checks.NOT_EXPORTED
    )
    """Dtype of activations and matrix products; parameters, softmax and loss stay float32. "auto"
    is bfloat16 where a new run starts on devices that are faster with it, and else float32."""

    section = "model"  # the name that errors give to these fields, as flags do

    def __post_init__(self) -> None:
        """Check every field."""
        super().__post_init__()
        self._check_heads()
        self._check_positions()
        self._check_parametrisation()

    def _check_heads(self) -> None:
        _ = self.attention  # which has checks of its own
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
            "numbers for each of num_heads heads; choose another position",
        )

    def _check_positions(self) -> None:
        checks.require(
            self.positions.sinusoids is None or self.d_model % 2 == 0,
            f"d_model={self.d_model} is odd, but sinusoidal positions come in pairs of sine and "
            "cosine; use an even d_model or position='learned'",
        )
        checks.require(
            not self.positions.turns or self.key_size % 2 == 0,
            f"d_k={self.key_size} is odd, but rotary positions turn pairs of numbers; use an even "
            "d_k or another position",
        )

    def _check_parametrisation(self) -> None:
        given = f"model.parametrisation={self.parametrisation!r}"
        checks.require(
            self.parametrisation != "complete" or self.norm_order == "pre",
            f"{given} is not for model.norm_order={self.norm_order!r}, whose norms undo a factor "
            "on residual connections; set model.norm_order='pre', or use 'mup'",
        )
        checks.require(
            self.parametrisation == "standard"
            or self.key_size == _BASE_D_K
            or self.score_function in ("scaled_dot_product", "dot_product"),
            f"{given} has no rule for model.score_function={self.score_function!r} with heads of "
            f"d_k={self.key_size}; set model.d_k={_BASE_D_K}, and vary model.num_heads",
        )

    @property
    @abstractmethod
    def stacks(self) -> tuple[Stack, ...]:
        """Return the stacks: encoder and decoder (section 3.1), or the one the network has."""

    @property
    @abstractmethod
    def embeddings(self) -> dict[Side, str]:
        """Return the names of the matrices of source and target embedding and output projection.

        A network of one stack has one embedding, and one that reads no tokens has none.
        """

    @property
    @abstractmethod
    def num_positions(self) -> int:
        """Return the rows of a learned position table."""

    @property
    def input_projection(self) -> InputProjection:
        """Return the parameters by which sources are read, if these are no tokens."""
        return InputProjection()

    @property
    def longest_sentence(self) -> float:
        """Return the number of tokens of the longest sentence that the model has positions for."""
        return self.num_positions if self.positions.has_table else checks.INFINITY

    @cached_property
    def embedding_scale(self) -> float:
        """Return the factor on embeddings, which is 1 for networks that have none."""
        return 1.0

    @cached_property
    def scaling_width(self) -> int:
        """Return the width that sets the size of embeddings and the learning rate of equation 3.

        It is d_model, or base_width in parametrisations whose settings hold for every width.
        """
        return self.d_model if self.parametrisation == "standard" else self.base_width

    @cached_property
    def width_multiple(self) -> float:
        """Return how many times as wide the network is as the base of its parametrisation."""
        return self.d_model / self.scaling_width

    def depth_multiple(self, depth: int) -> float:
        """Return how many times as deep a stack is as the base of the parametrisation "complete".

        In other parametrisations it is 1.
        """
        return depth / self.base_depth if self.parametrisation == "complete" else 1.0

    @property
    def decodes(self) -> bool:
        """Return whether the network predicts targets one token after the other."""
        return any(stack.reads_target for stack in self.stacks)

    @cached_property
    def own_entries(self) -> dict[str, int]:
        """Return the rows of the matrices of `embeddings` that differ from the vocabulary."""
        return {}

    def entries(self, vocab_size: int) -> dict[str, int]:
        """Return the number of rows of each matrix of `embeddings`, by its name.

        Args:
          vocab_size: entries of the vocabulary for targets.
        """
        return dict.fromkeys(self.embeddings.values(), vocab_size) | self.own_entries

    @property
    def key_size(self) -> int:
        """Return d_k: the value of the field, or if that is None, d_model / num_heads."""
        return self.d_k or self.d_model // self.num_heads

    @property
    def value_size(self) -> int:
        """Return d_v: the value of the field, or if that is None, d_model / num_heads."""
        return self.d_v or self.d_model // self.num_heads

    @cached_property
    def dtype(self) -> Literal["float32", "bfloat16"]:
        """Return `compute_dtype`, with float32 for an "auto" that no run has settled."""
        return "float32" if self.compute_dtype == "auto" else self.compute_dtype

    @cached_property
    def is_gated(self) -> bool:
        """Return whether the feed-forward network has a gate: a third matrix, and no biases."""
        return tables.ACTIVATIONS[self.feed_forward].is_gated

    @property
    def feed_forward_matrices(self) -> int:
        """Return the number of matrices of a feed-forward network, each of d_model by d_ff."""
        return 3 if self.is_gated else 2

    @property
    def feed_forward_weights(self) -> int:
        """Count the weights in these matrices, each a multiply-add of every position."""
        return self.feed_forward_matrices * self.d_model * self.d_ff

    @cached_property
    def positions(self) -> tables.PositionFacts:
        """Return the facts of the scheme of positions that the field `position` names."""
        return tables.POSITIONS[self.position]

    @cached_property
    def normalization(self) -> NormConfig:
        """Return the config that all norms of the network share."""
        return NormConfig(self.norm, self.norm_epsilon)

    @property
    def attention(self) -> AttentionConfig:
        """Return the config of multi-head attention with `num_heads` heads (section 3.2.3)."""
        return AttentionConfig(
            self.d_model,
            self.num_heads,
            self.d_k or 0,
            self.d_v or 0,
            self.attention_dropout_rate,
            self.num_kv_heads,
            self.score_function,
            self.attention_bias,
            self.normalization if self.query_key_norm else None,
            base_d_k=0 if self.parametrisation == "standard" else _BASE_D_K,
        )

    def attention_of(self, part: Part) -> AttentionConfig:
        """Return the config of an attention with the number of heads of its kind.

        Args:
          part: "encoder" or "decoder" for their self-attention; "cross" for cross-attention.
        """
        heads = self._heads_of(part)
        return self.attention if heads is None else replace(self.attention, num_heads=heads)

    def _heads_of(self, part: Part) -> int | None:
        """Return the heads that a family gives to an attention; None means `num_heads`."""
        return getattr(self, f"{part}_heads", None)

    def deep_norm(self, scale: int, gain: int) -> tuple[float, float]:
        """Return alpha and beta of DeepNorm, scale^(1/4) and gain^(-1/4); 1 in other orders.

        Args:
          scale: the multiple of the depth of which alpha is a root (Wang et al. 2022, figure 2).
          gain: the multiple of the depth of which 1 / beta is a root.
        """
        return (scale ** (1 / 4), gain ** (-1 / 4)) if self.norm_order == "deep" else (1.0, 1.0)
