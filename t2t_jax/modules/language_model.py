"""Decoder-only models, in training and in decoding.

Read `modules.transformer` before this file. The next file, `modules.models`, builds networks.

The model is the paper's decoder without cross-attention (Liu et al. 2018, section 4.2.3; GPT,
Radford et al. 2018). In a batch row, each target follows its source::

    source             target              what the layers read            what they predict
    s1 s2 </s>         t1 t2 </s>          s1 s2 </s> t1 t2 </s>           .  .  t1 t2 </s> .
    (none)             t1 t2 </s>          <s> t1 t2                       t1 t2 </s>
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from t2t_jax.batch import Batch, Sequence, check_ids
from t2t_jax.config import DecoderOnlyConfig
from t2t_jax.functional import masks
from t2t_jax.kernels.reference import DistanceBias
from t2t_jax.modules.attention import Context, Mask
from t2t_jax.modules.cache import CachedKeysValues, SourceCache, cache_axes
from t2t_jax.modules.cached_decoding import CachedDecoding
from t2t_jax.modules.decoding_model import AttentionWeights, Axes, LastTokens
from t2t_jax.modules.parameters import Parameters
from t2t_jax.modules.transformer import DecoderNetwork, StepInput


class Joined(NamedTuple):
    """Batch rows in which each target follows its source."""

    tokens: Int[Array, "b l"]
    """Ids, with padding at the end."""
    segments: Int[Array, "b l"]
    """Index of the pair in its batch row, from 1; 0 is padding."""
    positions: Int[Array, "b l"]
    """Position in the pair, from 0."""
    is_source: Bool[Array, "b l"]
    """Whether a token belongs to a source."""
    target_indices: Int[Array, "b t"]
    """Index of each target token in the joined row."""


def joined_pairs(batch: Batch) -> Joined:
    """Join each batch row of sources and targets into one sequence, without padding in between.

    Args:
      batch: sources `[b, s]` and targets `[b, t]`; a batch row may hold several pairs.
    """
    sides = batch.inputs, batch.targets
    tokens, segments = (jnp.concatenate([side[n] for side in sides], axis=1) for n in range(2))
    length, source_length = tokens.shape[1], batch.inputs.tokens.shape[1]
    is_target = jnp.arange(length) >= source_length
    # Sort by pair, and within a pair the source before the target. `argsort` is stable, so the
    # tokens of a sentence keep their order. Padding moves to the end.
    sort_keys = jnp.where(segments == 0, 2 * length + 2, 2 * segments + is_target)
    old_indices = jnp.argsort(sort_keys, axis=1)
    target_indices = jnp.argsort(old_indices, axis=1)[:, source_length:]  # the inverse permutation
    tokens, segments = (jnp.take_along_axis(x, old_indices, axis=1) for x in (tokens, segments))
    indices = jnp.arange(length)
    is_pair_start = segments != jnp.pad(segments, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]
    # The distance to the start of the pair, which is the latest start so far.
    positions = indices - jax.lax.cummax(jnp.where(is_pair_start, indices, 0), axis=1)
    positions = jnp.where(segments == 0, 0, positions)
    is_source = (old_indices < source_length) & (segments != 0)
    return Joined(tokens, segments, positions, is_source, target_indices)


def prefix_mask(
    segments: Int[Array, "b l"], is_source: Bool[Array, "b l"], window: int | None
) -> Bool[Array, "b 1 l l"]:
    """Make the mask of a prefix language model (Raffel et al. 2020, figure 4, right).

    Every position attends to earlier positions. Source positions attend to the whole source.

    Args:
      segments: index of the pair of each position; 0 is padding.
      is_source: whether a position belongs to a source.
      window: see `functional.masks.window_mask`; None means no limit.
    """
    same_pair = masks.segment_mask(segments, segments)
    is_source_pair = is_source[:, None, :, None] & is_source[:, None, None, :]
    length = segments.shape[1]
    mask = same_pair & (masks.causal_mask(length) | is_source_pair)
    if window is not None:
        mask &= masks.window_mask(masks.distances(length, length), window)
    return mask


class Prompt(NamedTuple):
    """The sources in decoding, shared by all hypotheses of a source."""

    keys_values: tuple[CachedKeysValues, ...]
    """Keys and values of the source tokens in each layer."""
    tokens: Int[Array, "b s"]
    """Source tokens; the first step reads the last one and predicts the first target token."""
    is_real: Bool[Array, "b s"]
    """False at padding."""


class LanguageModel(DecoderNetwork):
    """A decoder-only model, for sentence pairs or for text in one language."""

    config: DecoderOnlyConfig

    def decoded(self, batch: Batch, base: Context | None = None) -> Float[Array, "b t d_model"]:
        """Compute the decoder's output for every target token; see `TokenNetwork.decoded`."""
        check_ids("inputs.tokens", batch.inputs.tokens, self.vocab_size)
        has_sources = batch.inputs.tokens.shape[1] > 0
        if has_sources:
            tokens, segments, positions, is_source, target_indices = joined_pairs(batch)
        else:
            _, segments, positions = batch.targets
            tokens = self.previous_tokens(batch.targets)
            is_source = jnp.zeros(tokens.shape, bool)
        mask = self.sequence_mask(segments, is_source)
        context = self.context("target", positions, mask, base)
        x = self.with_positions("target", self.embed_targets(tokens), context)
        x = self.decoder(self.embedding_dropout(x, context), context)
        if not has_sources:
            return x
        # The position before a target token predicts it. Only padding has no such position.
        predictors = jnp.maximum(target_indices - 1, 0)
        return jnp.take_along_axis(x, predictors[:, :, None], axis=1)

    def sequence_mask(self, segments: Int[Array, "b l"], is_source: Bool[Array, "b l"]) -> Mask:
        """Make the mask of self-attention.

        Args:
          segments: index of the pair of each position; 0 is padding.
          is_source: whether a position belongs to a source.
        """
        window = self.config.attention_window
        if self.config.prefix_attention:
            return prefix_mask(segments, is_source, window)
        return masks.attention_mask(segments, segments, causal=True, window=window)

    def memory(self, inputs: Sequence) -> Prompt:
        """Compute the keys and values of the sources for `step`; see `DecodingModel.memory`."""
        is_real = inputs.segments != 0
        mask = self.sequence_mask(inputs.segments, is_real)
        context = self.context("target", inputs.positions, mask)
        x = self.with_positions("target", self.embed_targets(inputs.tokens), context)
        return Prompt(self.decoder.prefill(x, context), inputs.tokens, is_real)

    def step_input(self, last: LastTokens, memory: Prompt) -> StepInput:
        """Compute the input of the decoder for one step; see `DecoderNetwork.step_input`."""
        last_index = jnp.maximum(memory.is_real.sum(1) - 1, 0)  # index of the last source token
        last_source_tokens = jnp.take_along_axis(memory.tokens, last_index[:, None], axis=1)
        tokens = jnp.where(last.positions[:, None] == 0, last_source_tokens, last.tokens)
        length, indices = memory.tokens.shape[1], last_index + last.positions

        def sources(bias: DistanceBias | None) -> tuple[SourceCache, ...]:
            offsets = indices[:, None, None] - jnp.arange(length)  # distances [b, 1, s]
            # The first step reads the last source token, and so caches its key and value.
            mask = memory.is_real & (jnp.arange(length) < last_index[:, None])
            if (window := self.config.attention_window) is not None:
                mask &= offsets[:, 0] < window
            # The position of the query differs between batch rows, so the bias does too.
            biases = None if bias is None else jax.vmap(bias)(offsets)
            return tuple(SourceCache(x, mask[:, None, None], biases) for x in memory.keys_values)

        return StepInput(tokens, jnp.broadcast_to(indices[:, None], tokens.shape), length, sources)


