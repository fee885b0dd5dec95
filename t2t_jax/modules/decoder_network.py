"""The shared part of networks with a decoder: a cached step, and the `DecodingModel` around it.

`DecoderNetwork.step` computes the logits of one position. Searches call it by `CachedDecoding`.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from t2t_jax.batch import Sequence
from t2t_jax.config import ModelConfig, model, sections
from t2t_jax.kernels import attention, products
from t2t_jax.modules import cached_stack, decoding_model, token_network
from t2t_jax.modules.cache import CacheForm, Remembered, TransformerCache, empty_cache
from t2t_jax.modules.context import Context
from t2t_jax.modules.decoding_model import SourceForm
from t2t_jax.modules.matrices import Parameters, quantized, rounded, transposed
from t2t_jax.modules.network import declared_parameters


class StepInput(NamedTuple):
    """The input of a decoder's step, which each family builds from the hypotheses' last tokens."""

    tokens: Int[Array, "b k"]
    """The tokens that the decoder reads: at position 0, the token that the output starts from."""
    positions: Int[Array, "b k"]
    """The positions of these tokens."""
    before: int
    """The greatest number of positions before that of the first step."""
    sources: Callable[[attention.DistanceBias | None], tuple[Remembered, ...]]
    """The function from a bias by distance to the sources' keys and values of each layer."""


class DecoderNetwork(token_network.TokenNetwork):
    """A network whose decoder computes all positions at once or, with a cache, one at a time.

    Attributes:
      is_cached: whether the decoder computes one position at a time, with the parameters from
        `CachedDecoding.prepare`.
    """

    is_cached: bool = False

    def make_stack(self, stack: model.Stack) -> nn.Module:
        """See `TokenNetwork.make_stack`."""
        if self.is_cached and stack.reads_target:
            return cached_stack.CachedStack(self.config, stack)
        return super().make_stack(stack)

    @abstractmethod
    def memory(self, inputs: Sequence) -> decoding_model.Memory:
        """Read sources `[b, s]`, one a row; see `DecodingModel.memory`."""

    @abstractmethod
    def step_input(
        self, tokens: Int[Array, "b k"], positions: Int[Array, " b"], memory: decoding_model.Memory
    ) -> StepInput:
        """Return the input of the decoder in a step; see `DecodingModel.step`.

        Args:
          tokens: the hypotheses' last tokens.
          positions: the position of these tokens in each output.
          memory: the memory of the sources, from `memory`.
        """

    def step(
        self,
        tokens: Int[Array, "b k"],
        positions: Int[Array, " b"],
        clock: Int[Array, ""],
        ancestry_mask: Bool[Array, "b k t k"],
        cache: TransformerCache,
        memory: decoding_model.Memory,
    ) -> tuple[Float[Array, "b k vocab"], TransformerCache]:
        """See `DecodingModel.step`."""
        now = self.step_input(tokens, positions, memory)
        context = self._step_context(now, clock, ancestry_mask)
        sources = now.sources(context.bias)
        x = self.embed("target", now.tokens, context)
        beams, room = ancestry_mask.shape[1:3]
        write_at = clock % cache_places(self.config, room) * beams
        x, cache = self.decoder.step(x, cache, sources, write_at, context)
        x = self.before_output(x)
        logits = products.next_token_logits(x, self.output_matrix(), self.kernels.products)
        return self.with_output_bias(logits), cache

    def _step_context(
        self, now: StepInput, clock: Int[Array, ""], ancestry_mask: Bool[Array, "b k t k"]
    ) -> Context:
        """Return the context of a step, whose mask is over the slots of the cache."""
        batch, beams, room, _ = ancestry_mask.shape
        places = cache_places(self.config, room)
        bias, apart = self.target_position.bias(), None
        if bias is not None or places < room:
            steps_ago = (clock - jnp.arange(places)) % places
            ancestry_mask = ancestry_mask[:, :, (clock - steps_ago) % room]
            apart = jnp.repeat(steps_ago, beams)[None]
        mask = ancestry_mask.reshape(batch, 1, beams, places * beams)
        return self.context("target", now.positions, mask, length=now.before + room, apart=apart)


def cache_places(config: ModelConfig, room: int) -> int:
    """Return the number of positions of a cache, as no step looks back further than its window.

    Args:
      room: positions of the ring; see `DecodingModel.empty_cache`.
    """
    return min(room, config.attention_window or room)


@dataclass(frozen=True)
class CachedDecoding(token_network.NetworkScoring):
    """The part of a `DecodingModel` that every `DecoderNetwork` shares."""

    network: DecoderNetwork

    @property
    def sources(self) -> SourceForm:
        """See `DecodingModel.sources`."""
        return self.network.sources

    def prepare(self, params: Parameters, quantize: sections.Quantize = "none") -> Parameters:
        """Return the parameters of the network with a cache; see `DecodingModel.prepare`."""
        declared, config = declared_parameters(self.network), self.network.config
        if quantize == "int8":
            params = quantized(params, declared)
        else:
            # The embeddings too, which may be the matrix of the output as well: XLA for GPUs and
            # TPUs would convert what is left in float32 again for every token.
            on_accelerators = self.network.kernels.products == "fused"
            params = rounded(params, declared, config.dtype, summands=on_accelerators)
        decoder: Parameters = params["decoder"]
        layers = cached_stack.unstacked(decoder["layers"], config.stacks[-1])
        if quantize == "none":
            boxes = declared["decoder"]["layers"]["feed_forward"]
            for layer in layers.values():
                layer["feed_forward"] = transposed(layer["feed_forward"], boxes)
        rest = {name: value for name, value in decoder.items() if name != "layers"}
        return params | {"decoder": rest | layers}

    def empty_cache(self, rows: int, beam_size: int, room: int) -> TransformerCache:
        """See `DecodingModel.empty_cache`."""
        config, form = self.network.config, self.cache_form(beam_size)
        stack, slots = config.stacks[-1], cache_places(config, room) * beam_size
        dtype = attention.cache_dtype(config.dtype, self.network.kernels.products)
        return empty_cache(form, stack.self_attention, stack.num_layers, rows, slots, dtype)

    def cache_form(self, beam_size: int) -> CacheForm:
        """Return the layout of keys and values in the cache."""
        return "turned"

    def memory(self, params: Parameters, inputs: Any) -> decoding_model.Memory:
        """See `DecodingModel.memory`."""
        return self._cached("memory", params, inputs)

    def step(
        self,
        params: Parameters,
        tokens: Int[Array, "b k"],
        positions: Int[Array, " b"],
        clock: Int[Array, ""],
        ancestry_mask: Bool[Array, "b k t k"],
        cache: TransformerCache,
        memory: decoding_model.Memory,
    ) -> tuple[Float[Array, "b k vocab"], TransformerCache]:
        """See `DecodingModel.step`."""
        return self._cached("step", params, tokens, positions, clock, ancestry_mask, cache, memory)

    def _cached(self, method: str, params: Parameters, *arguments: Any) -> Any:
        network = self.network.clone(is_cached=True)
        return network.apply({"params": params}, *arguments, method=method)
