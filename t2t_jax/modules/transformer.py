"""The Transformer (section 3, figure 1), in training and in decoding.

Read `modules.embedding` and `modules.stack` before this file. All networks share `TokenNetwork`:
embeddings, logits and losses. `DecoderNetwork` adds the decoding step. `modules.language_model` and
`extras.encoders` define the other networks.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

import flax.linen as nn
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, PyTree

from t2t_jax.batch import Batch, Sequence, check_ids, one_a_row
from t2t_jax.config import ModelConfig, sections
from t2t_jax.errors import UserError
from t2t_jax.functional.masks import attention_mask
from t2t_jax.kernels.cross_entropy import in_chunks
from t2t_jax.kernels.reference import REFERENCE, DistanceBias, Kernels, Losses
from t2t_jax.modules.attention import Context, Mask, Norm
from t2t_jax.modules.cache import SourceCache, SourceKeysValues, TransformerCache
from t2t_jax.modules.decoding_model import LastTokens, Memory, SourceForm, TokenSources
from t2t_jax.modules.embedding import PositionEncoding, TokenEmbedding
from t2t_jax.modules.layers import Dropout
from t2t_jax.modules.parameters import parameter
from t2t_jax.modules.stack import LayerStack
from t2t_jax.parallel.axes import constrain, on_mesh

PROJECTED = "projected"
"""The collection with the input `x` of the output projection, if it is mutable."""
Side: TypeAlias = Literal["source", "target"]
"""Whether a stack reads source tokens or target tokens."""


class TokenNetwork(nn.Module):
    """A `Network` for training that predicts the probability of every target token.

    The network has an `encoder`, a `decoder` or both, between the embeddings and the output
    projection. A subclass implements the stacks in `decoded`.

    Attributes:
      config: sizes and options of the network.
      vocab_size: size of the target vocabulary.
      bos_id: id of the beginning-of-sentence token of targets.
      remat: the part of a layer that the backward pass recomputes to save memory.
      kernels: the functions that compute attention and matmuls on the devices.
      mesh: the devices that activations are split over; None leaves the split to the compiler.
      is_cached: whether the decoder computes one position at a time, with the parameters from
        `CachedDecoding.prepare`.
    """

    config: ModelConfig
    vocab_size: int
    bos_id: int
    remat: sections.Remat = "none"
    kernels: Kernels = REFERENCE
    mesh: Mesh | None = None
    is_cached: bool = False

    def setup(self) -> None:
        """Create the embeddings, position encodings and stacks, and the output bias."""
        config = self.config
        # Source, target and output may share one matrix (section 3.4): create each name once.
        for name in dict.fromkeys(config.embeddings.values()):
            num_entries = config.own_entries.get(name, self.vocab_size)
            setattr(self, name, TokenEmbedding(config, num_entries))
        if config.output_bias:
            init, shape = nn.initializers.zeros, (self.vocab_size,)
            self.output_bias = parameter(self, "output_bias", init, shape, ("vocab",))
        self.embedding_dropout = Dropout(config.dropout_rate)
        for stack in config.stacks:
            side, name = ("target", "decoder") if stack.reads_target else ("source", "encoder")
            setattr(self, f"{side}_position", PositionEncoding(config, stack.is_causal))
            if config.embedding_norm:
                setattr(self, f"{side}_embedding_norm", Norm(config.normalization))
            # Only the decoder is cached: the encoder always reads the whole source at once.
            is_cached = self.is_cached and stack.reads_target
            setattr(self, name, LayerStack(config, stack, self.remat, is_cached))

    def apply(self, variables: PyTree, *args: object, **options: Any) -> Any:
        """Apply the module with activations split over `mesh`; see `flax.linen.Module.apply`."""
        if self.mesh is None:
            return super().apply(variables, *args, **options)
        with on_mesh(self.mesh):
            return super().apply(variables, *args, **options)

    @abstractmethod
    def decoded(self, batch: Batch, base: Context | None = None) -> Float[Array, "b t d_model"]:
        """Compute the last layer's output for every target token.

        Args:
          batch: sources and targets, as for `__call__`.
          base: see `context`.
        """

    def __call__(
        self, batch: Batch, *, deterministic: bool = True, first_row: Int[Array, ""] | int = 0
    ) -> Float[Array, "b t vocab"]:
        """Compute the logits of every target token from the source and the earlier target tokens.

        Args:
          batch: sources `[b, s]` and targets `[b, t]`. The network shifts the targets right within
            each sentence.
          deterministic: whether dropout is off; if False, pass `rngs={"dropout": key}`.
          first_row: index of the first batch row in the global batch, for dropout.
        """
        return self.logits_of(self._decoded(batch, deterministic, first_row))

    def logits_of(self, x: Float[Array, "b t d_model"]) -> Float[Array, "b t vocab"]:
        """Compute the logits from the input of the output projection."""
        return self.with_output_bias(self.kernels.logits(x, self.output_matrix()))

    def losses(
        self,
        batch: Batch,
        *,
        label_smoothing: float,
        num_chunks: int = 1,
        deterministic: bool = True,
        first_row: Int[Array, ""] | int = 0,
    ) -> Losses:
        """Compute the loss of every target token, in nats; see `Network.losses`."""
        x = self._decoded(batch, deterministic, first_row)
        losses: Callable[..., Losses] = partial(
            self.kernels.losses,
            embedding=self.output_matrix(),
            bias=self.output_bias if self.config.output_bias else None,
            epsilon=label_smoothing,
            is_training=not deterministic,
        )
        # Chunks of positions bound the memory of the logits [b, t, vocab], the largest array.
        if num_chunks > 1:
            losses = in_chunks(losses, num_chunks)
        return losses(x, targets=batch.targets.tokens)

    @property
    def sources(self) -> SourceForm:
        """Return the source format of the network."""
        return TokenSources()

    def example(self) -> Batch:
        """Return an example batch, with which Flax initializes the parameters."""
        sentence = one_a_row(jnp.ones((1, 8), jnp.int32))
        return Batch(sentence, sentence)

    def previous_tokens(self, targets: Sequence) -> Int[Array, "b t"]:
        """Shift the targets right within each sentence; each sentence starts with `bos_id`."""
        # `roll` moves tokens across sentences of a packed row; position 0 replaces these by bos_id.
        previous = jnp.roll(targets.tokens, 1, axis=1)
        return jnp.where(targets.positions == 0, self.bos_id, previous)

    def context(
        self, side: Side, positions: Int[Array, "b t"], mask: Mask, base: Context | None = None
    ) -> Context:
        """Make the context of a stack of layers.

        Args:
          side: whether the stack reads source or target tokens.
          positions: position of each token in its sentence, from 0.
          mask: the mask of self-attention.
          base: the context with the other fields, such as `deterministic`; None means no
            dropout.
        """
        encoding = getattr(self, f"{side}_position")
        return replace(
            base or Context(kernels=self.kernels),
            positions=positions,
            length=positions.shape[1],
            mask=mask,
            rotary=encoding.rotary,
            bias=encoding.bias,
        )

    def with_positions(
        self, side: Side, x: Float[Array, "b t d_model"], context: Context
    ) -> Float[Array, "b t d_model"]:
        """Add position encodings to embeddings (section 3.5); normalize the sum if configured."""
        x = getattr(self, f"{side}_position")(x, context.positions, context.length)
        if self.config.embedding_norm:
            x = getattr(self, f"{side}_embedding_norm")(x)
        return constrain(x, "batch", "length", "channels")

    def embed_targets(self, tokens: Int[Array, "b t"]) -> Float[Array, "b t d_model"]:
        """Embed target tokens (section 3.4), without position encodings."""
        return getattr(self, self.config.embeddings["target"])(tokens)

    def embed_inputs(self, inputs: PyTree) -> Float[Array, "b s d_model"]:
        """Embed sources, without position encodings.

        Args:
          inputs: sources `[b, s]`; a subclass may support other formats.
        """
        name = self.config.embeddings["source"]
        num_entries = self.config.own_entries.get(name, self.vocab_size)
        check_ids("inputs.tokens", inputs.tokens, num_entries)
        return getattr(self, name)(inputs.tokens)

    def encode(self, inputs: PyTree, base: Context | None = None) -> Float[Array, "b s d_model"]:
        """Compute the output of the encoder, in networks with an encoder.

        Args:
          inputs: sources, a `Sequence` of arrays `[b, s]` or another format; see `Batch`.
          base: see `context`.
        """
        segments, window = inputs.segments, self.config.attention_window
        mask = attention_mask(segments, segments, window=window)
        context = self.context("source", inputs.positions, mask, base)
        x = self.with_positions("source", self.embed_inputs(inputs), context)
        return self.encoder(self.embedding_dropout(x, context), context)

    def output_matrix(self) -> Any:
        """Return the matrix `[vocab, d_model]` of the output projection."""
        return getattr(self, self.config.embeddings["output"]).matrix()

    def with_output_bias(self, logits: Float[Array, "b t vocab"]) -> Float[Array, "b t vocab"]:
        """Add the output bias to logits, if the network has one."""
        return logits + self.output_bias if self.config.output_bias else logits

    def _decoded(
        self, batch: object, deterministic: bool, first_row: Int[Array, ""] | int
    ) -> Float[Array, "b t d_model"]:
        """Check a batch, and compute the input of the output projection."""
        if not isinstance(batch, Batch) or not all(hasattr(side, "segments") for side in batch):
            raise UserError(
                "the network is called without a batch of sentences; make one with "
                "t2t_jax.Batch.of(inputs, targets)"
            )
        check_ids("targets.tokens", batch.targets.tokens, self.vocab_size)
        base = Context(deterministic=deterministic, first_row=first_row, kernels=self.kernels)
        # A logit sums d_model products, whose signs agree after training, so the logit grows with
        # d_model. The division by the width multiple prevents this (Yang et al. 2021, table 8).
        x = self.decoded(batch, base) / self.config.width_multiple
        if not self.is_initializing():
            self.sow(PROJECTED, "x", x)
        return x


class StepInput(NamedTuple):
    """The input of the decoder in one decoding step."""

    tokens: Int[Array, "b k"]
    """Tokens for the decoder to read; at position 0, the first input token, such as bos."""
    positions: Int[Array, "b k"]
    """Positions of these tokens."""
    prefix_length: int
    """Maximum number of positions before the position of the first step."""
    sources: Callable[[DistanceBias | None], tuple[SourceCache, ...]]
    """Function from a distance bias to the keys and values of the sources in each layer."""


class DecoderNetwork(TokenNetwork):
    """A network whose decoder also computes one position at a time, with a cache."""

    @abstractmethod
    def memory(self, inputs: Sequence) -> Memory:
        """Read sources `[b, s]`, one a row; see `DecodingModel.memory`."""

    @abstractmethod
    def step_input(self, last: LastTokens, memory: Memory) -> StepInput:
        """Make the decoder's input for a step; see `DecodingModel.step`."""

    def step(
        self, last: LastTokens, cache: TransformerCache, memory: Memory
    ) -> tuple[Float[Array, "b k vocab"], TransformerCache]:
        """Compute the logits of the next token of each hypothesis; see `DecodingModel.step`."""
        inputs = self.step_input(last, memory)
        context = self._step_context(inputs, last.clock, last.ancestry_mask)
        sources = inputs.sources(context.bias)
        x = self.with_positions("target", self.embed_targets(inputs.tokens), context)
        beam_size, capacity = last.ancestry_mask.shape[1:3]  # [b, beams, capacity, beams]
        # The cache is a ring buffer: once it is full, a step overwrites the oldest position.
        write_at = last.clock % cache_length(self.config, capacity) * beam_size
        x, cache = self.decoder.step(x, cache, sources, write_at, context)
        x /= self.config.width_multiple  # as in `_decoded`
        return self.with_output_bias(self.kernels.next_logits(x, self.output_matrix())), cache

    def _step_context(
        self, inputs: StepInput, clock: Int[Array, ""], ancestry_mask: Bool[Array, "b k t k"]
    ) -> Context:
        batch, beam_size, capacity, _ = ancestry_mask.shape
        num_cache_positions = cache_length(self.config, capacity)
        cache_distances = None
        # Only a window or a bias depends on the age of a position, so other models skip this.
        if self.target_position.bias is not None or num_cache_positions < capacity:
            # Step `clock` writes to the cache position `clock % num_cache_positions`.
            steps_ago = (clock - jnp.arange(num_cache_positions)) % num_cache_positions
            # The ancestry has `capacity` positions, the cache perhaps fewer: match them by age.
            ancestry_mask = ancestry_mask[:, :, (clock - steps_ago) % capacity]
            cache_distances = jnp.repeat(steps_ago, beam_size)[None]  # [1, slots]
        # [batch, heads, queries, slots]: the beams are the queries.
        mask = ancestry_mask.reshape(batch, 1, beam_size, num_cache_positions * beam_size)
        context = self.context("target", inputs.positions, mask)
        max_length = inputs.prefix_length + capacity
        return replace(context, length=max_length, cache_distances=cache_distances)


