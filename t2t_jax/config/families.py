"""The families of networks: the fields and the stacks of each, and where its modules are.

A family is a config here, a module of `t2t_jax.modules`, and a row of `FAMILIES`; nothing else
knows it by its name. The value of `model.architecture` names the row. A family has the fields of
`ModelConfig` and of the classes here that it inherits from, so that an option of another family
cannot be written.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from t2t_jax.config.checks import FITS, INFINITY, POSITIVE, SIZE, left_open, read_where, require
from t2t_jax.config.model import PARTS, InputProjection, ModelConfig, Side, Stack, StartToken
from t2t_jax.config.registry import Rows
from t2t_jax.errors import UserError

_TABLE = read_where(lambda model: model.positions.has_table)


@dataclass(frozen=True)
class WithEncoder(ModelConfig):
    """The fields of networks that have an encoder."""

    num_encoder_layers: int = field(default=6, metadata=SIZE)
    """Encoder layers N."""
    encoder_heads: int | None = field(default=None, metadata=FITS | POSITIVE)
    """Heads of each layer's self-attention in the encoder, where they are fewer than num_heads, as
    after pruning; None means num_heads. The width of a head stays that of num_heads."""


@dataclass(frozen=True)
class WithDecoder(ModelConfig):
    """The fields of networks that have a decoder."""

    num_decoder_layers: int = field(default=6, metadata=SIZE)
    """Decoder layers N."""
    decoder_heads: int | None = field(default=None, metadata=FITS | POSITIVE)
    """Heads of each layer's self-attention in the decoder; see encoder_heads."""
    start_token: StartToken = "begin"
    """Token before the first token of a target: the id of begin, or, in models that come from
    other toolkits, that of the end of a sentence (BART) or of padding (Marian)."""


@dataclass(frozen=True)
class WithTokens(ModelConfig):
    """The fields of networks that read tokens."""

    max_positions: int = field(default=1024, metadata=SIZE | _TABLE)
    """Rows of the learned position table; other positions have no limit and do not read it."""
    share_embeddings: bool = True
    """Use one matrix for source and target embedding and output projection (section 3.4)."""
    scale_embeddings: bool = True
    """Multiply embeddings by sqrt(d_model) (section 3.4), or by that of base_width where
    parametrisation is not standard."""

    @property
    def num_positions(self) -> int:
        """See `ModelConfig.num_positions`."""
        return self.max_positions

    @cached_property
    def embedding_scale(self) -> float:
        """Return sqrt(scaling_width) (section 3.4), or 1 where embeddings are not scaled."""
        return math.sqrt(self.scaling_width) if self.scale_embeddings else 1.0

    @cached_property
    def embeddings(self) -> dict[Side, str]:
        """Return the names for a network of one stack; see `ModelConfig.embeddings`."""
        output = "embedding" if self.share_embeddings else "output_projection"
        return {"source": "embedding", "target": "embedding", "output": output}


@dataclass(frozen=True)
class WithSourceTokens(WithTokens):
    """The fields of networks whose sources may have a vocabulary of their own."""

    source_vocab_size: int | None = field(default=None, metadata=left_open(None) | FITS | POSITIVE)
    """Where share_embeddings is false: entries of the source embedding, if the vocabulary has other
    entries for sources than for targets; None means as many as for targets, or for a model that
    predicts labels as many as its vocabulary has for text."""

    def __post_init__(self) -> None:
        """Check every field."""
        super().__post_init__()
        require(
            not self.share_embeddings or self.source_vocab_size is None,
            f"source_vocab_size={self.source_vocab_size} is for a model whose sources have an "
            "embedding of their own; set share_embeddings=False",
        )

    @cached_property
    def own_entries(self) -> dict[str, int]:
        """See `ModelConfig.own_entries`."""
        size = self.source_vocab_size
        return {} if size is None else {self.embeddings["source"]: size}


