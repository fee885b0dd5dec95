"""The encoder-decoder of section 3, for training and for decoding.

Layer stacks are compiled as one scan: a parameter of all layers of a stack is one array with the
layer as leading axis (`encoder/layers/self_attention/query/kernel`: `[layers, d_model, h * d_k]`).
"""

from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from t2t_jax.config import ModelConfig
from t2t_jax.functional.loss import projected_cross_entropy
from t2t_jax.functional.masks import SegmentMask, attention_mask
from t2t_jax.kernels.products import next_token_logits, pre_softmax_logits
from t2t_jax.modules.attention import CachedKeysValues, join_projections
from t2t_jax.modules.dropout import Dropout, FirstRow
from t2t_jax.modules.embedding import PositionEncoding, TokenEmbedding
from t2t_jax.modules.layers import DecoderLayer, EncoderLayer, LayerNorm
from t2t_jax.modules.matrices import Quantize, quantized, transposed
from t2t_jax.parallel.axes import constrain


class Memory(NamedTuple):
    """What decoding needs of the source, computed once per sentence and shared by its hypotheses.

    Attributes:
      keys_values: of the encoder's output, for each decoder layer.
      mask: which source positions are real.
    """

    keys_values: tuple[CachedKeysValues, ...]
    mask: Bool[Array, "b 1 1 s"]


Parameters = dict[str, Any]
"""The parameters of a `Transformer`, by module and name."""

# Self-attention keys and values of each decoder layer, `[b, h, d, room * k]`.
Cache = tuple[CachedKeysValues, ...]


Remat: TypeAlias = Literal["none", "dots", "layer"]
"""What a layer's forward pass leaves in memory for its derivative; the rest is computed again."""


def _scan(
    layer: nn.Module, depth: int, remat: Remat, x: Float[Array, "b t d"], *args: Any
) -> Float[Array, "b t d"]:
    """Pass `x` through `depth` copies of `layer`, whose parameters are stacked."""

    def one_layer(layer: nn.Module, x: Array, _: None) -> tuple[Array, None]:
        return layer(x, *args), None

    if remat != "none":
        policies = jax.checkpoint_policies
        keep = policies.dots_with_no_batch_dims_saveable if remat == "dots" else None
        # Within a scan the compiler cannot undo it by common subexpressions.
        one_layer = nn.remat(one_layer, prevent_cse=False, policy=keep)
    stack = nn.scan(
        one_layer,
        variable_axes={"params": 0, "intermediates": 0},
        split_rngs={"params": True, "dropout": True},
        length=depth,
        metadata_params={nn.PARTITION_NAME: "layers"},
    )
    return stack(layer, x, None)[0]


class Encoder(nn.Module):
    """A stack of N encoder layers."""

    config: ModelConfig
    remat: Remat = "none"

    def setup(self) -> None:
        """Create the stack; pre-norm needs one more norm at its end."""
        self.layers = EncoderLayer(self.config)
        self.norm = LayerNorm() if self.config.norm_order == "pre" else None

    def __call__(
        self,
        x: Float[Array, "b s d_model"],
        mask: Bool[Array, "b 1 s s"] | SegmentMask,
        first_row: FirstRow = None,
    ) -> Float[Array, "b s d_model"]:
        """Encode embedded sources."""
        depth = self.config.num_encoder_layers
        x = _scan(self.layers, depth, self.remat, x, mask, first_row)
        return self.norm(x) if self.norm else x


class Decoder(nn.Module):
    """A stack of N decoder layers."""

    config: ModelConfig
    remat: Remat = "none"

    def setup(self) -> None:
        """Create the stack; pre-norm needs one more norm at its end."""
        self.layers = DecoderLayer(self.config)
        self.norm = LayerNorm() if self.config.norm_order == "pre" else None

    def __call__(
        self,
        x: Float[Array, "b t d_model"],
        encoded: Float[Array, "b s d_model"],
        self_mask: Bool[Array, "b 1 t t"] | SegmentMask,
        cross_mask: Bool[Array, "b 1 t s"] | SegmentMask,
        first_row: FirstRow = None,
    ) -> Float[Array, "b t d_model"]:
        """Decode embedded targets, all positions at once."""
        depth = self.config.num_decoder_layers
        masks = (self_mask, cross_mask)
        x = _scan(self.layers, depth, self.remat, x, encoded, *masks, first_row)
        return self.norm(x) if self.norm else x

    def keys_values(self, encoded: Float[Array, "b s d_model"]) -> tuple[CachedKeysValues, ...]:
        """Project the encoder's output to keys and values for each layer's cross-attention."""
        layer = DecoderLayer(self.config, parent=None)

        project: Any = partial(
            layer.apply, method=lambda layer, x: layer.cross_attention.cached_keys_values(x)
        )
        return tuple(project(layer, encoded) for layer in self._layers())

    def step(
        self,
        x: Float[Array, "b k d_model"],
        cache: Cache,
        memory: Memory,
        write_at: int | Array,
        self_mask: Bool[Array, "b 1 k slots"],
    ) -> tuple[Float[Array, "b k d_model"], Cache]:
        """One position of `k` hypotheses per sentence; see `DecoderLayer.step`."""
        layer_step: Any = partial(DecoderLayer(self.config, parent=None).apply, method="step")
        new_cache = []
        layers = zip(self._layers(), cache, memory.keys_values, strict=True)
        for parameters, old, keys_values in layers:
            arguments = (x, old, keys_values, write_at, self_mask, memory.mask)
            x, new = layer_step(parameters, *arguments)
            new_cache.append(new)
        return self.norm(x) if self.norm else x, tuple(new_cache)

    def _layers(self) -> list[dict[str, Any]]:
        """The variables of each layer, which `decoding_parameters` has taken apart."""
        layers = self.variables["params"]["layers"]
        return [{"params": layers[str(i)]} for i in range(self.config.num_decoder_layers)]