@dataclass(frozen=True)
class LanguageModelDecoding(CachedDecoding):
    """The `DecodingModel` of a `LanguageModel`: an output continues its source."""

    def axes(self, beam_size: int = 1) -> Axes:
        """Return the axis of the slots in each cache array, and of source positions in memory.

        `beam_size` has no effect.
        """
        axes = cache_axes("transposed", self.network.config.stacks[-1].num_layers)
        return Axes(slots=axes, sources=cast(Any, Prompt)(axes, 1, 1))

    def attention_weights(self, params: Parameters, batch: Batch) -> AttentionWeights:
        """Return self-attention weights in three arrays, named as in an encoder-decoder model.

        `encoder` has the weights between source tokens. The queries of `cross` and `decoder` are
        the positions that predict target tokens. `cross` has their weights on source tokens.
        `decoder` has their weights on each other, with 0 for the last source token. The weights of
        a query in both arrays sum to 1.

        Args:
          batch: sources `[b, s]` and targets `[b, t]`, one pair per batch row.
        """
        weights = super().attention_weights(params, batch)["decoder"]
        source_length = batch.inputs.tokens.shape[1]
        predictors = joined_pairs(batch).target_indices - 1
        query_weights = jnp.take_along_axis(weights, predictors[None, :, None, :, None], axis=3)
        is_source = (batch.inputs.segments != 0)[None, :, None, None, :]
        decoder = jnp.take_along_axis(query_weights, predictors[None, :, None, None, :], axis=4)
        return {
            "encoder": weights[:, :, :, :source_length, :source_length] * is_source,
            "decoder": decoder.at[..., 0].set(0),
            "cross": query_weights[..., :source_length] * is_source,
        }
