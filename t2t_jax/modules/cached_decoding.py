"""Scoring and decoding with the networks of `modules.transformer`."""

from dataclasses import dataclass
from typing import Any, cast

from jaxtyping import Array, Float, PyTree

from t2t_jax.batch import Batch
from t2t_jax.config import sections
from t2t_jax.kernels.reference import CacheLayout, Losses
from t2t_jax.modules import cache, parameters, stack
from t2t_jax.modules.attention import WEIGHTS, is_fused_in_decoding, source_layout
from t2t_jax.modules.decoding_model import AttentionWeights, Axes, LastTokens, Memory, SourceForm
from t2t_jax.modules.network import declared_parameters
from t2t_jax.modules.parameters import Parameters
from t2t_jax.modules.transformer import (
    DecoderNetwork,
    TokenNetwork,
    TransformerMemory,
    cache_length,
)


@dataclass(frozen=True)
class NetworkScoring:
    """The `ScoringModel` of any `TokenNetwork`.

    Attributes:
      network: the training module.
    """

    network: TokenNetwork

    @property
    def longest_sentence(self) -> float:
        """Return the maximum sentence length in tokens that the position encoding allows."""
        return self.network.config.longest_sentence

    def logits(self, params: Parameters, batch: Batch) -> Float[Array, "b t vocab"]:
        """Compute the logits of every target token; see `ScoringModel.logits`."""
        return cast(Any, self.network.apply({"params": params}, batch, deterministic=True))

    def losses(self, params: Parameters, batch: Batch, label_smoothing: float) -> Losses:
        """Compute the loss of every target token, in nats; see `ScoringModel.losses`."""
        options: Any = {"label_smoothing": label_smoothing, "method": "losses"}
        return cast(Any, self.network.apply({"params": params}, batch, **options))

    def attention_weights(self, params: Parameters, batch: Batch) -> AttentionWeights:
        """Return the weights of all layers and heads; see `ScoringModel.attention_weights`."""
        _, variables = self.network.apply({"params": params}, batch, mutable=[WEIGHTS])
        return {
            stack_name if name == "self_attention" else "cross": attention["weights"][0]
            for stack_name, modules in variables[WEIGHTS].items()
            for name, attention in modules["layers"].items()
        }


@dataclass(frozen=True)
class CachedDecoding(NetworkScoring):
    """The methods of a `DecodingModel` that all `DecoderNetwork`s share."""

    network: DecoderNetwork

    @property
    def sources(self) -> SourceForm:
        """Return the format of the model's sources."""
        return self.network.sources

    def prepare(self, params: Parameters, quantize: sections.Quantize = "none") -> Parameters:
        """Convert the parameters for `memory` and `step`; see `DecodingModel.prepare`."""
        declared, config = declared_parameters(self.network), self.network.config
        if quantize == "int8":
            params = parameters.quantize_matrices(params, declared)
        else:
            # Convert the embeddings too, which may be the output projection: XLA for GPUs and TPUs
            # would convert a float32 matrix again for every token.
            with_biases = self.network.kernels.rounds_biases
            dtype = config.dtype
            params = parameters.convert_matrices(params, declared, dtype, with_biases=with_biases)
        decoder: Parameters = params["decoder"]
        layers = stack.unstack(decoder["layers"], config.stacks[-1])
        if quantize == "none":
            boxes = declared["decoder"]["layers"]["feed_forward"]
            for layer in layers.values():
                layer["feed_forward"] = parameters.transpose_matrices(layer["feed_forward"], boxes)
        other_params = {name: value for name, value in decoder.items() if name != "layers"}
        return params | {"decoder": other_params | layers}

    def empty_cache(self, rows: int, beam_size: int, capacity: int) -> cache.TransformerCache:
        """Make the cache for the first decoding step; see `DecodingModel.empty_cache`."""
        config, layout = self.network.config, self.cache_layout(beam_size)
        decoder, num_slots = config.stacks[-1], cache_length(config, capacity) * beam_size
        dtype = self.network.kernels.cache_dtype(config.dtype)
        attention, num_layers = decoder.self_attention, decoder.num_layers
        return cache.empty_cache(layout, attention, num_layers, rows, num_slots, dtype)

    def cache_layout(self, beam_size: int) -> CacheLayout:
        """Return the layout of keys and values in the cache."""
        return "transposed"

    def memory(self, params: Parameters, inputs: PyTree) -> Memory:
        """Compute the keys and values of the sources for `step`; see `DecodingModel.memory`."""
        return self.network.clone(is_cached=True).apply({"params": params}, inputs, method="memory")

    def step(
        self, params: Parameters, last: LastTokens, cache: cache.TransformerCache, memory: Memory
    ) -> tuple[Float[Array, "b k vocab"], cache.TransformerCache]:
        """Compute the logits of the next token of each hypothesis; see `DecodingModel.step`."""
        network = self.network.clone(is_cached=True)
        return network.apply({"params": params}, last, cache, memory, method="step")


@dataclass(frozen=True)
class TransformerDecoding(CachedDecoding):
    """The `DecodingModel` of a `Transformer`."""

    def axes(self, beam_size: int = 1) -> Axes:
        """Return the slot axis of each cache array, and the position axis of each memory array.

        `beam_size` selects the layout.
        """
        config = self.network.config
        depth = config.stacks[-1].num_layers
        layout = source_layout(config.attention_of("cross"), config.dtype, self.network.kernels)
        slot_axes = cache.cache_axes(self.cache_layout(beam_size), depth)
        return Axes(slot_axes, cast(Any, TransformerMemory)(cache.cache_axes(layout, depth), 3))

    def cache_layout(self, beam_size: int) -> CacheLayout:
        """Return the layout of keys and values in the cache; see `CachedDecoding.cache_layout`."""
        config = self.network.config
        attention = config.attention_of("decoder")
        if attention.kind.maps_per_head > 1:  # the other layouts need a key for each value
            return "transposed"
        has_bias = config.positions.bias is not None
        is_fused = is_fused_in_decoding(attention, config.dtype)
        return self.network.kernels.cache_layout(beam_size, is_fused and not has_bias)
