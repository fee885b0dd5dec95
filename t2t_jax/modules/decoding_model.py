"""What a search needs of a model, whichever model it is."""

from typing import Any, Protocol, TypeAlias, runtime_checkable

from jaxtyping import Array, Bool, Float, Int

from t2t_jax.batch import Batch, Sequence
from t2t_jax.modules.matrices import Parameters, Quantize

Cache: TypeAlias = Any
"""What a model keeps of the tokens generated so far: any arrays whose last axis holds the slots."""

Memory: TypeAlias = Any
"""What a model keeps of a source, computed once and shared by its hypotheses: any arrays with the
rows as first axis and the source's positions as last."""


@runtime_checkable
class DecodingModel(Protocol):
    """A model that can be searched, scored and looked into.

    Implementations are hashable, so that they can be compiled in. `modules.decoding` has that of a
    `Transformer`, `modules.ensemble` that of several models.
    """

    @property
    def longest_sentence(self) -> float:
        """Most tokens of a sentence that the model has positions for."""

    def prepare(self, params: Parameters, quantize: Quantize) -> Parameters:
        """The parameters as `memory` and `step` take them.

        Args:
          params: as in training.
          quantize: what to make of the matrices.
        """

    def empty_cache(self, rows: int, beam_size: int, room: int) -> Cache:
        """The cache that `step` starts from.

        Args:
          rows: sentences.
          beam_size: hypotheses k of each.
          room: places of the ring. Each has a slot for every hypothesis: the last axis of the
            cache's arrays is `room * beam_size` long.
        """

    def memory(self, params: Parameters, inputs: Sequence) -> Memory:
        """What is to be known of sources, one a row.

        Args:
          params: from `prepare`.
          inputs: sources `[b, s]`.
        """

    def step(
        self,
        params: Parameters,
        tokens: Int[Array, "b k"],
        positions: Int[Array, " b"],
        place: Int[Array, ""],
        ancestry_mask: Bool[Array, "b k t k"],
        cache: Cache,
        memory: Memory,
    ) -> tuple[Float[Array, "b k vocab"], Cache]:
        """Logits of the next token of `k` hypotheses per sentence.

        Args:
          params: from `prepare`.
          tokens: the hypotheses' last tokens; the begin of sentence at position 0.
          positions: where they stand in each sentence, from 0.
          place: of the cache, to write to.
          ancestry_mask: `[b, j, t, i]`: the entry that slot `i` wrote at place `t` belongs to
            hypothesis `j`'s history (its own entry at `place` included).
          cache: from `empty_cache`, or returned by the step before.
          memory: from `memory`.

        Returns:
          The logits, and the cache with this place written.
        """

    def logits(self, params: Parameters, batch: Batch) -> Float[Array, "b t vocab"]:
        """Logits of every target token, given the source and the target tokens before it.

        Args:
          params: as in training.
          batch: sources and targets.
        """

    def losses(
        self, params: Parameters, batch: Batch, label_smoothing: float
    ) -> tuple[Float[Array, "b t"], Float[Array, "b t"]]:
        """Label-smoothed loss and negative log-likelihood of every target token, in nats.

        Args:
          params: as in training.
          batch: sources and targets.
          label_smoothing: eps_ls.
        """

    def attention_weights(
        self, params: Parameters, batch: Batch
    ) -> dict[str, Float[Array, "n b h _ _"]]:
        """The attention weights of all layers and heads: `encoder`, `decoder` and `cross`.

        Args:
          params: as in training.
          batch: sources and targets.

        Raises:
          UserError: there is no one network whose weights these would be.
        """
