"""The network families: their config fields, their stacks and the paths of their modules.

A family consists of a config class in this module, a Flax module and a row of `FAMILIES`, which
`model.architecture` selects. A config class inherits only the fields that its family reads, so a
config cannot set options of other families.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from t2t_jax.config.checks import FITS, INFINITY, POSITIVE, SIZE, left_open, read_where, require
from t2t_jax.config.model import PARTS, InputProjection, ModelConfig, Side, Stack, StartToken
from t2t_jax.config.registry import Registry
from t2t_jax.errors import UserError

_TABLE = read_where(lambda model: model.positions.has_table)


@dataclass(frozen=True)
class WithEncoder(ModelConfig):
    """The fields of networks with an encoder."""

    num_encoder_layers: int = field(default=6, metadata=SIZE)
    """Number of encoder layers N."""
    encoder_heads: int | None = field(default=None, metadata=FITS | POSITIVE)
    """Number of self-attention heads in each encoder layer, if fewer than num_heads, for example
    after pruning; None means num_heads. The head width does not depend on this field."""


@dataclass(frozen=True)
class WithDecoder(ModelConfig):
    """The fields of networks with a decoder."""

    num_decoder_layers: int = field(default=6, metadata=SIZE)
    """Number of decoder layers N."""
    decoder_heads: int | None = field(default=None, metadata=FITS | POSITIVE)
    """Number of self-attention heads in each decoder layer, if fewer than num_heads; see
    encoder_heads."""
    start_token: StartToken = "begin"
    """Token that precedes each target: the beginning-of-sentence token ("begin"), or, for models
    imported from other toolkits, the end-of-sentence token (BART) or the padding token (Marian)."""


@dataclass(frozen=True)
class WithTokens(ModelConfig):
    """The fields of networks that read tokens."""

    max_positions: int = field(default=1024, metadata=SIZE | _TABLE)
    """Number of positions in the learned position table. Other position schemes ignore this field
    and have no limit."""
    share_embeddings: bool = True
    """Share one matrix between source embedding, target embedding and output projection
    (section 3.4)."""
    scale_embeddings: bool = True
    """Multiply embeddings by sqrt(d_model) (section 3.4), or by sqrt(base_width) if parametrisation
    is not standard."""

    @property
    def num_positions(self) -> int:
        """Return the number of entries of a learned position table."""
        return self.max_positions

    @cached_property
    def embedding_scale(self) -> float:
        """Return sqrt(scaling_width) (section 3.4), or 1 without `scale_embeddings`."""
        return math.sqrt(self.scaling_width) if self.scale_embeddings else 1.0

    @cached_property
    def embeddings(self) -> dict[Side, str]:
        """Return the matrix names of a network with one stack."""
        output = "embedding" if self.share_embeddings else "output_projection"
        return {"source": "embedding", "target": "embedding", "output": output}


@dataclass(frozen=True)
class WithSourceTokens(WithTokens):
    """The fields of networks that may have a separate source vocabulary."""

    source_vocab_size: int | None = field(default=None, metadata=left_open(None) | FITS | POSITIVE)
    """Number of entries of a separate source vocabulary, if share_embeddings is false. None uses
    the size of the target vocabulary, or, for a model that predicts labels, the size of its text
    vocabulary."""

    def __post_init__(self) -> None:
        """Refuse a source vocabulary together with a shared embedding."""
        super().__post_init__()
        require(
            not self.share_embeddings or self.source_vocab_size is None,
            f"source_vocab_size={self.source_vocab_size} is for a model with a separate source "
            "embedding; set share_embeddings=False",
        )

    @cached_property
    def own_entries(self) -> dict[str, int]:
        """Return the size of a separate source vocabulary, by matrix name."""
        size = self.source_vocab_size
        return {} if size is None else {self.embeddings["source"]: size}


@dataclass(frozen=True)
class EncoderAndDecoder(WithEncoder, WithDecoder, WithTokens):
    """The fields of networks with an encoder and a decoder."""

    cross_heads: int | None = field(default=None, metadata=FITS | POSITIVE)
    """Number of cross-attention heads in each decoder layer, if fewer than num_heads; see
    encoder_heads."""
    share_target_embedding: bool = False
    """Share one matrix between target embedding and output projection, if share_embeddings is
    false."""
    share_source_embedding: bool = False
    """Share one matrix between source and target embedding, with a separate output projection as in
    T5 1.1, if share_embeddings is false."""

    @cached_property
    def stacks(self) -> tuple[Stack, ...]:
        """Return encoder and decoder (section 3.1)."""
        n, m = self.num_encoder_layers, self.num_decoder_layers
        encoder_constants, decoder_constants = (1.0, 1.0), self.deep_norm(3 * m, 12 * m)
        if self.norm_order == "deep":
            encoder_constants = 0.81 * (n**4 * m) ** (1 / 16), 0.87 * (n**4 * m) ** (-1 / 16)
        # `encoder` and `decoder` are the configs of the self-attention.
        encoder, decoder, cross = map(self.attention_of, PARTS)
        return (
            Stack(n, True, False, encoder, None, *encoder_constants, False, self.depth_multiple(n)),
            Stack(m, False, True, decoder, cross, *decoder_constants, True, self.depth_multiple(m)),
        )

    @cached_property
    def embeddings(self) -> dict[Side, str]:
        """Return matrix names by key: "source", "target" and "output".

        The `share_*` fields make some equal.
        """
        if self.share_embeddings or self.share_source_embedding:
            return super().embeddings
        output = "target_embedding" if self.share_target_embedding else "output_projection"
        return {"source": "source_embedding", "target": "target_embedding", "output": output}


@dataclass(frozen=True)
class EncoderDecoderConfig(EncoderAndDecoder, WithSourceTokens):
    """The Transformer of the paper, with an encoder and a decoder (section 3.1)."""

    architecture: Literal["encoder_decoder"] = "encoder_decoder"

    def __post_init__(self) -> None:
        """Refuse contradictory `share_*` fields."""
        super().__post_init__()
        require(
            not self.share_source_embedding
            or not (self.share_target_embedding or self.source_vocab_size),
            "share_source_embedding is for one embedding of sources and targets and a separate "
            "output projection; leave share_target_embedding and source_vocab_size out, or set "
            "share_embeddings=True to share all three matrices",
        )


@dataclass(frozen=True)
class DecoderOnlyConfig(WithDecoder, WithTokens):
    """A decoder-only network, which reads source and target as one sequence (Liu et al. 2018)."""

    architecture: Literal["decoder_only"] = "decoder_only"
    prefix_attention: bool = False
    """Let source tokens attend to the whole source, not only to earlier tokens (Raffel et al. 2020,
    section 3.2.1)."""

    @cached_property
    def stacks(self) -> tuple[Stack, ...]:
        """Return the decoder, which reads sources and targets."""
        m = self.num_decoder_layers
        self_attention, constants = self.attention_of("decoder"), self.deep_norm(2 * m, 8 * m)
        is_causal = not self.prefix_attention
        depth = self.depth_multiple(m)
        return (Stack(m, True, True, self_attention, None, *constants, is_causal, depth),)

    @property
    def longest_sentence(self) -> float:
        """Return the most tokens of a source or target, half of the positions.

        It is infinite without a table of positions.
        """
        return self.num_positions // 2 if self.positions.has_table else INFINITY


@dataclass(frozen=True)
class EncoderAloneConfig(WithEncoder):
    """The fields of encoder-only networks."""

    @cached_property
    def stacks(self) -> tuple[Stack, ...]:
        """Return the encoder as the only stack."""
        n = self.num_encoder_layers
        constants = self.deep_norm(2 * n, 8 * n)
        self_attention, depth = self.attention_of("encoder"), self.depth_multiple(n)
        return (Stack(n, True, False, self_attention, None, *constants, False, depth),)


@dataclass(frozen=True)
class EncoderOnlyConfig(EncoderAloneConfig, WithSourceTokens):
    """An encoder-only network over tokens, as BERT (Devlin et al. 2019)."""

    architecture: Literal["encoder_only"] = "encoder_only"


@dataclass(frozen=True)
class ImageEncoderConfig(EncoderAloneConfig):
    """An encoder over image patches (ViT, Dosovitskiy et al. 2021)."""

    architecture: Literal["image_encoder"] = "image_encoder"
    patch_size: int = field(default=16, metadata=SIZE)
    """Side length of the square image patches, in pixels. The encoder reads the patches after a
    learned class token."""
    image_size: int = field(default=224, metadata=SIZE)
    """Side length of the square images, in pixels."""
    image_channels: int = field(default=3, metadata=SIZE)
    """Number of channels of a pixel: 3 for color, 1 for gray."""

    def __post_init__(self) -> None:
        """Refuse an image size that is not a multiple of the patch size."""
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
        """Return the number of values of a patch."""
        return self.patch_size**2 * self.image_channels

    @property
    def num_positions(self) -> int:
        """Return the number of patches plus 1 for the class token."""
        return self.num_patches + 1

    @cached_property
    def embeddings(self) -> dict[Side, str]:
        """Return {"output": name}, because the output projection is the only matrix."""
        return {"output": "output_projection"}

    @property
    def input_projection(self) -> InputProjection:
        """Return the size of the patch projection, its bias and the class token."""
        return InputProjection(self.patch_values * self.d_model, 2 * self.d_model)


@dataclass(frozen=True)
class Family:
    """The properties of a network family, such as encoder-decoders."""

    config: type[ModelConfig]
    """The class of the config section `model`."""
    network: Any
    """The class of the Flax module, a `modules.network.Network`, or its import path."""
    scoring: Any = "t2t_jax.modules.cached_decoding:NetworkScoring"
    """The class of the `modules.decoding_model.ScoringModel` that wraps the module, or its import
    path. It is a `DecodingModel` if the network generates targets."""
    tasks: tuple[str, ...] = ()
    """Tasks that the networks learn although their `TaskFacts` do not name the family."""


FAMILIES = Registry(
    "family",
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
"""The network families, by the value of `model.architecture`."""


def fields_of(architecture: object) -> dict[str, "dataclasses.Field[object]"]:
    """Return the config fields of a family by name."""
    FAMILIES.check("model.architecture", architecture)
    return {leaf.name: leaf for leaf in dataclasses.fields(FAMILIES[str(architecture)].config)}


def all_model_fields() -> dict[str, "dataclasses.Field[object]"]:
    """Return the config fields of all families by name, the paper's network first."""
    model_fields: dict[str, dataclasses.Field[object]] = {}
    for family, _ in FAMILIES.each():
        for name, leaf in fields_of(family).items():
            model_fields.setdefault(name, leaf)
    return model_fields


def network_config(architecture: str = "encoder_decoder", **fields: Any) -> ModelConfig:
    """Make the config section `model` of a family.

    Args:
      fields: values of the family's fields; missing fields have their defaults.

    Raises:
      UserError: the family does not exist or lacks a field, or a value is invalid.
    """
    FAMILIES.check("model.architecture", architecture)
    return FAMILIES[architecture].config(**fields)


def values_in_family(values: Mapping[str, object], architecture: object) -> dict[str, Any]:
    """Select the values of the fields that a family has, and add the family's name.

    Args:
      values: field values of a network of any family.
    """
    shared_values = {name: values[name] for name in fields_of(architecture) if name in values}
    return {**shared_values, "architecture": architecture}


def foreign_field(name: str, architecture: object) -> UserError:
    """Return the error for a field that only other families have."""
    owners = " or ".join(repr(family) for family, _ in FAMILIES.each() if name in fields_of(family))
    return UserError(
        f"model.{name} is for model.architecture={owners}, not for {architecture!r}; leave it out, "
        "or change model.architecture"
    )
