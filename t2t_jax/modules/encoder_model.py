"""An encoder alone, which predicts labels of a source or of some of its positions.

Devlin et al. 2019, "BERT: Pre-training of Deep Bidirectional Transformers", and Dosovitskiy et al.
2021, "An Image is Worth 16x16 Words" (ViT): the paper's encoder, whose output is projected to the
labels. In a batch, the position of a target within its segment is the position of its source from
which it is predicted::

    source                        targets: token and position
    <s> a dog barks </s>          DT 1, NN 2, VBZ 3        tags of words
    <s> a dog barks </s>          animal 0                 a label of the whole
    <s> a <mask> barks </s>       dog 2                    what is hidden
"""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t2t_jax.batch import Batch, Patches, Sequence
from t2t_jax.config import ImageEncoderConfig, ModelConfig
from t2t_jax.config.families import EncoderAloneConfig
from t2t_jax.config.tables import ACTIVATIONS
from t2t_jax.kernels.products import linear
from t2t_jax.modules.context import Context
from t2t_jax.modules.matrices import glorot_uniform, matrix
from t2t_jax.modules.named_functions import elementwise
from t2t_jax.modules.normalization import Norm
from t2t_jax.modules.token_network import TokenNetwork
from t2t_jax.parallel.axes import constrain, named


class Linear(nn.Module):
    """A linear layer with a bias.

    Attributes:
      width_in: width of its input.
      width_out: width of its output.
      gain: factor on the first values of the matrix; see `glorot_uniform`.
      grows: whether both widths grow with that of the network; see `MatrixBox`.
    """

    width_in: int
    width_out: int
    gain: float = 1.0
    grows: bool = True

    @nn.compact
    def __call__(
        self, x: Float[Array, "b t width_in"], context: Context
    ) -> Float[Array, "b t width_out"]:
        """Apply the layer to every position of `x`."""
        shape = self.width_in, self.width_out
        init, axes = glorot_uniform(self.gain), (None, "embed")
        kernel = matrix(self, "kernel", init, shape, axes, x.dtype, grows=self.grows)
        bias = self.param("bias", named(nn.initializers.zeros, "vector"), shape[1:])
        return linear(x, kernel, bias.astype(x.dtype), form=context.kernels.products)


class OutputTransform(nn.Module):
    """A linear layer, an activation and a norm, ahead of the output projection, as in BERT."""

    config: ModelConfig

    @nn.compact
    def __call__(
        self, x: Float[Array, "b t d_model"], context: Context
    ) -> Float[Array, "b t d_model"]:
        """Transform every position of `x`."""
        width = self.config.d_model
        x = Linear(width, width, name="linear")(x, context)
        x = elementwise(ACTIVATIONS[self.config.feed_forward])(x)
        return Norm(self.config.normalization, name="norm")(x)


def places_of(batch: Batch) -> Int[Array, "b t"]:
    """Return the place in its row of the source position from which each target is predicted.

    Args:
      batch: arrays `[b, s]` and `[b, t]`, whose rows may hold several pairs.
    """
    sources, targets = batch.inputs.segments, batch.targets.segments
    earlier = (sources[:, None, :] < targets[:, :, None]) & (sources[:, None, :] != 0)
    return jnp.where(targets == 0, 0, earlier.sum(-1) + batch.targets.positions)


class EncoderModel(TokenNetwork):
    """An encoder alone, over tokens."""

    config: EncoderAloneConfig

    def setup(self) -> None:
        """Create the network and, if the config has one, the transform of its output."""
        super().setup()
        if self.config.output_transform:
            self.output_transform = OutputTransform(self.config)

    def decoded(
        self, batch: Batch, deterministic: bool, first_row: Int[Array, ""] | int
    ) -> Float[Array, "b t d_model"]:
        """Return the encoder's output from which each target is predicted."""
        x = self.encode(batch.inputs, deterministic=deterministic, first_row=first_row)
        x = jnp.take_along_axis(x, places_of(batch)[:, :, None], axis=1)
        if not self.config.output_transform:
            return x
        return self.output_transform(x, Context(kernels=self.kernels))


class ImageModel(EncoderModel):
    """An encoder alone, over the patches of images (ViT; Dosovitskiy et al. 2021, section 3.1)."""

    config: ImageEncoderConfig

    def setup(self) -> None:
        """Create the projection of patches, the class token, and the parts of any encoder model."""
        super().setup()
        config = self.config
        values, width = config.patch_values, config.d_model
        gain = ((values + width) / (values + config.scaling_width)) ** 0.5
        self.patch_projection = Linear(values, width, gain, grows=False)
        init = named(nn.initializers.normal(0.02), "vector")
        self.class_token = self.param("class_token", init, (config.d_model,))

    def embed_inputs(self, inputs: Any, context: Context) -> Float[Array, "b s d_model"]:
        """Return the class token and the projections of patches after it, with their positions.

        Args:
          inputs: `Patches` of images, `[b, s, values]`; position 0 is the class token.
          context: the context of the stack.
        """
        values = inputs.values.astype(jnp.float32) / 127.5 - 1
        x = self.patch_projection(values.astype(self.config.dtype), context)
        is_class = (inputs.positions == 0)[:, :, None]
        x = jnp.where(is_class, self.class_token.astype(x.dtype), x)
        x = self.source_position(x, context.positions, context.length)
        if self.config.embedding_norm:
            x = self.source_embedding_norm(x)
        return constrain(x, "batch", "length", "channels")

    def example(self) -> Batch:
        """Return a batch of one image; see `TokenNetwork.example`."""
        shape = 1, self.config.num_positions
        places = jnp.arange(shape[1])[None]
        values = jnp.zeros((*shape, self.config.patch_values), jnp.uint8)
        patches = Patches(values, jnp.ones(shape, jnp.int32), places)
        one = jnp.ones((1, 1), jnp.int32)
        return Batch(patches, Sequence(one - 1, one, one - 1))
