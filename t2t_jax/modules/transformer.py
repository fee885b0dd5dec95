"""The encoder-decoder of section 3, as training computes it; `modules.decoding` decodes with it.

Layer stacks are compiled as one scan: a parameter of all layers of a stack is one array with the
layer as leading axis (`encoder/layers/self_attention/query/kernel`: `[layers, d_model, h * d_k]`).
"""

from functools import cache, partial

import flax.linen as nn
import jax
from jaxtyping import Array, Float, Int, Key

from t2t_jax.batch import Batch, Sequence
from t2t_jax.config import ModelConfig
from t2t_jax.functional.masks import attention_mask
from t2t_jax.kernels.products import PRODUCT, has_form
from t2t_jax.modules.context import Context
from t2t_jax.modules.layers import DecoderLayer, EncoderLayer
from t2t_jax.modules.matrices import Parameters
from t2t_jax.modules.network import Network
from t2t_jax.modules.normalization import Norm
from t2t_jax.modules.position import PositionEncoding
from t2t_jax.modules.token_network import Remat, TokenNetwork


def _scan(
    layer: nn.Module, depth: int, remat: Remat, x: Float[Array, "b t d"], context: Context
) -> Float[Array, "b t d"]:
    """Pass `x` through `depth` copies of `layer`, whose parameters are stacked."""

    def one_layer(layer: nn.Module, x: Array, _: None) -> tuple[Array, None]:
        return layer(x, context), None

    if remat != "none":
        products = jax.checkpoint_policies.save_only_these_names(PRODUCT)
        keep = products if remat == "dots" else None
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
    """Whether the layers of a stack are compiled one by one and not as a loop; see `Kernels`.

    In a loop, XLA on CPUs too reads what a layer has kept for its derivative out of arrays of all
    layers. That is slow: in bfloat16, it takes a seventh of a step. In float32 it takes a
    twentieth, which is not worth other roundings than those of earlier versions.
    """
    if context.deterministic:  # nothing has derivatives
        return False
    if context.kernels.layers == "unrolled":
        return True
    return has_form(x, context.kernels.products) and x.size >= _LARGE


def last_norm(config: ModelConfig) -> Norm | None:
    """The norm at the end of a stack, which it needs if every layer has its norms at its start."""
    return Norm(config.normalization) if config.norm_order == "pre" else None


class Encoder(nn.Module):
    """A stack of N layers of self-attention, as an encoder has; a decoder alone has one too."""

    config: ModelConfig
    remat: Remat = "none"

    def setup(self) -> None:
        """Create the stack; pre-norm needs one more norm at its end."""
        self.layers = EncoderLayer(self.config)
        self.norm = last_norm(self.config)

    def __call__(
        self, x: Float[Array, "b s d_model"], context: Context
    ) -> Float[Array, "b s d_model"]:
        """Pass embedded tokens through all layers."""
        x = _scan(self.layers, self.config.stacks[0].num_layers, self.remat, x, context)
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


class Transformer(TokenNetwork):
    """The Transformer (section 3, figure 1)."""

    def setup(self) -> None:
        """Create embeddings, encoder and decoder."""
        super().setup()
        config = self.config
        self.source_position = PositionEncoding(config, causal=False)
        self.target_position = PositionEncoding(config, causal=True)
        if config.embedding_norm:
            self.source_embedding_norm = Norm(config.normalization)
            self.target_embedding_norm = Norm(config.normalization)
        self.encoder = Encoder(config, self.remat)
        self.decoder = self.make_decoder()

    def make_decoder(self) -> nn.Module:
        """The module for the decoder, in place of which a subclass may have another."""
        return Decoder(self.config, self.remat)

    def decoded(
        self, batch: Batch, deterministic: bool, first_row: Int[Array, ""] | int
    ) -> Float[Array, "b t d_model"]:
        """The decoder's output at every target position; see `TokenNetwork.decoded`."""
        inputs, targets = batch
        encoded = self.encode(inputs, deterministic=deterministic, first_row=first_row)
        previous = self.previous_tokens(targets)
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


def init_parameters(model: Network, key: Key[Array, ""]) -> Parameters:
    """Parameters before training, each in a box that declares what it is (`nn.unbox` opens them).

    Args:
      model: the network.
      key: PRNG key for the initialisers.
    """
    return model.init(key, model.example(), deterministic=True)["params"]


@cache
def declared_parameters(model: Network) -> Parameters:
    """The result of `init_parameters` with a shape in place of each array: nothing is computed."""
    return jax.eval_shape(partial(init_parameters, model), jax.random.key(0))
