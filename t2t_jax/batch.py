"""Batches, in the form that all models take, and the ids that every vocabulary shares."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Int, Int32, UInt8

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


def one_a_row(tokens: Int[Array, "b t"]) -> Sequence:
    """Return sentences that each have a row of their own.

    Args:
      tokens: ids, padded at the end with `PAD_ID`.
    """
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32), tokens.shape)
    return Sequence(tokens, (tokens != PAD_ID).astype(jnp.int32), positions)