class Transformer(nn.Module):
    """The Transformer (section 3, figure 1).

    Attributes:
      config: sizes and options.
      vocab_size: entries of the shared vocabulary.
      bos_id: id that stands before the first target token.
      remat: what layers keep of the forward pass for their derivative: "none" is computed again,
        all but the matrix products with parameters ("dots"), or all but their inputs ("layer").
    """

    config: ModelConfig
    vocab_size: int
    bos_id: int
    remat: Remat = "none"

    def setup(self) -> None:
        """Create embeddings, encoder and decoder."""
        config = self.config
        if config.share_embeddings:
            self.embedding = TokenEmbedding(config, self.vocab_size)
        else:
            self.source_embedding = TokenEmbedding(config, self.vocab_size)
            self.target_embedding = TokenEmbedding(config, self.vocab_size)
            self.output_projection = TokenEmbedding(config, self.vocab_size)
        self.source_position = PositionEncoding(config)
        self.target_position = PositionEncoding(config)
        self.embedding_dropout = Dropout(config.dropout_rate)
        self.encoder = Encoder(config, self.remat)
        self.decoder = Decoder(config, self.remat)

    def __call__(
        self,
        inputs: Int[Array, "b s"],
        inputs_segments: Int[Array, "b s"],
        inputs_positions: Int[Array, "b s"],
        targets: Int[Array, "b t"],
        targets_segments: Int[Array, "b t"],
        targets_positions: Int[Array, "b t"],
        *,
        deterministic: bool,
    ) -> Float[Array, "b t vocab"]:
        """Logits of every target token, given the source and the target tokens before it.

        The arguments are the fields of a `Batch`, in its order: `model.apply(variables, *batch)`.

        Args:
          inputs: source ids.
          inputs_segments: sentence number from 1 within the row; 0 is padding.
          inputs_positions: position within the sentence, from 0.
          targets: target ids, not shifted; the model shifts them right within each sentence.
          targets_segments: as for the inputs.
          targets_positions: as for the inputs.
          deterministic: no dropout; otherwise pass `rngs={"dropout": key}`.
        """
        x = self._decoded(
            inputs,
            inputs_segments,
            inputs_positions,
            targets,
            targets_segments,
            targets_positions,
            first_row=None if deterministic else 0,
        )
        return pre_softmax_logits(x, self._output_matrix())

    def losses(
        self,
        *batch: Int[Array, "b _"],
        label_smoothing: float,
        num_chunks: int = 1,
        first_row: FirstRow = None,
    ) -> tuple[Float[Array, "b t"], Float[Array, "b t"]]:
        """Label-smoothed loss and negative log-likelihood of every target token, in nats.

        Args:
          batch: as for `__call__`.
          label_smoothing: eps_ls.
          num_chunks: see `projected_cross_entropy`.
          first_row: where the first row stands in the global batch, for dropout, which needs
            `rngs={"dropout": key}`; None means no dropout.
        """
        x = self._decoded(*batch, first_row=first_row)
        matrix = self._output_matrix()
        return projected_cross_entropy(x, matrix, batch[3], label_smoothing, num_chunks)

    def _decoded(
        self,
        inputs: Int[Array, "b s"],
        inputs_segments: Int[Array, "b s"],
        inputs_positions: Int[Array, "b s"],
        targets: Int[Array, "b t"],
        targets_segments: Int[Array, "b t"],
        targets_positions: Int[Array, "b t"],
        *,
        first_row: FirstRow,
    ) -> Float[Array, "b t d_model"]:
        """The decoder's output at every target position."""
        encoded = self.encode(inputs, inputs_segments, inputs_positions, first_row)
        previous = jnp.roll(targets, 1, axis=1)
        previous = jnp.where(targets_positions == 0, self.bos_id, previous)
        x = self._embed("target", previous, targets_positions, targets.shape[1])
        return self.decoder(
            self.embedding_dropout(x, first_row),
            encoded,
            attention_mask(targets_segments, targets_segments, causal=True),
            attention_mask(targets_segments, inputs_segments),
            first_row,
        )

    def encode(
        self,
        inputs: Int[Array, "b s"],
        inputs_segments: Int[Array, "b s"],
        inputs_positions: Int[Array, "b s"],
        first_row: FirstRow = None,
    ) -> Float[Array, "b s d_model"]:
        """The encoder's output."""
        x = self._embed("source", inputs, inputs_positions, inputs.shape[1])
        mask = attention_mask(inputs_segments, inputs_segments)
        return self.encoder(self.embedding_dropout(x, first_row), mask, first_row)

    def memory(self, inputs: Int[Array, "b s"], inputs_segments: Int[Array, "b s"]) -> Memory:
        """Encode sources, one a row, for decoding."""
        positions = jnp.broadcast_to(jnp.arange(inputs.shape[1]), inputs.shape)
        encoded = self.encode(inputs, inputs_segments, positions)
        mask = (inputs_segments != 0)[:, None, None, :]
        return Memory(self.decoder.keys_values(encoded), mask)

    def step(
        self,
        tokens: Int[Array, "b k"],
        positions: Int[Array, " b"],
        place: Int[Array, ""],
        ancestry_mask: Bool[Array, "b k t k"],
        cache: Cache,
        memory: Memory,
    ) -> tuple[Float[Array, "b k vocab"], Cache]:
        """Logits of the next token of `k` hypotheses per sentence.

        Args:
          tokens: the hypotheses' last tokens; `bos_id` at position 0.
          positions: where they stand in each sentence, from 0.
          place: of the cache, to write to.
          ancestry_mask: `[b, j, t, i]`: the entry that slot `i` wrote at place `t` belongs to
            hypothesis `j`'s history (its own entry at `place` included).
          cache: from `init_cache`, or returned by the step before.
          memory: from `memory`. Both methods take `decoding_parameters`.

        Returns:
          The logits, and the cache with this place written.
        """
        batch, beams, room, _ = ancestry_mask.shape
        positions = jnp.broadcast_to(positions[:, None], tokens.shape)
        x = self._embed("target", tokens, positions, room)
        self_mask = ancestry_mask.reshape(batch, 1, beams, room * beams)
        x, cache = self.decoder.step(x, cache, memory, place * beams, self_mask)
        return next_token_logits(x, self._output_matrix()), cache

    def _embed(
        self, side: str, tokens: Int[Array, "b t"], positions: Int[Array, "b t"], length: int
    ) -> Float[Array, "b t d_model"]:
        shared = self.config.share_embeddings
        embedding = self.embedding if shared else getattr(self, f"{side}_embedding")
        x = getattr(self, f"{side}_position")(embedding(tokens), positions, length)
        return constrain(x, "batch", "length", "channels")

    def _output_matrix(self) -> Any:
        shared = self.config.share_embeddings
        return (self.embedding if shared else self.output_projection).matrix()


