"""Protocols of models for scoring, decoding and attention maps."""

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
from jaxtyping import Array, Bool, Float, Int, Int32, PyTree

from t2t_jax.batch import Batch, Sequence, one_a_row, padded
from t2t_jax.config.sections import Quantize
from t2t_jax.kernels.reference import Losses
from t2t_jax.modules.parameters import Parameters

Source: TypeAlias = Any
"""A source with `len(source)` positions; a text is a list of ids."""


@runtime_checkable
class SourceForm(Protocol):
    """A format of sources. Implementations are hashable, as keys of compiled programs."""

    def blank(self, length: int) -> Source:
        """Make a placeholder source of `length` positions."""

    def padded(self, sources: SequenceOf[Source], rows: int, length: int) -> PyTree[np.ndarray]:
        """Pad sources to NumPy arrays with one source per row.

        Args:
          sources: at most `rows` sources.
          rows: number of rows b.
          length: positions s of a row.
        """

    def inputs(self, arrays: PyTree[Array]) -> PyTree[Array]:
        """Convert the arrays from `padded` to the input of the network, such as a `Sequence`."""


@dataclass(frozen=True)
class TokenSources:
    """The format of texts: ids with an end-of-sentence token."""

    def blank(self, length: int) -> list[int]:
        """Make a placeholder source of `length` ids."""
        return [0] * length

    def padded(
        self, sources: SequenceOf[list[int]], rows: int, length: int
    ) -> Int32[np.ndarray, "b s"]:
        """Pad the ids of sources to an array with one source per row."""
        return padded(sources, rows, length)

    def inputs(self, arrays: Int[Array, "b s"]) -> Sequence:
        """Convert padded ids to a `Sequence`."""
        return one_a_row(arrays)


Cache: TypeAlias = Any
"""Cached arrays of the generated tokens, with the batch as first axis."""

Memory: TypeAlias = Any
"""Arrays of the sources, shared by all hypotheses of a source, with the batch as first axis."""

AttentionWeights: TypeAlias = dict[str, Float[Array, "n b h _ _"]]
"""Attention weights of n layers, by kind of attention."""


class LastTokens(NamedTuple):
    """The last tokens of `k` hypotheses per sentence, as input of a decoding step."""

    tokens: Int[Array, "b k"]
    """Last tokens; at position 0 the model uses its start token."""
    positions: Int[Array, " b"]
    """Position of these tokens in each sentence, from 0."""
    clock: Int[Array, ""]
    """Index of the step, which selects the cache position to write to."""
    ancestry_mask: Bool[Array, "b k t k"]
    """`[b, j, t, i]`: whether the entry that slot `i` wrote at position `t` belongs to the history
    of hypothesis `j`, which includes its entry at position `clock % t`."""


class Axes(NamedTuple):
    """The axes of variable length in the arrays of a model: cache slots, and source positions.

    `slots` has the structure of a `Cache`, and `sources` of a `Memory`, with an axis index for each
    array. They are tuples of tuples, and so hashable.
    """

    slots: Any
    """Axis of the slots of each array in a `Cache`."""
    sources: Any
    """Axis of the source positions of each array in a `Memory`."""


@runtime_checkable
class ScoringModel(Protocol):
    """A model that computes probabilities of targets, and attention weights.

    Implementations are hashable, because compiled functions take them as static arguments.
    `NetworkScoring` implements only this protocol, for encoder-only models.
    """

    def __hash__(self) -> int:
        """Return the hash of the fields, for keys of compiled programs."""

    @property
    def longest_sentence(self) -> float:
        """Return the maximum sentence length in tokens that the position encoding allows."""

    def logits(self, params: Parameters, batch: Batch) -> Float[Array, "b t vocab"]:
        """Compute the logits of every target token, given the source and earlier target tokens.

        Args:
          batch: sources `[b, s]` and targets `[b, t]`.
        """

    def losses(self, params: Parameters, batch: Batch, label_smoothing: float) -> Losses:
        """Compute label-smoothed loss and negative log-likelihood of every target token, in nats.

        Args:
          batch: sources `[b, s]` and targets `[b, t]`.
          label_smoothing: eps_ls (section 5.4).
        """

    def attention_weights(self, params: Parameters, batch: Batch) -> AttentionWeights:
        """Return the attention weights of all layers and heads: `encoder`, `decoder` and `cross`.

        Args:
          batch: sources `[b, s]` and targets `[b, t]`.

        Returns:
          For each name, the weights of n layers: `[b, h, s, s]` for `encoder`, `[b, h, t, t]` for
          `decoder`, `[b, h, t, s]` for `cross`.

        Raises:
          UserError: the model is an ensemble.
        """


@runtime_checkable
class DecodingModel(ScoringModel, Protocol):
    """A `ScoringModel` that also generates text by beam search or sampling.

    `modules.cached_decoding` and `modules.language_model` implement it for networks, and
    `modules.ensemble` for several models.
    """

    @property
    def sources(self) -> SourceForm:
        """Return the format of the model's sources."""

    def axes(self, beam_size: int = 1) -> Axes:
        """Return the slot axis of each cache array, and the source axis of each memory array.

        Args:
          beam_size: number of hypotheses per sentence. It affects only the cache.
        """

    def prepare(self, params: Parameters, quantize: Quantize) -> Parameters:
        """Convert the parameters for `memory` and `step`.

        Args:
          quantize: the format of matrices in decoding.
        """

    def empty_cache(self, rows: int, beam_size: int, capacity: int) -> Cache:
        """Make the cache for the first `step`.

        Args:
          beam_size: number k of hypotheses per sentence.
          capacity: positions of the ring buffer that `decoding.search` describes, one per step. The
            cache has `capacity * beam_size` slots, or fewer with an attention window. With n
            positions, step s writes to position s % n.
        """

    def memory(self, params: Parameters, inputs: PyTree) -> Memory:
        """Compute the arrays of the sources for `step`, such as the encoder's output.

        Args:
          params: the parameters from `prepare`.
          inputs: sources, one per row, from `sources`: for text, a `Sequence` of arrays `[b, s]`.
        """

    def step(
        self, params: Parameters, last: LastTokens, cache: Cache, memory: Memory
    ) -> tuple[Float[Array, "b k vocab"], Cache]:
        """Compute the logits of the next token of `k` hypotheses per sentence.

        Args:
          params: the parameters from `prepare`.
          cache: the cache from `empty_cache` or the previous step.
          memory: the result of `memory`.
        """
