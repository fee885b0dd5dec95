"""Encoder-only networks: BERT (Devlin et al. 2019) and ViT (Dosovitskiy et al. 2021).

The network projects outputs of the paper's encoder to labels. In a batch, `targets.positions` are
the positions of the source tokens that predict the targets::

    source                        targets: token and position
    <s> a dog barks </s>          DT 1, NN 2, VBZ 3        tags of words
    <s> a dog barks </s>          animal 0                 a label of the sentence
    <s> a <mask> barks </s>       dog 2                    a masked token
"""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t2t_jax.batch import Batch, Patches, Sequence
from t2t_jax.config import ImageEncoderConfig
from t2t_jax.modules.attention import Context, Projection
from t2t_jax.modules.parameters import parameter
from t2t_jax.modules.transformer import TokenNetwork


def target_indices(batch: Batch) -> Int[Array, "b t"]:
    """Return the index on the source axis of the token that predicts each target."""
    # The index is the number of source tokens of earlier segments, plus the target position.
    sources, targets = batch.inputs.segments, batch.targets.segments
    is_earlier = (sources[:, None, :] < targets[:, :, None]) & (sources[:, None, :] != 0)
    return jnp.where(targets == 0, 0, is_earlier.sum(-1) + batch.targets.positions)


class EncoderModel(TokenNetwork):
    """A BERT-like encoder-only network over tokens."""

    def decoded(self, batch: Batch, base: Context | None = None) -> Float[Array, "b t d_model"]:
        """Encode the sources, and select the output that predicts each target.

        `base` says whether to apply dropout. None means no dropout.
        """
        x = self.encode(batch.inputs, base)
        return jnp.take_along_axis(x, target_indices(batch)[:, :, None], axis=1)


class ImageModel(EncoderModel):
    """An encoder-only network over image patches (ViT, section 3.1)."""

    config: ImageEncoderConfig

    def setup(self) -> None:
        """Create the patch projection (equation 1), the class token and the encoder."""
        super().setup()
        num_values, width = self.config.patch_values, self.config.d_model
        gain = ((num_values + width) / (num_values + self.config.scaling_width)) ** 0.5
        self.patch_projection = Projection(width, (None, "embed"), True, gain, grows=False)
        init = nn.initializers.normal(0.02)
        self.class_token = parameter(self, "class_token", init, (width,), ("vector",))

    def embed_inputs(self, inputs: Patches) -> Float[Array, "b s d_model"]:
        """Project image patches to embeddings, and insert the class token.

        Args:
          inputs: patches `[b, s, values]`; position 0 is the class token.
        """
        values = inputs.values.astype(jnp.float32) / 127.5 - 1  # from 0..255 to -1..1
        context = Context(kernels=self.kernels)
        x = self.patch_projection(values.astype(self.config.dtype), context)
        is_class = (inputs.positions == 0)[:, :, None]
        return jnp.where(is_class, self.class_token.astype(x.dtype), x)

    def example(self) -> Batch:
        """Return a batch with which Flax initializes the parameters."""
        shape = 1, self.config.num_positions
        values = jnp.zeros((*shape, self.config.patch_values), jnp.uint8)
        patches = Patches(values, jnp.ones(shape, jnp.int32), jnp.arange(shape[1])[None])
        ones = jnp.ones((1, 1), jnp.int32)
        return Batch(patches, Sequence(ones - 1, ones, ones - 1))
