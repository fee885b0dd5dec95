"""The Transformer (section 3, figure 1), in training and in decoding.

Read `modules.embedding` and `modules.stack` before this file. `TokenNetwork` is what all networks
share: embeddings, logits and losses. `DecoderNetwork` adds the decoder's step. The other networks
are in `modules.language_model` and in `extras.encoders`.
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
from t2t_jax.modules.cache import Remembered, RememberedKeysValues, TransformerCache
from t2t_jax.modules.decoding_model import LastTokens, Memory, SourceForm, TokenSources
from t2t_jax.modules.embedding import PositionEncoding, TokenEmbedding
from t2t_jax.modules.layers import Dropout
from t2t_jax.modules.parameters import parameter
from t2t_jax.modules.stack import LayerStack
from t2t_jax.parallel.axes import constrain, on_mesh

Side: TypeAlias = Literal["source", "target"]
"""Whether tokens are those of sources or of targets."""


class TokenNetwork(nn.Module):
    """A network that gives every target token a probability, a `Network` for training.

    It has the stacks of its config, `encoder` or `decoder` or both, with embeddings before and the
    output projection after them. A subclass defines in `decoded` what passes through the stacks.

    Attributes:
      config: sizes and options of the network.
      vocab_size: entries of the vocabulary, for targets.
      bos_id: id of the beginning-of-sentence token of targets.
      remat: the part of a layer that the backward pass recomputes instead of keeping it in memory.
      kernels: the functions that compute attention and matmuls on the devices.
      mesh: the devices over which activations are split, in training, evaluation and search; None
        leaves the split to the compiler.
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
        """Create the stacks of layers, their embeddings and positions, and the output bias."""
        config = self.config
        for name in dict.fromkeys(config.embeddings.values()):
            entries = config.own_entries.get(name, self.vocab_size)
            setattr(self, name, TokenEmbedding(config, entries))
        if config.output_bias:
            zeros, shape = nn.initializers.zeros, (self.vocab_size,)
            self.output_bias = parameter(self, "output_bias", zeros, shape, ("vocab",))
        self.embedding_dropout = Dropout(config.dropout_rate)
        for stack in config.stacks:
            side, name = ("target", "decoder") if stack.reads_target else ("source", "encoder")
            setattr(self, f"{side}_position", PositionEncoding(config, stack.is_causal))
            if config.embedding_norm:
                setattr(self, f"{side}_embedding_norm", Norm(config.normalization))
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
        """Return the last layer's output at every target.

        Args:
          batch: sources and targets, as for `__call__`.
          base: see `context`.
        """

    def __call__(
        self, batch: Batch, *, deterministic: bool = True, first_row: Int[Array, ""] | int = 0
    ) -> Float[Array, "b t vocab"]:
        """Compute the logits of every target token, given the source and earlier target tokens.

        Args:
          batch: sources and targets, arrays `[b, s]` and `[b, t]`. The model shifts the targets
            right within each sentence.
          deterministic: whether dropout is off; if not, pass `rngs={"dropout": key}`.
          first_row: index of the first row in the global batch, on which dropout depends.
        """
        x = self._decoded(batch, deterministic, first_row)
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
        """See `Network.losses`."""
        x = self._decoded(batch, deterministic, first_row)
        losses: Callable[..., Losses] = partial(
            self.kernels.losses,
            embedding=self.output_matrix(),
            bias=self.output_bias if self.config.output_bias else None,
            epsilon=label_smoothing,
            is_training=not deterministic,
        )
        if num_chunks > 1:
            losses = in_chunks(losses, num_chunks)
        return losses(x, targets=batch.targets.tokens)

    @property
    def sources(self) -> SourceForm:
        """Return the form of the sources that the network reads."""
        return TokenSources()

    def example(self) -> Batch:
        """Return a batch in the network's form, for initialising its parameters."""
        sentence = one_a_row(jnp.ones((1, 8), jnp.int32))
        return Batch(sentence, sentence)

    def previous_tokens(self, targets: Sequence) -> Int[Array, "b t"]:
        """Return the token before each target token in its sentence; before the first, `bos_id`."""
        previous = jnp.roll(targets.tokens, 1, axis=1)
        return jnp.where(targets.positions == 0, self.bos_id, previous)

    def context(
        self, side: Side, positions: Int[Array, "b t"], mask: Mask, base: Context | None = None
    ) -> Context:
        """Make the context of a stack of layers.

        Args:
          side: whether the stack reads tokens of sources or of targets.
          positions: position of each token within its sentence, from 0.
          mask: which positions may attend to which.
          base: gives all else, such as whether dropout is off; None means that it is.
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
        """Add positions to embeddings (section 3.5), and normalise the sum if configured."""
        x = getattr(self, f"{side}_position")(x, context.positions, context.length)
        if self.config.embedding_norm:
            x = getattr(self, f"{side}_embedding_norm")(x)
        return constrain(x, "batch", "length", "channels")

    def embed_targets(self, tokens: Int[Array, "b t"]) -> Float[Array, "b t d_model"]:
        """Return the embeddings of tokens of targets (section 3.4), before positions are added."""
        return getattr(self, self.config.embeddings["target"])(tokens)

    def embed_inputs(self, inputs: PyTree) -> Float[Array, "b s d_model"]:
        """Return the embeddings of sources, before positions are added.

        Args:
          inputs: sources `[b, s]`; a subclass may read another form than tokens.
        """
        name = self.config.embeddings["source"]
        size = self.config.own_entries.get(name, self.vocab_size)
        check_ids("inputs.tokens", inputs.tokens, size)
        return getattr(self, name)(inputs.tokens)

    def encode(self, inputs: PyTree, base: Context | None = None) -> Float[Array, "b s d_model"]:
        """Return the output of the encoder, which the network must have.

        Args:
          inputs: sources, a `Sequence` of arrays `[b, s]` or another form; see `Batch`.
          base: see `context`.
        """
        segments, window = inputs.segments, self.config.attention_window
        mask = attention_mask(segments, segments, window=window)
        context = self.context("source", inputs.positions, mask, base)
        x = self.with_positions("source", self.embed_inputs(inputs), context)
        return self.encoder(self.embedding_dropout(x, context), context)

    def output_matrix(self) -> Any:
        """Return the matrix of the output projection, one row for every entry of the vocabulary."""
        return getattr(self, self.config.embeddings["output"]).matrix()

    def with_output_bias(self, logits: Float[Array, "b t vocab"]) -> Float[Array, "b t vocab"]:
        """Return the logits plus the bias of the output, if the network has one."""
        return logits + self.output_bias if self.config.output_bias else logits

    def _decoded(
        self, batch: object, deterministic: bool, first_row: Int[Array, ""] | int
    ) -> Float[Array, "b t d_model"]:
        """Check a batch, and return the input of the output projection at every target."""
        if not isinstance(batch, Batch) or not all(hasattr(side, "segments") for side in batch):
            raise UserError(
                "the network is called without a batch of sentences; make one with "
                "t2t_jax.Batch.of(inputs, targets)"
            )
        check_ids("targets.tokens", batch.targets.tokens, self.vocab_size)
        base = Context(deterministic=deterministic, first_row=first_row, kernels=self.kernels)
        # A logit sums d_model products. Training makes their signs agree, so that the sum grows
        # with d_model; the division by the width undoes this (Yang et al. 2021, table 8).
        return self.decoded(batch, base) / self.config.width_multiple


class StepInput(NamedTuple):
    """The input of a decoder's step, which each family builds from the hypotheses' last tokens."""

    tokens: Int[Array, "b k"]
    """The tokens that the decoder reads: at position 0, the token that the output starts from."""
    positions: Int[Array, "b k"]
    """The positions of these tokens."""
    before: int
    """The greatest number of positions before that of the first step."""
    sources: Callable[[DistanceBias | None], tuple[Remembered, ...]]
    """The function from a bias by distance to the sources' keys and values of each layer."""


