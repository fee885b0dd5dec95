"""Several models that decode as one."""

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any, TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Float32, Int

from t2t_jax.config import ModelConfig
from t2t_jax.functional.loss import label_smoothed_cross_entropy
from t2t_jax.modules.matrices import Quantize
from t2t_jax.modules.transformer import (
    Memory,
    Parameters,
    Transformer,
    decoding_parameters,
    init_cache,
)


class Ensemble(nn.Module):
    """Transformers of one vocabulary: the distribution of a token is the mean of theirs.

    It is called as a `Transformer` is. What comes out as logits are the logarithms of the mean
    probabilities, cache and memory are tuples with one entry for each member, and the parameters
    are those that `join_parameters` makes.

    Attributes:
      configs: sizes and options of the members, which may differ.
      vocab_size: entries of the shared vocabulary.
      bos_id: id that stands before the first target token.
    """

    configs: tuple[ModelConfig, ...]
    vocab_size: int
    bos_id: int

    def setup(self) -> None:
        """Create the members."""
        self.members = [
            Transformer(config, self.vocab_size, self.bos_id) for config in self.configs
        ]

    def __call__(self, *batch: Int[Array, "b _"], deterministic: bool) -> Float[Array, "b t vocab"]:
        """Logits of every target token; see `Transformer.__call__`."""
        return log_mean([member(*batch, deterministic=deterministic) for member in self.members])

    def losses(
        self, *batch: Int[Array, "b _"], label_smoothing: float
    ) -> tuple[Float[Array, "b t"], Float[Array, "b t"]]:
        """The losses of every target token, without dropout; see `Transformer.losses`."""
        logits = self(*batch, deterministic=True)
        return label_smoothed_cross_entropy(logits, batch[3], label_smoothing)

    def memory(
        self, inputs: Int[Array, "b s"], inputs_segments: Int[Array, "b s"]
    ) -> tuple[Memory, ...]:
        """Encode sources with every member; see `Transformer.memory`."""
        return tuple(member.memory(inputs, inputs_segments) for member in self.members)

    def step(
        self,
        tokens: Int[Array, "b k"],
        positions: Int[Array, " b"],
        place: Int[Array, ""],
        ancestry_mask: Bool[Array, "b k t k"],
        cache: tuple[Any, ...],
        memory: tuple[Memory, ...],
    ) -> tuple[Float[Array, "b k vocab"], tuple[Any, ...]]:
        """Logits of the next token of `k` hypotheses per sentence; see `Transformer.step`."""
        logits, caches = zip(
            *(
                member.step(tokens, positions, place, ancestry_mask, *own)
                for member, *own in zip(self.members, cache, memory, strict=True)
            ),
            strict=True,
        )
        return log_mean(logits), caches


Model: TypeAlias = Transformer | Ensemble
"""What is called as a `Transformer` is."""


def log_mean(logits: Sequence[Float[Array, "*t v"]]) -> Float32[Array, "*t v"]:
    """Logarithm of the mean of the probabilities that several logits stand for."""
    log_probs = (jax.nn.log_softmax(one.astype(jnp.float32)) for one in logits)
    return reduce(jnp.logaddexp, log_probs) - math.log(len(logits))


def join_parameters(members: Sequence[Parameters]) -> Parameters:
    """The parameters of an `Ensemble`, in the order of its `configs`."""
    return {_member(number): params for number, params in enumerate(members)}


def _member(number: int) -> str:
    return f"members_{number}"  # as Flax calls the modules in the list `members`


def prepare_parameters(model: Model, params: Parameters, quantize: Quantize = "none") -> Parameters:
    """The parameters that a model decodes with; see `decoding_parameters`."""
    if isinstance(model, Ensemble):
        members = (params[_member(number)] for number in range(len(model.configs)))
        pairs = zip(model.configs, members, strict=True)
        return join_parameters([decoding_parameters(*pair, quantize) for pair in pairs])
    return decoding_parameters(model.config, params, quantize)


def empty_cache(model: Model, batch_size: int, beam_size: int, room: int) -> Any:
    """The cache that a model's `step` starts from; see `init_cache`."""
    if isinstance(model, Ensemble):
        sizes = batch_size, beam_size, room
        return tuple(init_cache(config, *sizes) for config in model.configs)
    return init_cache(model.config, batch_size, beam_size, room)
