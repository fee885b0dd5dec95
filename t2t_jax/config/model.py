"""The config of the network (section 3 of the paper)."""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from t2t_jax.config.attention import AttentionConfig, NormConfig
from t2t_jax.config.checks import (
    INFINITY,
    check_fields,
    check_fits,
    check_positive,
    check_range,
    require,
)
from t2t_jax.config.fields import NOT_EXPORTED, added_later, left_open, read_where
from t2t_jax.config.tables import ACTIVATIONS, POSITIONS, ROTARY_SCALINGS, PositionFacts

StartToken: TypeAlias = Literal["begin", "end", "padding"]
NormOrder: TypeAlias = Literal["post", "pre", "deep"]
Architecture: TypeAlias = Literal["encoder_decoder", "decoder_only", "encoder_only"]
_ROTARY = read_where(lambda model: model.positions.turns)
_IMAGES = read_where(lambda model: model.patch_size is not None)
if TYPE_CHECKING:
    _Position: TypeAlias = str
    _RotaryScaling: TypeAlias = str
else:
    _Position, _RotaryScaling = POSITIONS.choice, ROTARY_SCALINGS.choice


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

    @property
    def attends_to_source(self) -> bool:
        """Return whether each layer also attends to the output of the encoder."""
        return self.cross_attention is not None

    @property
    def attentions(self) -> list[AttentionConfig]:
        """Return the attentions of each layer: self-attention, then cross-attention if any."""
        cross = self.cross_attention
        return [self.self_attention] if cross is None else [self.self_attention, cross]