class DecoderNetwork(TokenNetwork):
    """A network whose decoder computes all positions at once or, with a cache, one at a time."""

    @abstractmethod
    def memory(self, inputs: Sequence) -> Memory:
        """Read sources `[b, s]`, one a row; see `DecodingModel.memory`."""

    @abstractmethod
    def step_input(self, last: LastTokens, memory: Memory) -> StepInput:
        """Return the input of the decoder in a step; see `DecodingModel.step`.

        Args:
          last: the hypotheses' last tokens, and their position in each output.
          memory: the memory of the sources, from `memory`.
        """

    def step(
        self, last: LastTokens, cache: TransformerCache, memory: Memory
    ) -> tuple[Float[Array, "b k vocab"], TransformerCache]:
        """See `DecodingModel.step`."""
        now = self.step_input(last, memory)
        context = self._step_context(now, last.clock, last.ancestry_mask)
        sources = now.sources(context.bias)
        x = self.with_positions("target", self.embed_targets(now.tokens), context)
        beams, room = last.ancestry_mask.shape[1:3]
        write_at = last.clock % cache_places(self.config, room) * beams
        x, cache = self.decoder.step(x, cache, sources, write_at, context)
        x /= self.config.width_multiple  # as in `_decoded`
        return self.with_output_bias(self.kernels.next_logits(x, self.output_matrix())), cache

    def _step_context(
        self, now: StepInput, clock: Int[Array, ""], ancestry_mask: Bool[Array, "b k t k"]
    ) -> Context:
        """Return the context of a step, whose mask is over the slots of the cache."""
        batch, beams, room, _ = ancestry_mask.shape
        places = cache_places(self.config, room)
        apart = None
        if self.target_position.bias is not None or places < room:
            steps_ago = (clock - jnp.arange(places)) % places
            ancestry_mask = ancestry_mask[:, :, (clock - steps_ago) % room]
            apart = jnp.repeat(steps_ago, beams)[None]
        mask = ancestry_mask.reshape(batch, 1, beams, places * beams)
        context = self.context("target", now.positions, mask)
        return replace(context, length=now.before + room, apart=apart)