def cache_length(config: ModelConfig, capacity: int) -> int:
    """Return the number of cached positions: `capacity`, but at most the attention window."""
    return min(capacity, config.attention_window or capacity)


class TransformerMemory(NamedTuple):
    """The encoded sources in decoding, shared by all hypotheses of a source."""

    keys_values: tuple[SourceKeysValues, ...]
    """Keys and values of the encoder's output in each decoder layer."""
    mask: Bool[Array, "b 1 1 s"]
    """False at padding."""


class Transformer(DecoderNetwork):
    """The Transformer (section 3, figure 1)."""

    def decoded(self, batch: Batch, base: Context | None = None) -> Float[Array, "b t d_model"]:
        """Compute the decoder's output for every target token; see `TokenNetwork.decoded`."""
        inputs, targets = batch
        encoded = self.encode(inputs, base)
        segments, window = targets.segments, self.config.attention_window
        is_causal = self.config.stacks[-1].is_causal
        mask = attention_mask(segments, segments, causal=is_causal, window=window)
        context = self.context("target", targets.positions, mask, base)
        # Segment ids pair each target sentence with its source if a batch row packs several.
        encoded_mask = attention_mask(segments, inputs.segments)
        context = replace(context, encoded=encoded, encoded_mask=encoded_mask)
        x = self.embed_targets(self.previous_tokens(targets))
        x = self.with_positions("target", x, context)
        return self.decoder(self.embedding_dropout(x, context), context)

    def memory(self, inputs: PyTree) -> TransformerMemory:
        """Encode the sources; see `DecodingModel.memory`."""
        mask = (inputs.segments != 0)[:, None, None, :]
        context = Context(inputs.positions, mask.shape[-1], mask, kernels=self.kernels)
        return TransformerMemory(self.decoder.prefill(self.encode(inputs), context), mask)

    def step_input(self, last: LastTokens, memory: TransformerMemory) -> StepInput:
        """Compute the input of the decoder for one step; see `DecoderNetwork.step_input`."""
        positions = jnp.broadcast_to(last.positions[:, None], last.tokens.shape)
        tokens = jnp.where(positions == 0, self.bos_id, last.tokens)
        sources = tuple(SourceCache(layer, memory.mask) for layer in memory.keys_values)
        # Cross-attention has no bias by distance.
        return StepInput(tokens, positions, 0, lambda _: sources)
