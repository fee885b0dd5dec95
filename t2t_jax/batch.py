"""The batch that all models take, and the special ids that all vocabularies share."""

from collections.abc import Sequence as SequenceOf
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Int32, UInt8

from t2t_jax.errors import UserError

PAD_ID = 0
"""Id of padding, which fills a batch row after its last sentence."""
EOS_ID = 1
"""Id of the end-of-sentence token."""
BOS_ID = 2
"""Id of the beginning-of-sentence token, which precedes the first token of a target."""
UNK_ID = 3
"""Id of the unknown token, for text that the vocabulary cannot spell."""


class Sequence(NamedTuple):
    """Sentences in batch rows, as NumPy arrays on the host or JAX arrays on a device.

    A row holds several sentences if it is packed. All three arrays are 0 at padding.
    """

    tokens: Int32[Any, "*rows length"]
    """Token ids; every sentence ends with `EOS_ID`."""
    segments: Int32[Any, "*rows length"]
    """Segment ids: the index of the sentence in its batch row, from 1; 0 is padding."""
    positions: Int32[Any, "*rows length"]
    """Position of the token in its sentence, from 0."""


class Patches(NamedTuple):
    """Images in batch rows, cut into patches, as the inputs of an image encoder.

    Position 0 of each image holds the class token, which has no patch.
    """

    values: UInt8[Any, "*rows length values"]
    """The pixel values of each patch, row by row; 0 at padding and class tokens."""
    segments: Int32[Any, "*rows length"]
    """Segment ids: the index of the image in its batch row, from 1; 0 is padding."""
    positions: Int32[Any, "*rows length"]
    """Index of the patch in its image, from 1; 0 is the class token."""


class Batch(NamedTuple):
    """Sentence pairs: segment k of `inputs` pairs with segment k of the same row of `targets`."""

    inputs: Any
    """The sources, `[rows, source_length]`: a `Sequence`, or another tuple with segments and
    positions, such as `Patches`, for a network that reads no tokens."""
    targets: Sequence
    """The targets, `[rows, target_length]`, not shifted. Targets may be labels: their positions
    are then the source positions from which the network predicts them."""

    @classmethod
    def of(cls, inputs: object, targets: object) -> "Batch":
        """Make a batch of sentence pairs, one pair per row.

        Args:
          inputs: ids of the sources, each with `EOS_ID` at its end: a list for each sentence, or an
            array `[rows, length]` padded with `PAD_ID`; None for a decoder-only network.
          targets: ids of the targets in the same form, one for each source.

        Raises:
          UserError: the ids have another form, or the sides differ in their number of rows. The
            network itself refuses ids beyond its vocabulary.
        """
        target_ids = _rows("targets", targets)
        # A decoder-only network reads sources of no tokens.
        source_ids = _rows("inputs", [[]] * len(target_ids) if inputs is None else inputs)
        if len(source_ids) != len(target_ids):
            raise UserError(
                f"inputs has {len(source_ids)} rows and targets {len(target_ids)}; give a target "
                "for every source"
            )
        return cls(one_a_row(source_ids), one_a_row(target_ids))


def one_a_row(tokens: Int[Array, "b t"]) -> Sequence:
    """Make a `Sequence` with one sentence per row.

    Args:
      tokens: ids, padded at the end with `PAD_ID`.
    """
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32), tokens.shape)
    return Sequence(tokens, (tokens != PAD_ID).astype(jnp.int32), positions)


def check_ids(name: str, tokens: object, size: int) -> None:
    """Refuse ids outside a vocabulary, which would select NaN or the embedding of another id.

    Args:
      name: the name of the array, for the error.
      size: the number of ids of the vocabulary.
    """
    # Arrays that `jax.jit` traces have no values, so their ids cannot be checked.
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
    """Make an array `[rows, length]` with one sentence per row, padded at the end.

    Args:
      sentences: the ids, or other integers, of each sentence.
      fill: the integer at padding.
    """
    tokens = np.full((rows, length), fill, np.int32)
    for row, sentence in enumerate(sentences):
        tokens[row, : len(sentence)] = sentence
    return tokens


def _rows(name: str, ids: Any) -> Int32[Array, "b t"]:
    if isinstance(ids, list | tuple):
        rows = [np.asarray(sentence) for sentence in ids]
        if all(row.ndim == 1 and (not row.size or row.dtype.kind in "iu") for row in rows):
            ids = padded([row.tolist() for row in rows], len(rows), max(map(len, rows), default=0))
    # Without a dtype, the input is not an array: an empty stand-in fails the check below.
    array = jnp.asarray(ids) if hasattr(ids, "dtype") else jnp.zeros(0)
    if array.ndim != 2 or not jnp.issubdtype(array.dtype, jnp.integer):
        raise UserError(
            f"{name} is not a list of ids for each sentence, nor an array of integers [rows, "
            f"length]; pad an array with {PAD_ID} at the end of a row"
        )
    return array.astype(jnp.int32)