@dataclass(frozen=True)
class EncoderAndDecoder(WithEncoder, WithDecoder, WithTokens):
    """The fields of networks with both stacks, whatever the encoder reads."""

    cross_heads: int | None = field(default=None, metadata=FITS | POSITIVE)
    """Heads of the decoder's attention to the encoder's output; see encoder_heads."""
    share_target_embedding: bool = False
    """Where share_embeddings is false: one matrix for target embedding and output projection."""
    share_source_embedding: bool = False
    """Where share_embeddings is false: one matrix for source and target embedding, beside the
    output projection, as in T5 1.1."""

    @cached_property
    def stacks(self) -> tuple[Stack, ...]:
        """Return encoder and decoder (section 3.1)."""
        n, m = self.num_encoder_layers, self.num_decoder_layers
        encoder, decoder = (1.0, 1.0), self.deep_norm(3 * m, 12 * m)
        if self.norm_order == "deep":
            encoder = 0.81 * (n**4 * m) ** (1 / 16), 0.87 * (n**4 * m) ** (-1 / 16)
        source, itself, cross = map(self.attention_of, PARTS)
        return (
            Stack(n, True, False, source, None, *encoder, False, self.depth_multiple(n)),
            Stack(m, False, True, itself, cross, *decoder, True, self.depth_multiple(m)),
        )

    @cached_property
    def embeddings(self) -> dict[Side, str]:
        """Return one name if all are shared, and else a name each; see `ModelConfig.embeddings`."""
        if self.share_embeddings or self.share_source_embedding:
            return super().embeddings
        output = "target_embedding" if self.share_target_embedding else "output_projection"
        return {"source": "source_embedding", "target": "target_embedding", "output": output}


@dataclass(frozen=True)
class EncoderDecoderConfig(EncoderAndDecoder, WithSourceTokens):
    """The Transformer of the paper (section 3.1), whose encoder reads tokens."""

    architecture: Literal["encoder_decoder"] = "encoder_decoder"

    def __post_init__(self) -> None:
        """Check every field."""
        super().__post_init__()
        require(
            not self.share_source_embedding
            or not (self.share_target_embedding or self.source_vocab_size),
            "share_source_embedding is for one matrix of sources and targets, and an output "
            "projection of its own; leave share_target_embedding and source_vocab_size out, or set "
            "share_embeddings=True for one matrix in all places",
        )


@dataclass(frozen=True)
class DecoderOnlyConfig(WithDecoder, WithTokens):
    """A decoder alone, which reads source and target as one sequence (Liu et al. 2018), as GPT."""

    architecture: Literal["decoder_only"] = "decoder_only"
    prefix_attention: bool = False
    """Let the tokens of a source attend to the whole source, and not only to the tokens before them
    (Raffel et al. 2020, section 3.2.1)."""

    @cached_property
    def stacks(self) -> tuple[Stack, ...]:
        """Return the decoder, through which sources and targets pass."""
        m = self.num_decoder_layers
        itself, constants = self.attention_of("decoder"), self.deep_norm(2 * m, 8 * m)
        is_causal = not self.prefix_attention
        depth = self.depth_multiple(m)
        return (Stack(m, True, True, itself, None, *constants, is_causal, depth),)

    @property
    def longest_sentence(self) -> float:
        """Return half of the positions, as source and target are one sequence."""
        return self.num_positions // 2 if self.positions.has_table else INFINITY


@dataclass(frozen=True)
class EncoderAloneConfig(WithEncoder):
    """The fields of networks that are an encoder alone, which predicts labels."""

    @cached_property
    def stacks(self) -> tuple[Stack, ...]:
        """Return the encoder."""
        n = self.num_encoder_layers
        constants = self.deep_norm(2 * n, 8 * n)
        itself, depth = self.attention_of("encoder"), self.depth_multiple(n)
        return (Stack(n, True, False, itself, None, *constants, False, depth),)


@dataclass(frozen=True)
class EncoderOnlyConfig(EncoderAloneConfig, WithSourceTokens):
    """An encoder alone over tokens, as BERT (Devlin et al. 2019)."""

    architecture: Literal["encoder_only"] = "encoder_only"


