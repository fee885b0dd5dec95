"""The protocols of models that score and decode, for search, scoring and attention maps."""

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
"""A source: `len(source)` is the number of its positions. A text is a list of ids."""


@runtime_checkable
class SourceForm(Protocol):
    """A form of sources; implementations are hashable, as programs are compiled for them."""

    def blank(self, length: int) -> Source:
        """Return a placeholder source of some length."""

    def padded(self, sources: SequenceOf[Source], rows: int, length: int) -> PyTree[np.ndarray]:
        """Return NumPy arrays with a source in each row; the rest is padding.

        Args:
          sources: at most as many as there are rows.
          rows: number of rows b.
          length: positions s of a row.
        """

    def inputs(self, arrays: PyTree[Array]) -> PyTree[Array]:
        """Return the input of the network, such as a `Sequence`, on a device.

        Args:
          arrays: the result of `padded`.
        """


@dataclass(frozen=True)
class TokenSources:
    """The form of texts: ids with an end of sentence."""

    def blank(self, length: int) -> list[int]:
        """See `SourceForm.blank`."""
        return [0] * length

    def padded(
        self, sources: SequenceOf[list[int]], rows: int, length: int
    ) -> Int32[np.ndarray, "b s"]:
        """See `SourceForm.padded`."""
        return padded(sources, rows, length)

    def inputs(self, arrays: Int[Array, "b s"]) -> Sequence:
        """See `SourceForm.inputs`."""
        return one_a_row(arrays)


Cache: TypeAlias = Any
"""The cached arrays of the generated tokens. Their first axis is the batch."""

Memory: TypeAlias = Any
"""The arrays of the sources, computed once and shared by all hypotheses of a source. Their first
axis is the batch."""

AttentionWeights: TypeAlias = dict[str, Float[Array, "n b h _ _"]]
"""The attention weights of the layers of each kind of attention."""


class LastTokens(NamedTuple):
    """The last tokens of `k` hypotheses per sentence, from which a model predicts the next ones."""

    tokens: Int[Array, "b k"]
    """The tokens; at position 0 the model uses its start token."""
    positions: Int[Array, " b"]
    """The position of these tokens in each sentence, from 0."""
    clock: Int[Array, ""]
    """The index of the step, which selects the position of the cache to write to."""
    ancestry_mask: Bool[Array, "b k t k"]
    """`[b, j, t, i]`: the entry that slot `i` wrote at position `t` belongs to hypothesis `j`'s
    history (its own entry at position `clock % t` included)."""


class Axes(NamedTuple):
    """The axes along which the arrays of a model become longer or shorter.

    Both fields are trees like the arrays, with the index of an axis instead of each array.
    They are hashable: tuples of tuples.
    """

    slots: Any
    """The axis of the slots, for each array of a `Cache`."""
    sources: Any
    """The axis of a source's positions, for each array of a `Memory`."""


@runtime_checkable
class ScoringModel(Protocol):
    """A model that computes the probabilities of targets, and shows its attention weights.

    Implementations are hashable, as compiled functions take them as static arguments. The
    implementation for encoder-only models, `NetworkScoring`, is no `DecodingModel`.
    """

    def __hash__(self) -> int:
        """Return the hash of the fields, which is a key of compiled programs."""

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
        """Return the form of the sources that the model reads."""

    def axes(self, beam_size: int = 1) -> Axes:
        """Return the axes of slots and positions in the arrays of `empty_cache` and `memory`.

        Args:
          beam_size: number of hypotheses of each sentence, on which only a cache depends.
        """

    def prepare(self, params: Parameters, quantize: Quantize) -> Parameters:
        """Return the parameters in the form for `memory` and `step`.

        Args:
          quantize: the form of matrices in decoding.
        """

    def empty_cache(self, rows: int, beam_size: int, room: int) -> Cache:
        """Return the cache for the first `step`.

        Args:
          beam_size: number k of hypotheses of each sentence.
          room: positions of the ring buffer that `decoding.search` describes, one for each step. A
            position has a slot for every hypothesis: there are `room * beam_size` slots, or fewer
            if the model does not look back so far. Of `n` positions, step s writes to position s %
            n.
        """

    def memory(self, params: Parameters, inputs: PyTree) -> Memory:
        """Compute the arrays of the sources for `step`, such as the encoder's output.

        Args:
          params: the parameters, from `prepare`.
          inputs: sources, one a row, from `sources`: for text, a `Sequence` of arrays `[b, s]`.
        """

    def step(
        self, params: Parameters, last: LastTokens, cache: Cache, memory: Memory
    ) -> tuple[Float[Array, "b k vocab"], Cache]:
        """Compute the logits of the next token of `k` hypotheses per sentence.

        Args:
          params: the parameters, from `prepare`.
          last: the hypotheses' last tokens.
          cache: the cache from `empty_cache`, or from the previous step.
          memory: the memory of the sources, from `memory`.

        Returns:
          The unnormalized logits, and the cache after the step.
        """
