"""Batches, in the form that all models take, and the ids that every vocabulary shares."""

from collections.abc import Sequence as SequenceOf
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Int32, UInt8

from t2t_jax.errors import UserError

PAD_ID = 0
"""Id of padding, which fills a row after its last sentence."""
EOS_ID = 1
"""Id of the end of a sentence."""
BOS_ID = 2
"""Id that stands before the first token of a target."""
UNK_ID = 3
"""Id of text that the vocabulary cannot spell."""


class Sequence(NamedTuple):
    """Sentences in rows, several a row if packed. NumPy arrays on the host, JAX on a device.

    Segments number the sentences of a row from 1; segment 0 is padding, where all three arrays are
    0 (`PAD_ID`). Masks and positions follow from these fields alone.
    """

    tokens: Int32[Any, "*rows length"]
    """Ids; every sentence ends with `EOS_ID`."""
    segments: Int32[Any, "*rows length"]
    """Number of the sentence within its row."""
    positions: Int32[Any, "*rows length"]
    """Position within the sentence, from 0."""


class Patches(NamedTuple):
    """Images in rows, as the patches that they are cut into, in the place of sentences.

    The first place of each image, at position 0, has no patch: it is that of the class token.
    """

    values: UInt8[Any, "*rows length values"]
    """The numbers of each patch, row by row of its pixels; 0 in places without one."""
    segments: Int32[Any, "*rows length"]
    """Number of the image within its row, from 1; 0 is padding."""
    positions: Int32[Any, "*rows length"]
    """Number of the patch within the image, from 1; 0 is the class token."""


class Batch(NamedTuple):
    """Pairs of sentences: segment k of `inputs` and segment k of `targets` in the same row."""

    inputs: Any
    """The sources, `[rows, source_length]`: a `Sequence`, or another form with segments and
    positions, such as `Patches`, for a network that reads no tokens."""
    targets: Sequence
    """The targets, `[rows, target_length]`, not shifted; or labels, whose positions say from which
    position of the source each is predicted."""

    @classmethod
    def of(cls, inputs: object, targets: object) -> "Batch":
        """Return a batch of pairs of sentences that each have a row of their own.

        Args:
          inputs: ids of the sources, each with `EOS_ID` at its end: a list for each sentence, or an
            array `[rows, length]` that is padded with `PAD_ID`. None is for a decoder alone that
            reads no sources.
          targets: ids of the targets in the same form, one for each source.

        Raises:
          UserError: ids are not in this form, or there are more rows on one side. The network
            refuses ids beyond its vocabulary, except in arrays that `jax.jit` traces.
        """
        read = _rows("targets", targets)
        sources = _rows("inputs", np.zeros((len(read), 0), int) if inputs is None else inputs)
        if len(sources) != len(read):
            raise UserError(
                f"inputs has {len(sources)} rows and targets {len(read)}; give a target for every "
                "source"
            )
        return cls(one_a_row(sources), one_a_row(read))


def one_a_row(tokens: Int[Array, "b t"]) -> Sequence:
    """Return sentences that each have a row of their own.

    Args:
      tokens: ids, padded at the end with `PAD_ID`.
    """
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32), tokens.shape)
    return Sequence(tokens, (tokens != PAD_ID).astype(jnp.int32), positions)


def check_ids(name: str, tokens: object, size: int) -> None:
    """Refuse ids outside of a vocabulary, which would give NaN or the entry of another id.

    Arrays that `jax.jit` traces have no values, so their ids cannot be checked.

    Args:
      name: the name of the array, for the error.
      tokens: ids.
      size: the number of ids of the vocabulary.
    """
    if isinstance(tokens, jax.core.Tracer) or not getattr(tokens, "is_fully_addressable", True):
        return
    ids = np.asarray(tokens)
    for index in np.argwhere((ids < 0) | (ids >= size))[:1].tolist():
        raise UserError(
            f"{name}{index} is {ids[tuple(index)]}, but the vocabulary has the ids 0 to {size - 1}"
        )


def padded(
    sentences: SequenceOf[SequenceOf[int]], rows: int, length: int, fill: int = PAD_ID
) -> Int32[np.ndarray, "b t"]:
    """Make an array of sentences, one a row; the rest is padding.

    Args:
      sentences: ids, or other numbers, of each sentence.
      rows: number of rows b.
      length: positions t of a row.
      fill: the number that stands for padding.
    """
    tokens = np.full((rows, length), fill, np.int32)
    for row, sentence in enumerate(sentences):
        tokens[row, : len(sentence)] = sentence
    return tokens


def _rows(name: str, ids: Any) -> Int32[Array, "b t"]:
    """Return ids as an array, which are given as an array or as a list for each sentence."""
    if isinstance(ids, list | tuple):
        rows = [np.asarray(one) for one in ids]
        if all(row.ndim == 1 and (not row.size or row.dtype.kind in "iu") for row in rows):
            ids = padded([row.tolist() for row in rows], len(rows), max(map(len, rows), default=0))
    array = jnp.asarray(ids) if hasattr(ids, "dtype") else jnp.zeros(0)
    if array.ndim != 2 or not jnp.issubdtype(array.dtype, jnp.integer):
        raise UserError(
            f"{name} is not a list of ids for each sentence, nor an array of integers [rows, "
            f"length]; pad an array with {PAD_ID} at the end of a row"
        )
    return array.astype(jnp.int32)