@dataclass(frozen=True)
class ImageEncoderConfig(EncoderAloneConfig):
    """An encoder alone over the patches of images (ViT, Dosovitskiy et al. 2021)."""

    architecture: Literal["image_encoder"] = "image_encoder"
    patch_size: int = field(default=16, metadata=SIZE)
    """Side, in pixels, of the square patches of images, which are read behind a learned class
    token."""
    image_size: int = field(default=224, metadata=SIZE)
    """Pixels of an image on each side."""
    image_channels: int = field(default=3, metadata=SIZE)
    """Numbers of a pixel: 3 for colours, 1 for grey."""

    def __post_init__(self) -> None:
        """Check every field."""
        super().__post_init__()
        require(
            self.image_size % self.patch_size == 0,
            f"model.image_size={self.image_size} is not a multiple of model.patch_size="
            f"{self.patch_size}; choose a divisor",
        )

    @property
    def num_patches(self) -> int:
        """Return the number of patches of an image."""
        return (self.image_size // self.patch_size) ** 2

    @property
    def patch_values(self) -> int:
        """Return how many numbers a patch has."""
        return self.patch_size**2 * self.image_channels

    @property
    def num_positions(self) -> int:
        """Return the positions of an image: its patches and the class token."""
        return self.num_patches + 1

    @cached_property
    def embeddings(self) -> dict[Side, str]:
        """Return the name of the output projection; see `ModelConfig.embeddings`."""
        return {"output": "output_projection"}

    @property
    def input_projection(self) -> InputProjection:
        """Return the projection of patches, with its bias and the class token, too."""
        return InputProjection(self.patch_values * self.d_model, 2 * self.d_model)


@dataclass(frozen=True)
class Family:
    """The facts of a family of networks."""

    config: type[ModelConfig]
    """The class of the section `model` of its configs."""
    network: str
    """The place of its Flax module, a `modules.network.Network`."""
    scoring: str = "t2t_jax.modules.cached_decoding:NetworkScoring"
    """The place of the `modules.decoding_model.ScoringModel` that is made of the module; it is a
    `DecodingModel` if the network decodes."""
    tasks: tuple[str, ...] = ()
    """The tasks that the networks learn, beside those whose `TaskFacts` name the family."""


FAMILIES = Rows(
    "families",
    encoder_decoder=Family(
        EncoderDecoderConfig,
        "t2t_jax.modules.transformer:Transformer",
        "t2t_jax.modules.cached_decoding:TransformerDecoding",
    ),
    decoder_only=Family(
        DecoderOnlyConfig,
        "t2t_jax.modules.language_model:LanguageModel",
        "t2t_jax.modules.language_model:LanguageModelDecoding",
    ),
    encoder_only=Family(EncoderOnlyConfig, "t2t_jax.extras.encoders.networks:EncoderModel"),
    image_encoder=Family(ImageEncoderConfig, "t2t_jax.extras.encoders.networks:ImageModel"),
)
"""The families, by the value of `model.architecture`."""


def fields_of(architecture: object) -> dict[str, "dataclasses.Field[object]"]:
    """Return the fields of a family's config by name."""
    FAMILIES.check("model.architecture", architecture)
    return {leaf.name: leaf for leaf in dataclasses.fields(FAMILIES[str(architecture)].config)}


def all_model_fields() -> dict[str, "dataclasses.Field[object]"]:
    """Return the fields of all families by name, those of the paper's network first."""
    found: dict[str, dataclasses.Field[object]] = {}
    for family, _ in FAMILIES.each():
        for name, leaf in fields_of(family).items():
            found.setdefault(name, leaf)
    return found


def network_config(architecture: str = "encoder_decoder", **fields: Any) -> ModelConfig:
    """Make the section `model` of a config.

    Args:
      fields: values of the family's fields; others have their defaults.

    Raises:
      UserError: there is no such family, the family lacks a field, or a value is refused.
    """
    FAMILIES.check("model.architecture", architecture)
    return FAMILIES[architecture].config(**fields)


def values_in_family(values: Mapping[str, object], architecture: object) -> dict[str, Any]:
    """Return the values that a family has fields for, with the name of the family.

    Args:
      values: the values of the fields of a network's config, which may be of another family.
    """
    kept = {name: values[name] for name in fields_of(architecture) if name in values}
    return {**kept, "architecture": architecture}


def foreign_field(name: str, architecture: object) -> UserError:
    """Return the error for a field of another family than that of a config."""
    owners = " or ".join(repr(family) for family, _ in FAMILIES.each() if name in fields_of(family))
    return UserError(
        f"model.{name} is for model.architecture={owners}, not for {architecture!r}; leave it out, "
        "or change model.architecture"
    )
