"""Ensembles: several models that decode together."""

import math
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from functools import reduce

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32, PyTree

from t2t_jax.batch import Batch
from t2t_jax.config.sections import Quantize
from t2t_jax.errors import UserError
from t2t_jax.functional.loss import label_smoothed_cross_entropy
from t2t_jax.kernels.reference import Losses
from t2t_jax.modules.decoding_model import (
    AttentionWeights,
    Axes,
    Cache,
    DecodingModel,
    LastTokens,
    Memory,
    SourceForm,
)
from t2t_jax.modules.parameters import Parameters


@dataclass(frozen=True)
class Ensemble:
    """A `DecodingModel` that averages the token probabilities of several models.

    The logits are the logarithms of the mean probabilities. Cache and memory are tuples with one
    entry per member. The parameters come from `join_parameters`.

    Attributes:
      members: models with the same vocabulary, of any sizes and architectures.
    """

    members: tuple[DecodingModel, ...]

    @property
    def longest_sentence(self) -> float:
        """Return the maximum sentence length in tokens that every member supports."""
        return min(member.longest_sentence for member in self.members)

    @property
    def sources(self) -> SourceForm:
        """Return the form of sources, which is the same for all members."""
        return self.members[0].sources

    def axes(self, beam_size: int = 1) -> Axes:
        """Return each member's slot axes of cache arrays, and position axes of memory arrays.

        `beam_size` selects cache layouts.
        """
        member_axes = [member.axes(beam_size) for member in self.members]
        return Axes(tuple(a.slots for a in member_axes), tuple(a.sources for a in member_axes))

    def prepare(self, params: Parameters, quantize: Quantize = "none") -> Parameters:
        """Convert the parameters for `memory` and `step`; see `DecodingModel.prepare`."""
        return join_parameters(
            member.prepare(p, quantize) for member, p in self._members_with(params)
        )

    def empty_cache(self, rows: int, beam_size: int, capacity: int) -> Cache:
        """Make the cache for the first decoding step; see `DecodingModel.empty_cache`."""
        return tuple(member.empty_cache(rows, beam_size, capacity) for member in self.members)

    def memory(self, params: Parameters, inputs: PyTree) -> tuple[Memory, ...]:
        """Compute the keys and values of the sources for `step`; see `DecodingModel.memory`."""
        return tuple(member.memory(p, inputs) for member, p in self._members_with(params))

    def step(
        self,
        params: Parameters,
        last: LastTokens,
        cache: tuple[Cache, ...],
        memory: tuple[Memory, ...],
    ) -> tuple[Float[Array, "b k vocab"], tuple[Cache, ...]]:
        """Compute the logits of the next token of each hypothesis; see `DecodingModel.step`."""
        members = zip(self.members, params.values(), cache, memory, strict=True)
        steps = [member.step(p, last, cache, memory) for member, p, cache, memory in members]
        return log_mean([logits for logits, _ in steps]), tuple(new_cache for _, new_cache in steps)

    def logits(self, params: Parameters, batch: Batch) -> Float[Array, "b t vocab"]:
        """Compute the logits of every target token; see `DecodingModel.logits`."""
        return log_mean([member.logits(p, batch) for member, p in self._members_with(params)])

    def losses(self, params: Parameters, batch: Batch, label_smoothing: float) -> Losses:
        """Compute the loss of every target token, in nats; see `DecodingModel.losses`."""
        tokens = batch.targets.tokens
        return label_smoothed_cross_entropy(self.logits(params, batch), tokens, label_smoothing)

    def attention_weights(self, params: Parameters, batch: Batch) -> AttentionWeights:
        """Raise a `UserError`, because the members have separate attention weights."""
        raise UserError(
            f"an ensemble of {len(self.members)} models has no attention weights; inspect one "
            "model at a time"
        )

    def _members_with(self, params: Parameters) -> Iterable[tuple[DecodingModel, Parameters]]:
        return zip(self.members, params.values(), strict=True)


def log_mean(logits: SequenceOf[Float[Array, "*t v"]]) -> Float32[Array, "*t v"]:
    """Compute the logarithm of the mean probabilities of several models.

    Args:
      logits: the unnormalized logits of each model.
    """
    # `logaddexp` stays in log space, where small probabilities do not underflow.
    log_probs = (jax.nn.log_softmax(x.astype(jnp.float32)) for x in logits)
    return reduce(jnp.logaddexp, log_probs) - math.log(len(logits))


def join_parameters(members: Iterable[Parameters]) -> Parameters:
    """Join the parameters of models into the parameters of an `Ensemble`."""
    # JAX sorts the keys of a dictionary; zero-padded numbers keep the order of the members.
    return {f"{index:04}": params for index, params in enumerate(members)}