@dataclass(frozen=True)
class ModelConfig:
    """The network: section 3 of the paper, with the options of its ablations and of later work."""

    architecture: Architecture = field(
        default="encoder_decoder", metadata=added_later(before="encoder_decoder")
    )
    """Encoder and decoder (the paper); the decoder alone, which reads source and target as one
    sequence (Liu et al. 2018), as GPT does; or the encoder alone, as BERT."""
    prefix_attention: bool = field(default=False, metadata=added_later(before=False))
    """For the decoder alone: let the tokens of a source attend to the whole source, and not only to
    the tokens before them (Raffel et al. 2020, section 3.2.1)."""
    d_model: int = 512
    """Width of every layer's output (section 3.1)."""
    num_heads: int = 8
    """Attention heads h (section 3.2.2)."""
    d_k: int | None = None
    """Width of a head's queries and keys; None means d_model / num_heads, as in the paper."""
    d_v: int | None = None
    """Width of a head's values; None means d_model / num_heads, as in the paper."""
    num_kv_heads: int | None = field(default=None, metadata=added_later(before=None))
    """Heads of keys and values, each shared by equally many of the num_heads heads of queries: 1 is
    multi-query attention (Shazeer 2019), more are grouped-query attention (Ainslie et al. 2023).
    None means num_heads, as in the paper."""
    encoder_heads: int | None = field(default=None, metadata=added_later(before=None))
    """Heads of each layer's self-attention in the encoder, where they are fewer than num_heads, as
    after pruning; None means num_heads. The width of a head stays that of num_heads."""
    decoder_heads: int | None = field(default=None, metadata=added_later(before=None))
    """Heads of each layer's self-attention in the decoder; see encoder_heads."""
    cross_heads: int | None = field(default=None, metadata=added_later(before=None))
    """Heads of the decoder's attention to the encoder's output; see encoder_heads."""
    attention_window: int | None = field(default=None, metadata=added_later(before=None))
    """Distance below which self-attention reaches other positions: on both sides in the encoder, to
    the left in the decoder (restricted self-attention, section 4). None means no bound."""
    score_function: str = field(
        default="scaled_dot_product", metadata=added_later(before="scaled_dot_product")
    )
    """How well a query and a key match: scaled_dot_product is q k / sqrt(d_k), dot_product q k,
    additive v tanh(q + k) with a learned v (section 3.2.1); or a name that a config file gives to a
    function of its own (t2t_jax.register_score_function)."""
    attention_bias: bool = field(default=False, metadata=added_later(before=False))
    """Add a learned bias in the projections of attention; the paper has none."""
    query_key_norm: bool = field(default=False, metadata=added_later(before=False))
    """Normalise the queries and the keys of each head (Henry et al. 2020, Dehghani et al. 2023)."""
    d_ff: int = 2048
    """Inner width of the position-wise feed-forward network (section 3.3). A gated network has
    three matrices in place of two: 2/3 of the width keeps the number of parameters."""
    feed_forward: str = field(default="relu", metadata=added_later(before="relu"))
    """The network's activation, relu (the paper), gelu, gelu_tanh or silu; or how its gate works
    (Shazeer 2020): glu, reglu, geglu and swiglu have no biases; or a name that a config file gives
    to a function of its own (t2t_jax.register_activation)."""
    num_encoder_layers: int = field(
        default=6, metadata=read_where(lambda model: model.architecture != "decoder_only")
    )
    """Encoder layers N."""
    num_decoder_layers: int = field(
        default=6, metadata=read_where(lambda model: model.architecture != "encoder_only")
    )
    """Decoder layers N."""
    norm: str = field(default="layer", metadata=added_later(before="layer"))
    """Layer normalisation (the paper: layer), or by the root mean square (rms, Zhang and Sennrich
    2019); or a name that a config file gives to a function of its own
    (t2t_jax.register_normalization)."""
    norm_epsilon: float = field(default=1e-6, metadata=added_later(before=1e-6))
    """Number that a norm adds to the variance or the mean square."""
    norm_order: NormOrder = "post"
    """Place of the norm: "post", after the residual sum (the paper, section 3.1); "pre", before the
    sub-layer; or "deep", as "post" with residuals scaled by depth (DeepNorm, Wang et al. 2022)."""
    position: _Position = "sinusoidal"
    """Fixed sinusoids (section 3.5), tensor2tensor's own, or a learned table (Table 3, row E),
    added to embeddings; in self-attention rotary positions (Su et al. 2021), ALiBi (Press et al.
    2022) or T5's learned bias (Raffel et al. 2020); or none."""
    first_position: int = field(
        default=0,
        metadata=added_later(before=0)
        | read_where(lambda model: model.positions.sinusoids is not None),
    )
    """Position of the first token, where positions are sinusoids (the paper: 0; fairseq: 2)."""
    max_positions: int = field(
        default=1024,
        metadata=read_where(lambda model: model.positions.has_table and not model.patch_size),
    )
    """Rows of the learned position table; other positions have no limit and do not read it."""
    rotary_base: float = field(default=10_000.0, metadata=added_later(before=10_000.0) | _ROTARY)
    """Base of the wavelengths of rotary positions."""
    rotary_scale: float = field(default=1.0, metadata=added_later(before=1.0) | _ROTARY)
    """Factor by which texts may be longer than those of training, for rotary positions."""
    rotary_scaling: _RotaryScaling = field(
        default="linear", metadata=added_later(before="linear") | _ROTARY
    )
    """How rotary_scale works: "linear" divides the positions (Chen et al. 2023), "ntk" raises the
    base so that near positions stay apart ("NTK-aware")."""
    share_embeddings: bool = True
    """Use one matrix for source and target embedding and output projection (section 3.4)."""
    source_vocab_size: int | None = field(
        default=None, metadata=added_later(before=None) | left_open(None)
    )
    """Where share_embeddings is false: entries of the source embedding, if the vocabulary has other
    entries for sources than for targets; None means as many as for targets, or for a model that
    predicts labels as many as its vocabulary has for text."""
    share_target_embedding: bool = field(default=False, metadata=added_later(before=False))
    """Where share_embeddings is false: one matrix for target embedding and output projection."""
    scale_embeddings: bool = field(default=True, metadata=added_later(before=True))
    """Multiply embeddings by sqrt(d_model) (section 3.4)."""
    embedding_norm: bool = field(default=False, metadata=added_later(before=False))
    """Normalise the sum of embedding and position, ahead of its dropout."""
    start_token: StartToken = field(
        default="begin",
        metadata=added_later(before="begin")
        | read_where(lambda model: model.architecture != "encoder_only"),
    )
    """Token before the first token of a target: the id of begin, or, in models that come from
    other toolkits, that of the end of a sentence (fairseq) or of padding (Marian)."""
    output_bias: bool = field(default=False, metadata=added_later(before=False))
    """Add a learned bias to the logits; the paper has none."""
    output_transform: bool = field(default=False, metadata=added_later(before=False))
    """For the encoder alone: a linear layer, the activation of feed_forward and a norm ahead of the
    output projection, as BERT has them."""
    patch_size: int | None = field(default=None, metadata=added_later(before=None))
    """For the encoder alone: side, in pixels, of the square patches of images, which are read in
    place of tokens, behind a learned class token (ViT, Dosovitskiy et al. 2021)."""
    image_size: int = field(default=224, metadata=added_later(before=224) | _IMAGES)
    """Pixels of an image on each side; a model without patch_size does not read it."""
    image_channels: int = field(default=3, metadata=added_later(before=3) | _IMAGES)
    """Numbers of a pixel: 3 for colours, 1 for grey."""
    dropout_rate: float = field(default=0.1, metadata=NOT_EXPORTED)
    """P_drop: on every sub-layer's output and on the sum of embedding and position (5.4)."""
    attention_dropout_rate: float = field(default=0.0, metadata=NOT_EXPORTED)
    """Dropout on the attention weights; the paper has none."""
    activation_dropout_rate: float = field(default=0.0, metadata=NOT_EXPORTED)
    """Dropout on the feed-forward network's hidden activations; the paper has none."""
    compute_dtype: Literal["float32", "bfloat16", "auto"] = field(
        default="auto", metadata=left_open("auto") | NOT_EXPORTED
    )
    """Dtype of activations and matrix products; parameters, softmax and loss stay float32. "auto"
    is bfloat16 where a new run starts on devices that are faster with it, and else float32."""

    def __post_init__(self) -> None:
        """Check every field."""
        check_fields(self)
        sizes = ("d_model", "num_heads", "d_ff", "max_positions")
        check_range(self, 1, INFINITY, *sizes, "num_encoder_layers", "num_decoder_layers")
        check_fits(self, *sizes, "num_encoder_layers", "num_decoder_layers", "d_k", "d_v")
        rates = "dropout_rate", "attention_dropout_rate", "activation_dropout_rate"
        check_range(self, 0, 0.99, *rates)
        check_range(self, 1e-12, 1, "norm_epsilon")
        for name in ("d_k", "d_v"):
            size = getattr(self, name)
            require(size is None or size >= 1, f"{name}={size} is not positive")
            require(
                size is not None or self.d_model % self.num_heads == 0,
                f"d_model={self.d_model} is not divisible by num_heads={self.num_heads}; "
                "set d_k and d_v",
            )
        self._check_architecture()
        self._check_heads()
        self._check_positions()
        check_positive(self, "source_vocab_size")
        check_fits(self, "source_vocab_size")
        require(
            not self.share_embeddings or self.source_vocab_size is None,
            f"source_vocab_size={self.source_vocab_size} is for a model whose sources have an "
            "embedding of their own; set share_embeddings=False",
        )

    def _check_architecture(self) -> None:
        kind = self.architecture
        require(
            kind == "decoder_only" or not self.prefix_attention,
            f"model.prefix_attention is for model.architecture='decoder_only', not for {kind!r}, "
            "whose encoder attends to the whole source; leave it out",
        )
        require(
            kind != "decoder_only" or self.source_vocab_size is None,
            f"model.source_vocab_size={self.source_vocab_size} gives sources a vocabulary of their "
            "own, but model.architecture='decoder_only' reads source and target as one sequence; "
            "leave it out",
        )
        for name in ("output_transform", "patch_size"):
            require(
                kind == "encoder_only" or not getattr(self, name),
                f"model.{name} is for model.architecture='encoder_only', not for {kind!r}; leave "
                "it out",
            )
        self._check_images()

    def _check_images(self) -> None:
        sizes = "image_size", "image_channels"
        check_positive(self, "patch_size")
        check_range(self, 1, INFINITY, *sizes)
        check_fits(self, *sizes, "patch_size")
        size = self.patch_size
        if size is None:
            return
        require(
            self.image_size % size == 0,
            f"model.image_size={self.image_size} is not a multiple of model.patch_size={size}; "
            "choose a divisor",
        )
        require(
            not self.share_embeddings and self.source_vocab_size is None,
            "model.patch_size reads images, which have no vocabulary to share; set "
            "model.share_embeddings=False and leave model.source_vocab_size out",
        )

    def _check_heads(self) -> None:
        shared = self.num_kv_heads
        check_positive(self, "num_kv_heads", "attention_window")
        check_fits(self, "attention_window")
        require(
            shared is None or self.num_heads % shared == 0,
            f"model.num_heads={self.num_heads} is not a multiple of model.num_kv_heads={shared}, "
            "which share the heads equally; choose a divisor",
        )
        names = "encoder_heads", "decoder_heads", "cross_heads"
        check_positive(self, *names)
        check_fits(self, *names)
        others = [name for name in names if getattr(self, name) is not None]
        for name in others:
            require(
                getattr(self, name) <= self.num_heads,
                f"model.{name}={getattr(self, name)} is more than model.num_heads="
                f"{self.num_heads}; raise num_heads, and set d_k and d_v",
            )
        require(
            not others or shared in (None, self.num_heads),
            f"model.{others and others[0]} and model.num_kv_heads cannot be given together; leave "
            "one of them out",
        )
        require(
            not others or self.positions.bias is None,
            f"model.{others and others[0]} is not for model.position={self.position!r}, which has "
            "numbers for each of num_heads heads; choose another position",
        )

    def _check_positions(self) -> None:
        check_range(self, 0, 1024, "first_position")
        check_range(self, 1, INFINITY, "rotary_scale")
        check_range(self, 2, INFINITY, "rotary_base")
        check_fits(self, "rotary_scale", "rotary_base")
        require(
            self.positions.sinusoids is None or self.d_model % 2 == 0,
            f"d_model={self.d_model} is odd, but sinusoidal positions come in pairs of sine and "
            "cosine; use an even d_model or position='learned'",
        )
        require(
            not self.positions.turns or self.key_size % 2 == 0,
            f"d_k={self.key_size} is odd, but rotary positions turn pairs of numbers; use an even "
            "d_k or another position",
        )

    @property
    def key_size(self) -> int:
        """Return d_k: the value of the field, or if that is None, d_model / num_heads."""
        return self.d_k or self.d_model // self.num_heads

    @property
    def value_size(self) -> int:
        """Return d_v: the value of the field, or if that is None, d_model / num_heads."""
        return self.d_v or self.d_model // self.num_heads

    @property
    def dtype(self) -> Literal["float32", "bfloat16"]:
        """Return `compute_dtype`, with float32 for an "auto" that no run has settled."""
        return "float32" if self.compute_dtype == "auto" else self.compute_dtype

    @property
    def is_gated(self) -> bool:
        """Return whether the feed-forward network has a gate: a third matrix, and no biases."""
        return ACTIVATIONS[self.feed_forward].is_gated

    @property
    def positions(self) -> PositionFacts:
        """Return the facts of the scheme of positions that the field `position` names."""
        return POSITIONS[self.position]

    @property
    def normalization(self) -> NormConfig:
        """Return the config that all norms of the network share."""
        return NormConfig(self.norm, self.norm_epsilon)

    @property
    def attention(self) -> AttentionConfig:
        """Return the config of multi-head attention with `num_heads` heads (section 3.2.3)."""
        return AttentionConfig(
            self.d_model,
            self.num_heads,
            self.key_size,
            self.value_size,
            self.attention_dropout_rate,
            self.num_kv_heads,
            self.score_function,
            self.attention_bias,
            self.normalization if self.query_key_norm else None,
        )

    def attention_of(self, which: Literal["encoder", "decoder", "cross"]) -> AttentionConfig:
        """Return the config of an attention with the number of heads of its kind.

        Args:
          which: "encoder" or "decoder" for their self-attention; "cross" for cross-attention.
        """
        heads = {
            "encoder": self.encoder_heads,
            "decoder": self.decoder_heads,
            "cross": self.cross_heads,
        }[which]
        return self.attention if heads is None else replace(self.attention, num_heads=heads)

    @property
    def embeddings(self) -> dict[Literal["source", "target", "output"], str]:
        """Return the names of the matrices of source and target embedding and output projection.

        A network of one stack has one embedding.
        """
        if self.patch_size is not None:
            return {"output": "output_projection"}
        if self.share_embeddings or self.architecture != "encoder_decoder":
            shared = self.share_embeddings or self.share_target_embedding
            output = "embedding" if shared else "output_projection"
            return {"source": "embedding", "target": "embedding", "output": output}
        output = "target_embedding" if self.share_target_embedding else "output_projection"
        return {"source": "source_embedding", "target": "target_embedding", "output": output}

    def entries(self, vocab_size: int) -> dict[str, int]:
        """Return the number of rows of each matrix of `embeddings`, by its name.

        Args:
          vocab_size: entries of the vocabulary for targets.
        """
        rows = dict.fromkeys(self.embeddings.values(), vocab_size)
        if "source" in self.embeddings:
            rows[self.embeddings["source"]] = self.source_vocab_size or vocab_size
        return rows

    @property
    def num_patches(self) -> int:
        """Return the number of patches of an image; 0 for a model that reads tokens."""
        return 0 if self.patch_size is None else (self.image_size // self.patch_size) ** 2

    @property
    def patch_values(self) -> int:
        """Return how many numbers a patch has; 0 for a model that reads tokens."""
        return 0 if self.patch_size is None else self.patch_size**2 * self.image_channels

    @property
    def num_positions(self) -> int:
        """Return the rows of a learned position table: for images, patches and class token."""
        return self.num_patches + 1 if self.num_patches else self.max_positions

    @property
    def stacks(self) -> tuple[Stack, ...]:
        """Return the stacks: encoder and decoder (section 3.1), or the one the network has."""
        n, m = self.num_encoder_layers, self.num_decoder_layers
        itself, other = self.attention_of("decoder"), self.attention_of("cross")
        if self.architecture == "decoder_only":
            return (Stack(m, True, True, itself, None, *self._deep_norm(2 * m, 8 * m)),)
        if self.architecture == "encoder_only":
            constants = self._deep_norm(2 * n, 8 * n)
            return (Stack(n, True, False, self.attention_of("encoder"), None, *constants),)
        encoder, decoder = (1.0, 1.0), self._deep_norm(3 * m, 12 * m)
        if self.norm_order == "deep":
            encoder = 0.81 * (n**4 * m) ** (1 / 16), 0.87 * (n**4 * m) ** (-1 / 16)
        return (
            Stack(n, True, False, self.attention_of("encoder"), None, *encoder),
            Stack(m, False, True, itself, other, *decoder),
        )

    def _deep_norm(self, scale: int, gain: int) -> tuple[float, float]:
        """Return alpha and beta of DeepNorm, scale^(1/4) and gain^(-1/4); 1 in other orders."""
        return (scale ** (1 / 4), gain ** (-1 / 4)) if self.norm_order == "deep" else (1.0, 1.0)

    @property
    def longest_sentence(self) -> float:
        """Return the number of tokens of the longest sentence that the model has positions for.

        A decoder alone has one sequence for source and target, and half of its positions for each.
        """
        if not self.positions.has_table:
            return INFINITY
        return self.num_positions // (2 if self.architecture == "decoder_only" else 1)
