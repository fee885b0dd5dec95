"""A `Transformer` that decodes: one position at a time, with the earlier ones in a cache.

`CachedDecoder` computes the steps; searches call it through `TransformerDecoding`, the
`DecodingModel` of a `Transformer`.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from t2t_jax.batch import Batch, Sequence
from t2t_jax.config import ModelConfig
from t2t_jax.config.attention import AttentionConfig
from t2t_jax.kernels.attention import cache_dtype
from t2t_jax.kernels.choice import Kernels
from t2t_jax.kernels.products import next_token_logits
from t2t_jax.modules.attention import CachedSelfAttention, join_projections
from t2t_jax.modules.cache import (
    CacheForm,
    LayerCache,
    RememberedKeysValues,
    TransformerCache,
    axes_of,
    empty_cache,
    joined_layers,
    keeps_order,
    layers_of,
)
from t2t_jax.modules.context import Context
from t2t_jax.modules.decoding_model import Axes, Memory
from t2t_jax.modules.layers import DecoderLayer
from t2t_jax.modules.matrices import Parameters, Quantize, quantized, rounded, transposed
from t2t_jax.modules.position import PositionEncoding
from t2t_jax.modules.token_network import NetworkScoring, TokenNetwork
from t2t_jax.modules.transformer import Transformer, declared_parameters, last_norm


class TransformerMemory(NamedTuple):
    """The arrays that decoding needs of the sources, shared by all hypotheses of a source.

    Attributes:
      keys_values: keys and values of the encoder's output, for each decoder layer.
      mask: True for the source positions that are not padding.
    """

    keys_values: tuple[RememberedKeysValues, ...]
    mask: Bool[Array, "b 1 1 s"]


class CachedDecoderLayer(DecoderLayer):
    """A decoder layer that computes one position of `k` hypotheses per sentence."""

    def make_self_attention(self, config: AttentionConfig, gain: float) -> nn.Module:
        """The module for self-attention, with a cache; it gets its parameters from training."""
        del gain
        return CachedSelfAttention(config)

    def step(
        self,
        x: Float[Array, "b k d_model"],
        cache: LayerCache,
        memory: RememberedKeysValues,
        memory_mask: Bool[Array, "b 1 1 s"],
        write_at: int | Array,
        context: Context,
    ) -> tuple[Float[Array, "b k d_model"], LayerCache]:
        """One layer of the decoder at one position.

        Args:
          x: the position's vectors, one per hypothesis.
          cache: self-attention keys and values of this layer.
          memory: keys and values of the encoder's output, one copy per sentence.
          memory_mask: True for the source positions that are not padding.
          write_at: slot of the first of the `k` new entries.
          context: its mask says to which slots each hypothesis attends.

        Returns:
          The layer's output, and its cache with the new entries; see `CachedSelfAttention`.
        """

        def attend_to_cache(y: Float[Array, "b k d_model"]) -> Float[Array, "b k d_model"]:
            nonlocal cache
            y, cache = self.self_attention(y, cache, write_at, context)
            return y

        def attend_to_memory(y: Float[Array, "b k d_model"]) -> Float[Array, "b k d_model"]:
            return self.cross_attention.recall(y, memory, memory_mask, context)

        return self.sublayers(x, attend_to_cache, attend_to_memory, context), cache


class CachedDecoder(nn.Module):
    """The decoder at one position; each layer has arrays of its own, which `_unstacked` makes."""

    config: ModelConfig

    def setup(self) -> None:
        """Create the layers; pre-norm needs one more norm at their end."""
        depth = self.config.num_decoder_layers
        self.layers = [CachedDecoderLayer(self.config) for _ in range(depth)]
        self.norm = last_norm(self.config)

    def remember(
        self, encoded: Float[Array, "b s d_model"], context: Context
    ) -> tuple[RememberedKeysValues, ...]:
        """Keys and values of the encoder's output, for the cross-attention of each layer."""
        return tuple(layer.cross_attention.remember(encoded, context) for layer in self.layers)

    def step(
        self,
        x: Float[Array, "b k d_model"],
        cache: TransformerCache,
        memory: TransformerMemory,
        write_at: int | Array,
        context: Context,
    ) -> tuple[Float[Array, "b k d_model"], TransformerCache]:
        """All layers at one position; `CachedDecoderLayer.step` explains the arguments."""
        kept = []
        each = zip(
            self.layers,
            layers_of(cache, self.config.attention_of("decoder").d_k),
            memory.keys_values,
            strict=True,
        )
        for layer, old, remembered in each:
            x, new = layer.step(x, old, remembered, memory.mask, write_at, context)
            kept.append(new)
        return self.norm(x) if self.norm else x, joined_layers(cache, kept, write_at)


