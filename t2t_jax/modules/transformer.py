"""The encoder-decoder of section 3, as training computes it; `modules.decoding` decodes with it.

Layer stacks are compiled as one scan: a parameter of all layers of a stack is one array with the
layer as leading axis (`encoder/layers/self_attention/query/kernel`: `[layers, d_model, h * d_k]`).
"""

from functools import cache, partial
from typing import Any, Literal, TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32, Int, Key

from t2t_jax.batch import Batch, Sequence, one_a_row
from t2t_jax.config import ModelConfig
from t2t_jax.functional.loss import projected_cross_entropy
from t2t_jax.functional.masks import attention_mask
from t2t_jax.kernels.choice import XLA_KERNELS, Kernels
from t2t_jax.kernels.products import has_form, pre_softmax_logits
from t2t_jax.modules.context import Context
from t2t_jax.modules.dropout import Dropout
from t2t_jax.modules.embedding import TokenEmbedding
from t2t_jax.modules.layers import DecoderLayer, EncoderLayer
from t2t_jax.modules.matrices import Parameters
from t2t_jax.modules.network import Network
from t2t_jax.modules.normalization import Norm
from t2t_jax.modules.position import PositionEncoding
from t2t_jax.parallel.axes import constrain, named

Remat: TypeAlias = Literal["none", "dots", "layer"]
"""How much of a layer's forward pass is computed again for its derivative; see `Transformer`."""


def _scan(
    layer: nn.Module, depth: int, remat: Remat, x: Float[Array, "b t d"], context: Context
) -> Float[Array, "b t d"]:
    """Pass `x` through `depth` copies of `layer`, whose parameters are stacked."""

    def one_layer(layer: nn.Module, x: Array, _: None) -> tuple[Array, None]:
        return layer(x, context), None

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
        unroll=depth if remat == "none" and _unrolls(x, context) else 1,
        metadata_params={nn.PARTITION_NAME: "layers"},
    )
    return stack(layer, x, None)[0]


_LARGE = 1 << 17
"""Fewest numbers in the input of a layer for which unrolling pays: compiling takes up to twice as
long."""


def _unrolls(x: Float[Array, "b t d"], context: Context) -> bool:
    """Whether the layers of a stack are compiled one by one and not as a loop.

    In a loop, XLA on CPUs reads what a layer has kept for its derivative out of arrays of all
    layers. That is slow: in bfloat16, it takes a seventh of a step. In float32 it takes a
    twentieth, which is not worth other roundings than those of earlier versions.
    """
    has_derivative = not context.deterministic
    return has_form(x, context.kernels.products) and has_derivative and x.size >= _LARGE


def last_norm(config: ModelConfig) -> Norm | None:
    """The norm at the end of a stack, which it needs if every layer has its norms at its start."""
    return Norm(config.normalization) if config.norm_order == "pre" else None


class Encoder(nn.Module):
    """A stack of N encoder layers."""

    config: ModelConfig
    remat: Remat = "none"

    def setup(self) -> None:
        """Create the stack; pre-norm needs one more norm at its end."""
        self.layers = EncoderLayer(self.config)
        self.norm = last_norm(self.config)

    def __call__(
        self, x: Float[Array, "b s d_model"], context: Context
    ) -> Float[Array, "b s d_model"]:
        """Encode embedded sources."""
        x = _scan(self.layers, self.config.num_encoder_layers, self.remat, x, context)
        return self.norm(x) if self.norm else x


class Decoder(nn.Module):
    """A stack of N decoder layers."""

    config: ModelConfig
    remat: Remat = "none"

    def setup(self) -> None:
        """Create the stack; pre-norm needs one more norm at its end."""
        self.layers = DecoderLayer(self.config)
        self.norm = last_norm(self.config)

    def __call__(
        self, x: Float[Array, "b t d_model"], context: Context
    ) -> Float[Array, "b t d_model"]:
        """Decode embedded targets, all positions at once."""
        x = _scan(self.layers, self.config.num_decoder_layers, self.remat, x, context)
        return self.norm(x) if self.norm else x


