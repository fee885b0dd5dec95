"""New ids for the entries of an imported vocabulary.

Padding is id 0 and the end of a sentence id 1 in every vocabulary of this package, so the rows of
an imported model's embeddings are put into that order; the other entries keep their order.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float32, Int

PAD, END, BEGIN, UNKNOWN = "<pad>", "</s>", "<s>", "<unk>"
"""The names of special entries."""

FIRST_ENTRIES = BEGIN, PAD, END, UNKNOWN
"""The entries with the ids 0 to 3 in M2M100, mBART and BART."""

NONE = -1
"""The id in an order that marks an entry which the original vocabulary does not have."""


def new_order(
    pieces: Sequence[str], first: Sequence[int]
) -> tuple[list[str], Int[np.ndarray, " entries"]]:
    """Return the entries of a vocabulary in the order of this package.

    Args:
      pieces: the entry of each id, in the original.
      first: the original's ids of the entries that come first: padding, the end of a sentence and
        others with a fixed place; `NONE` for an entry that the original does not have.

    Returns:
      The entries in the new order, with the names `PAD` and `END` for the first two, and the
      original's id of each.
    """
    rest = [number for number in range(len(pieces)) if number not in first]
    order = [*first, *rest]
    names = [PAD, END, *(pieces[number] for number in order[2:])]
    return names, np.array(order)


def rows_in(
    array: Float32[np.ndarray, "..."], order: Int[np.ndarray, " entries"]
) -> Float32[np.ndarray, "..."]:
    """Return the rows of an array in a new order, with zeros for entries that the original lacks.

    Args:
      array: an array with a row, or a number, for each of the original's entries.
      order: the original's id of each entry; see `new_order`.
    """
    there = (order != NONE).reshape(-1, *[1] * (array.ndim - 1))
    return np.where(there, array[order], np.float32(0)).astype(np.float32)