class CachedTransformer(Transformer):
    """A `Transformer` whose decoder computes one position at a time."""

    def make_decoder(self) -> nn.Module:
        """The module for the decoder, with a cache."""
        return CachedDecoder(self.config)

    def memory(self, inputs: Sequence) -> TransformerMemory:
        """Encode sources `[b, s]`, one a row; see `DecodingModel.memory`."""
        mask = (inputs.segments != 0)[:, None, None, :]
        context = Context(inputs.positions, inputs.tokens.shape[1], mask, kernels=self.kernels)
        return TransformerMemory(self.decoder.remember(self.encode(inputs), context), mask)

    def step(
        self,
        tokens: Int[Array, "b k"],
        positions: Int[Array, " b"],
        clock: Int[Array, ""],
        ancestry_mask: Bool[Array, "b k t k"],
        cache: TransformerCache,
        memory: TransformerMemory,
    ) -> tuple[Float[Array, "b k vocab"], TransformerCache]:
        """Logits of the next token of `k` hypotheses; see `DecodingModel.step`."""
        beams = tokens.shape[1]
        positions = jnp.broadcast_to(positions[:, None], tokens.shape)
        tokens = jnp.where(positions == 0, self.bos_id, tokens)
        context, places = cached_context(
            self.config, self.target_position, positions, clock, ancestry_mask, 0, self.kernels
        )
        x = self.embed("target", tokens, context)
        x, cache = self.decoder.step(x, cache, memory, clock % places * beams, context)
        logits = next_token_logits(x, self.output_matrix(), self.kernels.products)
        return self.with_output_bias(logits), cache


def cached_context(
    config: ModelConfig,
    encoding: PositionEncoding,
    positions: Int[Array, "b k"],
    clock: Int[Array, ""],
    ancestry_mask: Bool[Array, "b k t k"],
    first: int,
    kernels: Kernels,
) -> tuple[Context, int]:
    """The context of a step of decoding, and the number of places of the cache.

    Args:
      config: sizes and options of the network.
      encoding: the positions of the decoder.
      positions: position of each hypothesis's token.
      clock: number of the step; see `DecodingModel.step`.
      ancestry_mask: see `DecodingModel.step`.
      first: most positions that there are before the first step's.
      kernels: the implementations of attention and products for the devices.
    """
    batch, beams, room, _ = ancestry_mask.shape
    places = cache_places(config, room)
    bias, apart = encoding.bias(), None
    if bias is not None or places < room:
        steps_ago = (clock - jnp.arange(places)) % places
        ancestry_mask = ancestry_mask[:, :, (clock - steps_ago) % room]
        apart = jnp.repeat(steps_ago, beams)[None]
    mask = ancestry_mask.reshape(batch, 1, beams, places * beams)
    rotary = encoding.rotary_frequencies()
    context = Context(positions, first + room, mask, rotary, bias, apart, kernels=kernels)
    return context, places


_FLAX_FIELDS = ("parent", "name")  # which every module has