class Transformer(nn.Module):
    """The Transformer (section 3, figure 1).

    Attributes:
      config: sizes and options.
      vocab_size: entries of the vocabulary, for targets.
      bos_id: id that stands before the first target token.
      remat: what is computed again for the derivative of a layer, as it is not kept in memory:
        nothing ("none"), all but the matrix products with parameters ("dots"), or everything but
        the layer's input ("layer").
      kernels: the implementations of attention and products for the devices.
    """

    config: ModelConfig
    vocab_size: int
    bos_id: int
    remat: Remat = "none"
    kernels: Kernels = XLA_KERNELS

    def setup(self) -> None:
        """Create embeddings, encoder and decoder."""
        config = self.config
        for name, entries in config.entries(self.vocab_size).items():
            setattr(self, name, TokenEmbedding(config, entries))
        self.source_position = PositionEncoding(config, causal=False)
        self.target_position = PositionEncoding(config, causal=True)
        if config.embedding_norm:
            self.source_embedding_norm = Norm(config.normalization)
            self.target_embedding_norm = Norm(config.normalization)
        if config.output_bias:
            zeros = named(nn.initializers.zeros, "vocab")
            self.output_bias = self.param("output_bias", zeros, (self.vocab_size,))
        self.embedding_dropout = Dropout(config.dropout_rate)
        self.encoder = Encoder(config, self.remat)
        self.decoder = self.make_decoder()

    def make_decoder(self) -> nn.Module:
        """The module for the decoder, in place of which a subclass may have another."""
        return Decoder(self.config, self.remat)

    def __call__(
        self, batch: Batch, *, deterministic: bool, first_row: Int[Array, ""] | int = 0
    ) -> Float[Array, "b t vocab"]:
        """Logits of every target token, given the source and the target tokens before it.

        Args:
          batch: sources and targets, arrays `[b, s]` and `[b, t]`. The model shifts the targets
            right within each sentence.
          deterministic: whether dropout is off; if not, pass `rngs={"dropout": key}`.
          first_row: number of the first row in the global batch, on which dropout depends.
        """
        x = self._decoded(batch, deterministic, first_row)
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
        """Label-smoothed loss and negative log-likelihood of every target token, in nats.

        Args:
          batch: as for `__call__`.
          label_smoothing: eps_ls (section 5.4).
          num_chunks: parts in which the logits are computed; see `projected_cross_entropy`.
          deterministic: as for `__call__`.
          first_row: as for `__call__`.
        """
        x = self._decoded(batch, deterministic, first_row)
        matrix = self.output_matrix()

        def project(x: Float[Array, "b t d_model"]) -> Float[Array, "b t vocab"]:
            return self.with_output_bias(pre_softmax_logits(x, matrix, self.kernels.products))

        tokens = batch.targets.tokens
        return projected_cross_entropy(x, project, tokens, label_smoothing, num_chunks)

    def _decoded(
        self, batch: Batch, deterministic: bool, first_row: Int[Array, ""] | int
    ) -> Float[Array, "b t d_model"]:
        """The decoder's output at every target position."""
        inputs, targets = batch
        encoded = self.encode(inputs, deterministic=deterministic, first_row=first_row)
        previous = jnp.roll(targets.tokens, 1, axis=1)
        previous = jnp.where(targets.positions == 0, self.bos_id, previous)
        window = self.config.attention_window
        context = Context(
            targets.positions,
            targets.tokens.shape[1],
            attention_mask(targets.segments, targets.segments, causal=True, window=window),
            self.target_position.rotary_frequencies(),
            self.target_position.bias(),
            encoded=encoded,
            encoded_mask=attention_mask(targets.segments, inputs.segments),
            deterministic=deterministic,
            first_row=first_row,
            kernels=self.kernels,
        )
        x = self.embed("target", previous, context)
        return self.decoder(self.embedding_dropout(x, context), context)

    def encode(
        self,
        inputs: Sequence,
        *,
        deterministic: bool = True,
        first_row: Int[Array, ""] | int = 0,
    ) -> Float[Array, "b s d_model"]:
        """The encoder's output.

        Args:
          inputs: sources, arrays `[b, s]`.
          deterministic: as for `__call__`.
          first_row: as for `__call__`.
        """
        context = Context(
            inputs.positions,
            inputs.tokens.shape[1],
            attention_mask(inputs.segments, inputs.segments, window=self.config.attention_window),
            self.source_position.rotary_frequencies(),
            self.source_position.bias(),
            deterministic=deterministic,
            first_row=first_row,
            kernels=self.kernels,
        )
        x = self.embed("source", inputs.tokens, context)
        return self.encoder(self.embedding_dropout(x, context), context)

    def embed(
        self, side: Literal["source", "target"], tokens: Int[Array, "b t"], context: Context
    ) -> Float[Array, "b t d_model"]:
        """The sum of embeddings and positions (sections 3.4 and 3.5).

        Args:
          side: whether they are tokens of sources or of targets.
          tokens: ids.
          context: the context of the stack, which has the positions of the tokens.
        """
        embedding = getattr(self, self.config.embeddings[side])
        encoding = getattr(self, f"{side}_position")
        x = encoding(embedding(tokens), context.positions, context.length)
        if self.config.embedding_norm:
            x = getattr(self, f"{side}_embedding_norm")(x)
        return constrain(x, "batch", "length", "channels")

    def output_matrix(self) -> Any:
        """The matrix of the output projection, one row for every entry of the vocabulary."""
        return getattr(self, self.config.embeddings["output"]).matrix()

    def with_output_bias(self, logits: Float32[Array, "b t vocab"]) -> Float32[Array, "b t vocab"]:
        """The logits plus the bias of the output, if it has one."""
        return logits + self.output_bias if self.config.output_bias else logits


def init_parameters(model: Network, key: Key[Array, ""]) -> Parameters:
    """Parameters before training, each in a box that declares what it is (`nn.unbox` opens them).

    Args:
      model: the network.
      key: PRNG key for the initialisers.
    """
    sentence = one_a_row(jnp.ones((1, 8), jnp.int32))
    return model.init(key, Batch(sentence, sentence), deterministic=True)["params"]


@cache
def declared_parameters(model: Network) -> Parameters:
    """The result of `init_parameters` with a shape in place of each array: nothing is computed."""
    return jax.eval_shape(partial(init_parameters, model), jax.random.key(0))