def init_cache(config: ModelConfig, batch_size: int, beam_size: int, room: int) -> Cache:
    """An empty decode cache with `room` places for `beam_size` hypotheses of each sentence."""
    slots, dtype = room * beam_size, jnp.dtype(config.compute_dtype)
    keys, values = (
        jnp.zeros((batch_size, config.num_heads, size, slots), dtype)
        for size in (config.key_size, config.value_size)
    )
    return ((keys, values),) * config.num_decoder_layers


def decoding_parameters(
    config: ModelConfig, params: Parameters, quantize: Quantize = "none"
) -> Parameters:
    """The parameters as `memory` and `step` take them.

    Each layer of the decoder has arrays of its own. A decoding loop that is unrolled copies no
    cache, but it would cut the layers out of the stacked arrays again for every token: for one
    sentence, that takes as long as the token.

    Args:
      config: of the model.
      params: as in training.
      quantize: what to make of its matrices.
    """
    decoder = params["decoder"]

    def layer(number: int) -> Parameters:
        one: Parameters = jax.tree.map(lambda p: p[number], decoder["layers"])
        one["self_attention"] = join_projections(one["self_attention"], config.num_heads)
        if quantize == "none":
            one["feed_forward"] = transposed(one["feed_forward"])
        return one

    layers = {str(number): layer(number) for number in range(config.num_decoder_layers)}
    params = params | {"decoder": decoder | {"layers": layers}}
    return params if quantize == "none" else quantized(params)
