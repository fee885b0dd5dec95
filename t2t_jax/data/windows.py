"""Windows over long text, in which a language model is scored on every token exactly once."""

import numpy as np
from jaxtyping import Int64, Integer

from t2t_jax.data.rows import offsets_of, ranges
from t2t_jax.data.tokenized import TokenizedSplit


def windows(split: TokenizedSplit, length: int, stride: int, start: int) -> TokenizedSplit:
    """Cut long text into windows: scored tokens are targets, and tokens before them sources.

    The first window of a sequence scores its first `length` tokens, and every other one the next
    `stride`, with the `length - stride` tokens before them as context. So every token is scored
    once, and after the first window each has at least that much context. All windows begin with
    `start`, as sequences do in training::

        length 4, stride 2     source: start          target: a b c d
                               source: start c d      target: e f
                               source: start e f      target: g

    Args:
      split: sequences of text, with empty sources.
      length: the most tokens that a window reads to predict from, `start` included.
      stride: number of tokens that a window scores, from the second window on; at most `length`.
      start: the id that stands at the beginning of every window.
    """
    lengths = np.diff(split.target_offsets)
    later = np.maximum(-(-(lengths - length) // stride), 0)  # windows after the first
    counts = later + (lengths > 0)
    sequence = np.repeat(np.arange(len(lengths)), counts)
    number = np.arange(len(sequence)) - np.repeat(np.cumsum(counts) - counts, counts)
    begin = np.where(number == 0, 0, length + (number - 1) * stride)
    end = np.minimum(length + number * stride, lengths[sequence])
    context = np.where(number == 0, 0, begin - (length - stride))
    at = split.target_offsets[sequence]
    tokens = np.asarray(split.target_tokens)
    sources, source_offsets = _parts(tokens, at + context - 1, at + begin)
    sources[source_offsets[:-1]] = start  # in place of the token before the context
    targets, target_offsets = _parts(tokens, at + begin, at + end)
    return TokenizedSplit(
        sources, source_offsets, targets, target_offsets, {}, split.num_pairs_read
    )


def _parts(
    tokens: Integer[np.ndarray, " tokens"],
    begins: Int64[np.ndarray, " parts"],
    ends: Int64[np.ndarray, " parts"],
) -> tuple[Integer[np.ndarray, " kept"], Int64[np.ndarray, " offsets"]]:
    """Join the parts `tokens[begins[i] : ends[i]]`, and return them with their offsets."""
    return tokens[ranges(begins, ends - begins)], offsets_of(ends - begins)