def cache_places(config: ModelConfig, room: int) -> int:
    """Return the number of positions of a cache, as no step looks back further than its window.

    Args:
      config: sizes and options of the network.
      room: positions of the ring; see `DecodingModel.empty_cache`.
    """
    return min(room, config.attention_window or room)


class TransformerMemory(NamedTuple):
    """The arrays of the sources for decoding, shared by all hypotheses of a source.

    Attributes:
      keys_values: keys and values of the encoder's output, for each decoder layer.
      mask: True for the source positions that are not padding.
    """

    keys_values: tuple[RememberedKeysValues, ...]
    mask: Bool[Array, "b 1 1 s"]


class Transformer(DecoderNetwork):
    """The Transformer (section 3, figure 1)."""

    def decoded(self, batch: Batch, base: Context | None = None) -> Float[Array, "b t d_model"]:
        """See `TokenNetwork.decoded`."""
        inputs, targets = batch
        encoded = self.encode(inputs, base)
        segments, window = targets.segments, self.config.attention_window
        mask = attention_mask(segments, segments, causal=True, window=window)
        context = self.context("target", targets.positions, mask, base)
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
        """See `DecoderNetwork.step_input`."""
        at = jnp.broadcast_to(last.positions[:, None], last.tokens.shape)
        tokens = jnp.where(at == 0, self.bos_id, last.tokens)
        sources = tuple(Remembered(each, memory.mask) for each in memory.keys_values)
        return StepInput(tokens, at, 0, lambda _: sources)
