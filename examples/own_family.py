"""A network family of your own: a prefix language model with type embeddings, for translation.

    python examples/own_family.py --workdir runs/own_family

One stack of layers reads the source and the shifted target as one row. Source tokens attend to the
whole source; target tokens also attend to earlier target tokens. A learned type embedding separates
the sides, so the positions of both count from 0::

    row          s1 s2 s3 <s> t1 t2        may attend to   x x x . . .    s1
    types         0  0  0   1  1  1                        x x x . . .    s2
    positions     0  1  2   0  1  2                        x x x . . .    s3
    predicts      .  .  .  t1 t2 </s>                      x x x x . .    <s>
                                                           x x x x x .    t1
                                                           x x x x x x    t2

Training, evaluation, beam search, `t2t_jax.score` and `t2t_jax.attention_maps` read the family as a
built-in one. Another process must import this file before it loads the run.
"""

from dataclasses import dataclass
from typing import Literal

import flax.linen as nn
import jax.numpy as jnp
import tyro

import t2t_jax
from t2t_jax.config.checks import require
from t2t_jax.config.families import Family, WithDecoder, WithTokens
from t2t_jax.config.file import load_config
from t2t_jax.config.model import InputProjection, Stack
from t2t_jax.functional.masks import causal_mask, segment_mask
from t2t_jax.modules.cache import SourceCache, cache_axes
from t2t_jax.modules.cached_decoding import CachedDecoding
from t2t_jax.modules.decoding_model import Axes
from t2t_jax.modules.parameters import parameter
from t2t_jax.modules.transformer import DecoderNetwork, StepInput, TransformerMemory


@dataclass(frozen=True)
class PrefixConfig(WithDecoder, WithTokens):
    """The fields of the family: those of all networks, of decoders and of networks of tokens."""

    architecture: Literal["prefix"] = "prefix"

    def __post_init__(self):
        """Refuse what depends on distances within a row, because both sides count from 0."""
        super().__post_init__()
        is_plain = self.attention_window is None and self.positions.bias is None
        require(is_plain, "architecture='prefix' has no attention_window and no position bias")

    @property
    def stacks(self):
        """Return the stack of layers, which reads sources and targets."""
        m, attention = self.num_decoder_layers, self.attention_of("decoder")
        constants = self.deep_norm(2 * m, 8 * m)
        return (Stack(m, True, True, attention, None, *constants, False, self.depth_multiple(m)),)

    @property
    def input_projection(self):
        """Count the type embeddings as parameters without FLOPs."""
        return InputProjection(weights=0, vectors=2 * self.d_model)


class PrefixModel(DecoderNetwork):
    """The Flax module. The base class has the embeddings, the stack, the losses and the step."""

    def setup(self):
        """Add the type embeddings `[2, d_model]` to the parameters of the base class."""
        super().setup()
        shape, axes = (2, self.config.d_model), (None, "vector")
        self.types = parameter(self, "types", nn.initializers.normal(0.02), shape, axes)

    def embed_inputs(self, inputs):
        """Embed the sources, without positions."""
        return super().embed_inputs(inputs) + self.types[0].astype(self.config.dtype)

    def embed_targets(self, tokens):
        """Embed target tokens, without positions. The cached step of the base class calls it."""
        return super().embed_targets(tokens) + self.types[1].astype(self.config.dtype)

    def decoded(self, batch, base=None):
        """Compute the last layer's output `[b, t, d_model]`, in training."""
        segments, positions = (jnp.concatenate([side[n] for side in batch], 1) for n in (1, 2))
        s, length = batch.inputs.tokens.shape[1], segments.shape[1]
        # [b, 1, s + t, s + t]: segments separate the pairs that share a batch row.
        mask = segment_mask(segments, segments) & (causal_mask(length) | (jnp.arange(length) < s))
        context = self.context("target", positions, mask, base)
        tokens = self.previous_tokens(batch.targets)  # <s> t1 t2
        x = [self.embed_inputs(batch.inputs), self.embed_targets(tokens)]
        x = self.with_positions("target", jnp.concatenate(x, 1), context)
        return self.decoder(self.embedding_dropout(x, context), context)[:, s:]

    def memory(self, inputs):
        """Compute the keys and values of the sources, once for all steps of a search."""
        mask = segment_mask(inputs.segments, inputs.segments)
        context = self.context("target", inputs.positions, mask)
        x = self.with_positions("target", self.embed_inputs(inputs), context)
        is_real = (inputs.segments != 0)[:, None, None]  # [b, 1, 1, s]
        return TransformerMemory(self.decoder.prefill(x, context), is_real)

    def step_input(self, last, memory):
        """Return the tokens and positions of a step, and the prefix of each layer."""
        positions = jnp.broadcast_to(last.positions[:, None], last.tokens.shape)
        tokens = jnp.where(positions == 0, self.bos_id, last.tokens)
        sources = tuple(SourceCache(layer, memory.mask) for layer in memory.keys_values)
        return StepInput(tokens, positions, 0, lambda _: sources)


@dataclass(frozen=True)
class PrefixDecoding(CachedDecoding):
    """The same network in a search. The base class has the parameters, the cache and the step."""

    def axes(self, beam_size=1):
        """Return the axis of the slots in the cache, and of the source positions in the memory."""
        layers = cache_axes("transposed", self.network.config.num_decoder_layers)
        return Axes(slots=layers, sources=TransformerMemory(layers, 3))

    def attention_weights(self, params, batch):
        """Cut the weights of a row into those of `attention_maps`."""
        weights, s = super().attention_weights(params, batch)["decoder"], batch.inputs[0].shape[1]
        encoder, cross, decoder = weights[..., :s, :s], weights[..., s:, :s], weights[..., s:, s:]
        return {"encoder": encoder, "cross": cross, "decoder": decoder}


FAMILY = Family(PrefixConfig, PrefixModel, PrefixDecoding, tasks=("translation",))
t2t_jax.register("family", "prefix")(FAMILY)


def main(workdir: str = "runs/own_family", num_train_steps: int = 600):
    """Train the family on the bundled corpus, score it and translate two lines."""
    changes = {"model.architecture": "prefix", "training.num_train_steps": num_train_steps}
    config = load_config("quickstart").replace(changes)
    translator = t2t_jax.train(config, workdir).load()
    print(t2t_jax.evaluate(translator, split="dev", num_sentences=200).summary())
    print(translator.translate(["No devices found", "The file could not be opened."]))


if __name__ == "__main__":
    tyro.cli(main)
