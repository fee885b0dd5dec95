"""The shared part of networks over tokens: embeddings, logits and losses."""

from abc import abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias, cast

import flax.linen as nn
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from t2t_jax.batch import Batch, Sequence, check_ids, one_a_row
from t2t_jax.config import ModelConfig, model, sections
from t2t_jax.errors import UserError
from t2t_jax.functional import loss, masks
from t2t_jax.kernels import choice, normalizer
from t2t_jax.kernels.products import pre_softmax_logits, rounded_logits, target_logits
from t2t_jax.modules import matrices, normalization
from t2t_jax.modules.context import Context, Mask
from t2t_jax.modules.decoding_model import SourceForm, TokenSources
from t2t_jax.modules.embedding import PositionEncoding, TokenEmbedding
from t2t_jax.modules.layers import Dropout, LayerStack
from t2t_jax.parallel.axes import constrain, named, on_mesh

Side: TypeAlias = Literal["source", "target"]
"""Whether tokens are those of sources or of targets."""


class TokenNetwork(nn.Module):
    """A network that gives every target token a probability, a `Network` for training.

    It has the stacks of its config, `encoder` or `decoder` or both, with embeddings before and the
    output projection after them. A subclass defines in `decoded` what passes through the stacks.

    Attributes:
      vocab_size: entries of the vocabulary, for targets.
      bos_id: id of the beginning-of-sentence token of targets.
      remat: the part of a layer that the backward pass recomputes instead of keeping it in memory.
      kernels: the implementations of attention and matmuls for the devices.
      mesh: the devices over which activations are split, in training, evaluation and search; None
        leaves the split to the compiler.
    """

    config: ModelConfig
    vocab_size: int
    bos_id: int
    remat: sections.Remat = "none"
    kernels: choice.Kernels = choice.XLA_KERNELS
    mesh: Mesh | None = None

    def setup(self) -> None:
        """Create the stacks of layers, their embeddings and positions, and the output bias."""
        config = self.config
        for name, entries in config.entries(self.vocab_size).items():
            setattr(self, name, TokenEmbedding(config, entries))
        if config.output_bias:
            zeros = named(nn.initializers.zeros, "vocab")
            self.output_bias = self.param("output_bias", zeros, (self.vocab_size,))
        self.embedding_dropout = Dropout(config.dropout_rate)
        for stack in config.stacks:
            side, name = ("target", "decoder") if stack.reads_target else ("source", "encoder")
            setattr(self, f"{side}_position", PositionEncoding(config, stack.is_causal))
            if config.embedding_norm:
                setattr(self, f"{side}_embedding_norm", normalization.Norm(config.normalization))
            setattr(self, name, self.make_stack(stack))

    def make_stack(self, stack: model.Stack) -> nn.Module:
        """Make a stack of layers; subclasses may override it."""
        return LayerStack(self.config, stack, self.remat)

    def apply(self, variables: Any, *args: Any, **options: Any) -> Any:
        """Apply the module with activations split over `mesh`; see `flax.linen.Module.apply`."""
        with on_mesh(self.mesh):
            return super().apply(variables, *args, **options)

    @abstractmethod
    def decoded(
        self, batch: Batch, deterministic: bool, first_row: Int[Array, ""] | int
    ) -> Float[Array, "b t d_model"]:
        """Return the last layer's output at every target; arguments as for `__call__`."""

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
        x = self.before_output(self.decoded(self._checked(batch), deterministic, first_row))
        logits = pre_softmax_logits(x, self.output_matrix(), self.kernels.products)
        return self.with_output_bias(logits)

    def losses(
        self,
        batch: Batch,
        *,
        label_smoothing: float,
        num_chunks: int = 1,
        deterministic: bool = True,
        first_row: Int[Array, ""] | int = 0,
    ) -> tuple[Float[Array, "b t"], Float[Array, "b t"]]:
        """See `Network.losses`."""
        x = self.before_output(self.decoded(self._checked(batch), deterministic, first_row))
        matrix = self.output_matrix()

        is_rounded = self.kernels.logits == "rounded" and not deterministic  # in training only

        def project(x: Float[Array, "b t d_model"]) -> Float[Array, "b t vocab"]:
            if is_rounded:
                logits = rounded_logits(x, matrix)
            else:
                logits = pre_softmax_logits(x, matrix, self.kernels.products)
            return self.with_output_bias(logits)

        tokens = batch.targets.tokens
        form = self.kernels.loss
        guess = partial(target_logits, embedding=matrix) if form == "within_the_product" else None
        return loss.projected_cross_entropy(
            x, project, tokens, label_smoothing, num_chunks, normalizer.NORMALIZERS[form], guess
        )

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
        self,
        side: Side,
        positions: Int[Array, "b t"],
        mask: Mask,
        *,
        length: int | None = None,
        **options: Any,
    ) -> Context:
        """Make the context of a stack of layers.

        Args:
          side: whether the stack reads tokens of sources or of targets.
          positions: position of each token within its sentence, from 0.
          length: a number above every position; None means the length of a row.
        """
        length = positions.shape[1] if length is None else length
        encoding = getattr(self, f"{side}_position")
        rotary, bias = encoding.rotary_frequencies(), encoding.bias()
        return Context(positions, length, mask, rotary, bias, kernels=self.kernels, **options)

    def embed(
        self, side: Side, tokens: Int[Array, "b t"], context: Context
    ) -> Float[Array, "b t d_model"]:
        """Add up embeddings and positions (sections 3.4 and 3.5)."""
        embedding = getattr(self, self.config.embeddings[side])
        return self.with_positions(side, embedding(tokens), context)

    def with_positions(
        self, side: Side, x: Float[Array, "b t d_model"], context: Context
    ) -> Float[Array, "b t d_model"]:
        """Add the positions to embeddings, and normalise the sum if the config says so."""
        x = getattr(self, f"{side}_position")(x, context.positions, context.length)
        if self.config.embedding_norm:
            x = getattr(self, f"{side}_embedding_norm")(x)
        return constrain(x, "batch", "length", "channels")

    def embed_inputs(self, inputs: Any, context: Context) -> Float[Array, "b s d_model"]:
        """Return the input of the first layer that reads sources.

        Args:
          inputs: sources `[b, s]`; a subclass may read another form than tokens.
        """
        return self.embed("source", inputs.tokens, context)

    def encode(self, inputs: Any, **dropout: Any) -> Float[Array, "b s d_model"]:
        """Return the output of the encoder, which the network must have.

        Args:
          inputs: sources, a `Sequence` of arrays `[b, s]` or another form; see `Batch`.
          dropout: `deterministic` and `first_row`, as for `__call__`; none means no dropout.
        """
        self._check_sources(inputs)
        segments, window = inputs.segments, self.config.attention_window
        mask = masks.attention_mask(segments, segments, window=window)
        context = self.context("source", inputs.positions, mask, **dropout)
        x = self.embed_inputs(inputs, context)
        return self.encoder(self.embedding_dropout(x, context), context)

    def before_output(self, x: Float[Array, "b t d_model"]) -> Float[Array, "b t d_model"]:
        """Return the last layer's output in the form for the output projection.

        A logit sums d_model products. Training makes their signs agree, so that the sum grows with
        d_model; the division by the width multiplier undoes this (Yang et al. 2021, table 8).
        """
        multiple = self.config.width_multiple
        return x if multiple == 1 else x / multiple

    def output_matrix(self) -> Any:
        """Return the matrix of the output projection, one row for every entry of the vocabulary."""
        return getattr(self, self.config.embeddings["output"]).matrix()

    def with_output_bias(self, logits: Float[Array, "b t vocab"]) -> Float[Array, "b t vocab"]:
        """Return the logits plus the bias of the output, if the network has one."""
        return logits + self.output_bias if self.config.output_bias else logits

    def _checked(self, batch: Any) -> Batch:
        """Return a batch, or refuse bare arrays of ids, and ids beyond the vocabulary."""
        if not (isinstance(batch, Batch) and all(hasattr(side, "segments") for side in batch)):
            raise UserError(
                "the network is called without a batch of sentences; make one with "
                "t2t_jax.Batch.of(inputs, targets)"
            )
        self._check_sources(batch.inputs)
        check_ids("targets.tokens", batch.targets.tokens, self.vocab_size)
        return batch

    def _check_sources(self, inputs: Any) -> None:
        if isinstance(inputs, Sequence):
            name = self.config.embeddings["source"]
            check_ids("inputs.tokens", inputs.tokens, self.config.entries(self.vocab_size)[name])