@dataclass(frozen=True)
class CachedDecoding(NetworkScoring):
    """What is alike in the `DecodingModel` of every network that has a decoder with a cache.

    Attributes:
      cached_network: the same network with a decoder that takes one position at a time.
    """

    cached_network: ClassVar[type[TokenNetwork]]

    @property
    def _cached(self) -> TokenNetwork:
        names = (field.name for field in dataclasses.fields(self.network))
        own = {name: getattr(self.network, name) for name in names if name not in _FLAX_FIELDS}
        return self.cached_network(**own)

    def prepare(self, params: Parameters, quantize: Quantize = "none") -> Parameters:
        """The parameters of the `cached_network`; see `DecodingModel.prepare`."""
        declared = declared_parameters(self.network)
        if quantize == "int8":
            params = quantized(params, declared)
        else:
            # The embeddings too, which are rows and the matrix of the output: what is left in
            # float32, XLA for GPUs and TPUs would convert again for every token.
            network = self.network
            on_accelerators = network.kernels.products == "fused"
            params = rounded(params, declared, network.config.dtype, summands=on_accelerators)
        decoder: Parameters = params["decoder"]
        layers = _unstacked(decoder["layers"], self.network.config)
        if quantize == "none":
            boxes = declared["decoder"]["layers"]["feed_forward"]
            for layer in layers.values():
                layer["feed_forward"] = transposed(layer["feed_forward"], boxes)
        rest = {name: value for name, value in decoder.items() if name != "layers"}
        return params | {"decoder": rest | layers}

    def empty_cache(self, rows: int, beam_size: int, room: int) -> TransformerCache:
        """See `DecodingModel.empty_cache`."""
        config, form = self.network.config, self.cache_form(beam_size)
        attention, depth = config.attention_of("decoder"), config.num_decoder_layers
        slots = cache_places(config, room) * beam_size
        dtype = cache_dtype(config.dtype, self.network.kernels.products)
        return empty_cache(form, attention, depth, rows, slots, dtype)

    def cache_form(self, beam_size: int) -> CacheForm:
        """How the cache keeps keys and values.

        Args:
          beam_size: hypotheses of each sentence.
        """
        del beam_size
        return "turned"

    def memory(self, params: Parameters, inputs: Sequence) -> Memory:
        """See `DecodingModel.memory`."""
        return self._cached.apply({"params": params}, inputs, method="memory")

    def step(
        self,
        params: Parameters,
        tokens: Int[Array, "b k"],
        positions: Int[Array, " b"],
        clock: Int[Array, ""],
        ancestry_mask: Bool[Array, "b k t k"],
        cache: TransformerCache,
        memory: Memory,
    ) -> tuple[Float[Array, "b k vocab"], TransformerCache]:
        """See `DecodingModel.step`."""
        arguments = tokens, positions, clock, ancestry_mask, cache, memory
        return cast(Any, self._cached.apply({"params": params}, *arguments, method="step"))


@dataclass(frozen=True)
class TransformerDecoding(CachedDecoding):
    """The `DecodingModel` of a `Transformer`."""

    cached_network = CachedTransformer

    @property
    def shows_attention(self) -> bool:
        """See `DecodingModel.shows_attention`."""
        return True

    def axes(self, beam_size: int = 1) -> Axes:
        """See `DecodingModel.axes`."""
        depth = self.network.config.num_decoder_layers
        sources = axes_of("in_order" if self._keeps_order("cross") else "turned", depth)
        slots = axes_of(self.cache_form(beam_size), depth)
        return Axes(slots, cast(Any, TransformerMemory)(sources, 3))

    def cache_form(self, beam_size: int) -> CacheForm:
        """See `CachedDecoding.cache_form`."""
        if self.network.kernels.attention != "cudnn":
            return "turned"
        if beam_size == 1:
            return "stacked"
        has_bias = self.network.config.positions.bias is not None
        return "in_order" if self._keeps_order("decoder") and not has_bias else "turned"

    def _keeps_order(self, part: Literal["decoder", "cross"]) -> bool:
        config = self.network.config
        return keeps_order(config.attention_of(part), config.dtype, self.network.kernels)

    def attention_weights(
        self, params: Parameters, batch: Batch
    ) -> dict[str, Float[Array, "n b h _ _"]]:
        """See `DecodingModel.attention_weights`."""
        looking: Any = {"deterministic": True, "mutable": ["intermediates"]}
        _, sown = cast(Any, self.network.apply({"params": params}, batch, **looking))
        encoder, decoder = (
            sown["intermediates"][side]["layers"] for side in ("encoder", "decoder")
        )
        return {
            "encoder": encoder["self_attention"]["weights"][0],
            "decoder": decoder["self_attention"]["weights"][0],
            "cross": decoder["cross_attention"]["weights"][0],
        }


def cache_places(config: ModelConfig, room: int) -> int:
    """The number of places of a cache: no step looks back further than its window.

    Args:
      config: sizes and options of the network.
      room: places of the ring; see `DecodingModel.empty_cache`.
    """
    return min(room, config.attention_window or room)


def _unstacked(stack: Parameters, config: ModelConfig) -> dict[str, Parameters]:
    """The parameters of each layer of a stack, under the names that `CachedDecoder` has for them.

    A decoding loop that is unrolled copies no cache, but it would cut the layers out of the stacked
    arrays again for every token: for one sentence, that takes as long as the token.
    """
    layers: dict[str, Parameters] = {}
    attention = config.attention_of("decoder")
    for number in range(config.num_decoder_layers):
        layer: Parameters = jax.tree.map(lambda p, number=number: p[number], stack)
        layer["self_attention"] = join_projections(layer["self_attention"], attention)
        layers[f"layers_{number}"] = layer
    return layers
