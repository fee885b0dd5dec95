"""The encoder-decoder of section 3, in training and decoding."""

from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, cast

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from t2t_jax.batch import Batch
from t2t_jax.functional.masks import attention_mask
from t2t_jax.modules import cache, decoder_network, decoding_model
from t2t_jax.modules.context import Context


class TransformerMemory(NamedTuple):
    """The arrays of the sources for decoding, shared by all hypotheses of a source.

    Attributes:
      keys_values: keys and values of the encoder's output, for each decoder layer.
      mask: True for the source positions that are not padding.
    """

    keys_values: tuple[cache.RememberedKeysValues, ...]
    mask: Bool[Array, "b 1 1 s"]


class Transformer(decoder_network.DecoderNetwork):
    """The Transformer (section 3, figure 1)."""

    def decoded(
        self, batch: Batch, deterministic: bool, first_row: Int[Array, ""] | int
    ) -> Float[Array, "b t d_model"]:
        """See `TokenNetwork.decoded`."""
        inputs, targets = batch
        dropout: Any = {"deterministic": deterministic, "first_row": first_row}
        encoded = self.encode(inputs, **dropout)
        previous, segments = self.previous_tokens(targets), targets.segments
        window = self.config.attention_window
        mask = attention_mask(segments, segments, causal=True, window=window)
        context = self.context("target", targets.positions, mask, encoded=encoded, **dropout)
        context = replace(context, encoded_mask=attention_mask(segments, inputs.segments))
        x = self.embed("target", previous, context)
        return self.decoder(self.embedding_dropout(x, context), context)

    def memory(self, inputs: Any) -> TransformerMemory:
        """Encode the sources; see `DecodingModel.memory`."""
        mask = (inputs.segments != 0)[:, None, None, :]
        context = Context(inputs.positions, mask.shape[-1], mask, kernels=self.kernels)
        return TransformerMemory(self.decoder.remember(self.encode(inputs), context), mask)

    def step_input(
        self, tokens: Int[Array, "b k"], positions: Int[Array, " b"], memory: TransformerMemory
    ) -> decoder_network.StepInput:
        """See `DecoderNetwork.step_input`."""
        at = jnp.broadcast_to(positions[:, None], tokens.shape)
        tokens = jnp.where(at == 0, self.bos_id, tokens)
        sources = tuple(cache.Remembered(each, memory.mask) for each in memory.keys_values)
        return decoder_network.StepInput(tokens, at, 0, lambda _: sources)


@dataclass(frozen=True)
class TransformerDecoding(decoder_network.CachedDecoding):
    """The `DecodingModel` of a `Transformer`."""

    def axes(self, beam_size: int = 1) -> decoding_model.Axes:
        """See `DecodingModel.axes`."""
        depth = self.network.config.stacks[-1].num_layers
        sources = cache.axes_of("in_order" if self._keeps_order("cross") else "turned", depth)
        slots = cache.axes_of(self.cache_form(beam_size), depth)
        return decoding_model.Axes(slots, cast(Any, TransformerMemory)(sources, 3))

    def cache_form(self, beam_size: int) -> cache.CacheForm:
        """See `CachedDecoding.cache_form`."""
        if self.network.kernels.attention != "cudnn":
            return "turned"
        if beam_size == 1:
            return "stacked"
        has_bias = self.network.config.positions.bias is not None
        return "in_order" if self._keeps_order("decoder") and not has_bias else "turned"

    def _keeps_order(self, part: Literal["decoder", "cross"]) -> bool:
        config = self.network.config
        return cache.keeps_order(config.attention_of(part), config.dtype, self.network.kernels)
