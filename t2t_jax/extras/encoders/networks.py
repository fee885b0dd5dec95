"""Encoder-only networks, which predict labels of a source or of some of its positions.

Devlin et al. 2019, "BERT: Pre-training of Deep Bidirectional Transformers", and Dosovitskiy et al.
2021, "An Image is Worth 16x16 Words" (ViT): the paper's encoder, whose output is projected to the
labels. In a batch, the position of a target within its segment is the position of the source token
that predicts it::

    source                        targets: token and position
    <s> a dog barks </s>          DT 1, NN 2, VBZ 3        tags of words
    <s> a dog barks </s>          animal 0                 a label of the whole
    <s> a <mask> barks </s>       dog 2                    a hidden token
"""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t2t_jax.batch import Batch, Patches, Sequence
from t2t_jax.config import ImageEncoderConfig
from t2t_jax.modules.attention import Context, Projection
from t2t_jax.modules.parameters import parameter
from t2t_jax.modules.transformer import TokenNetwork


def places_of(batch: Batch) -> Int[Array, "b t"]:
    """Return the index in its row of the source position that predicts each target.

    Args:
      batch: arrays `[b, s]` and `[b, t]`, whose rows may hold several pairs.
    """
    sources, targets = batch.inputs.segments, batch.targets.segments
    earlier = (sources[:, None, :] < targets[:, :, None]) & (sources[:, None, :] != 0)
    return jnp.where(targets == 0, 0, earlier.sum(-1) + batch.targets.positions)


class EncoderModel(TokenNetwork):
    """An encoder-only network over tokens."""

    def decoded(self, batch: Batch, base: Context | None = None) -> Float[Array, "b t d_model"]:
        """Return the encoder output that predicts each target."""
        x = self.encode(batch.inputs, base)
        return jnp.take_along_axis(x, places_of(batch)[:, :, None], axis=1)


class ImageModel(EncoderModel):
    """An encoder-only network over image patches (ViT, section 3.1)."""

    config: ImageEncoderConfig

    def setup(self) -> None:
        """Create the projection of patches (equation 1), the class token, and the usual parts."""
        super().setup()
        num_values, width = self.config.patch_values, self.config.d_model
        gain = ((num_values + width) / (num_values + self.config.scaling_width)) ** 0.5
        self.patch_projection = Projection(width, (None, "embed"), True, gain, grows=False)
        init = nn.initializers.normal(0.02)
        self.class_token = parameter(self, "class_token", init, (width,), ("vector",))

    def embed_inputs(self, inputs: Patches) -> Float[Array, "b s d_model"]:
        """Return the class token, then the projections of patches.

        Args:
          inputs: `Patches` of images, `[b, s, values]`; position 0 is the class token.
        """
        values = inputs.values.astype(jnp.float32) / 127.5 - 1
        context = Context(kernels=self.kernels)
        x = self.patch_projection(values.astype(self.config.dtype), context)
        is_class = (inputs.positions == 0)[:, :, None]
        return jnp.where(is_class, self.class_token.astype(x.dtype), x)

    def example(self) -> Batch:
        """See `TokenNetwork.example`."""
        shape = 1, self.config.num_positions
        values = jnp.zeros((*shape, self.config.patch_values), jnp.uint8)
        patches = Patches(values, jnp.ones(shape, jnp.int32), jnp.arange(shape[1])[None])
        one = jnp.ones((1, 1), jnp.int32)
        return Batch(patches, Sequence(one - 1, one, one - 1))