@dataclass(frozen=True)
class NetworkScoring:
    """The `ScoringModel` of any `TokenNetwork`; a `DecodingModel` adds what searches need.

    Attributes:
      network: the training module.
    """

    network: TokenNetwork

    @property
    def longest_sentence(self) -> float:
        """Return the most tokens of a sentence that the model has positions for."""
        return self.network.config.longest_sentence

    def logits(self, params: matrices.Parameters, batch: Batch) -> Float[Array, "b t vocab"]:
        """See `ScoringModel.logits`."""
        return cast(Any, self.network.apply({"params": params}, batch, deterministic=True))

    def losses(
        self, params: matrices.Parameters, batch: Batch, label_smoothing: float
    ) -> tuple[Float[Array, "b t"], Float[Array, "b t"]]:
        """See `ScoringModel.losses`."""
        options: Any = {"label_smoothing": label_smoothing, "method": "losses"}
        return cast(Any, self.network.apply({"params": params}, batch, **options))

    def attention_weights(
        self, params: matrices.Parameters, batch: Batch
    ) -> dict[str, Float[Array, "n b h _ _"]]:
        """Return the weights of the network's stacks; see `ScoringModel.attention_weights`."""
        looking: Any = {"deterministic": True, "mutable": ["intermediates"]}
        _, sown = cast(Any, self.network.apply({"params": params}, batch, **looking))
        return {
            stack if name == "self_attention" else "cross": attention["weights"][0]
            for stack, parts in sown["intermediates"].items()
            for name, attention in parts["layers"].items()
        }
