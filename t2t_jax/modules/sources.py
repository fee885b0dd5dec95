"""The forms of sources: the conversion of a search's sources to the input of a network.

A search knows only the length of a source. A network defines the form of its sources, and a
network over another input than tokens has a different form.
"""

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from jaxtyping import Array, Int, Int32

from t2t_jax.batch import Sequence, one_a_row, padded

Source: TypeAlias = Any
"""A source: `len(source)` is the number of its positions. A text is a list of ids."""


@runtime_checkable
class SourceForm(Protocol):
    """A form of sources; implementations are hashable, as programs are compiled for them."""

    def blank(self, length: int) -> Source:
        """Return a placeholder source of some length."""

    def padded(self, sources: SequenceOf[Source], rows: int, length: int) -> Any:
        """Return NumPy arrays with a source in each row; the rest is padding.

        Args:
          sources: at most as many as there are rows.
          rows: number of rows b.
          length: positions s of a row.
        """

    def inputs(self, arrays: Any) -> Any:
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
