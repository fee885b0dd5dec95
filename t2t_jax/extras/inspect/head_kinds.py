"""Classify attention heads by what they attend to (Voita et al. 2019, Clark et al. 2019).

For each kind, a head has a share: the attention weight on these keys, averaged over queries.

    previous word      the word before the word of the query
    same word          all subwords of the word of the query
    next word          the word after the word of the query
    punctuation        subwords that consist of punctuation
    end of sentence    the end of the sentence, or the start of the decoder input
    one word           the source word with the largest weight (only in cross-attention)

The largest share decides the kind if it is at least 0.5. Otherwise a head is "broad" if its entropy
is at least 0.8 of the maximum, else "other". Queries without text do not count.
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from t2t_jax.config.model import Part

_BY_POSITION = {"previous word": -1, "same word": 0, "next word": 1}
SHARES = (*_BY_POSITION, "punctuation", "end of sentence", "one word")
"""The kinds that a share of the attention weights defines."""
LEAST_SHARE = 0.5
"""The least share that assigns a head to a kind."""
BROAD = 0.8
"""The least entropy of a broad head, relative to the maximum entropy."""


class Subwords:
    """The subwords of a sentence that are the queries or keys of an attention."""

    def __init__(self, word_indices: Sequence[int], pieces: Sequence[str]) -> None:
        """Mark the subwords that are punctuation.

        Args:
          word_indices: the word index of each subword, from 0; -1 for the end or start of a
            sentence.
          pieces: the subwords as the vocabulary writes them.
        """
        self.words = np.array(word_indices, int)
        """The word index of each subword."""
        marks = [_is_punctuation(piece) for piece in pieces]
        self.is_punctuation = np.array(marks, bool) & (self.words >= 0)
        """True for each subword that consists of punctuation."""


@dataclass(frozen=True)
class HeadCounts:
    """Sums over queries, for each layer and head: shares of attention weight, and entropies."""

    shares: Float[np.ndarray, "kinds n h"]
    """The sum of the share of each kind in `SHARES`."""
    entropy: Float[np.ndarray, "n h"]
    """The sum of the entropies, in nats."""
    relative_entropy: Float[np.ndarray, "n h"]
    """The sum of the entropies, each divided by its maximum."""
    queries: int
    """The number of queries."""

    def __add__(self, counts: "HeadCounts") -> "HeadCounts":
        """Return the sums over the queries of both counts."""
        sums = {name: total + getattr(counts, name) for name, total in vars(self).items()}
        return HeadCounts(**sums)

    @property
    def mean_entropy(self) -> Float[np.ndarray, "n h"]:
        """Return the mean entropy of each head's attention weights, in nats."""
        return self.entropy / max(1, self.queries)

    @property
    def mean_relative_entropy(self) -> Float[np.ndarray, "n h"]:
        """Return the mean entropy of each head's attention weights, divided by the maximum."""
        return self.relative_entropy / max(1, self.queries)

    def kinds(self) -> list[list[str]]:
        """Return the kind of each head, such as "previous word", as a list per layer."""
        means = self.shares / max(1, self.queries)
        fallbacks = np.where(self.mean_relative_entropy >= BROAD, "broad", "other")
        winners = np.array(SHARES)[means.argmax(0)]
        kinds: list[list[str]] = np.where(means.max(0) >= LEAST_SHARE, winners, fallbacks).tolist()
        return kinds


def count_heads(
    weights: Float[np.ndarray, "n h q k"], queries: Subwords, keys: Subwords, attention: Part
) -> HeadCounts:
    """Sum each head's attention weights by kind of key, and its entropies, over queries.

    Args:
      weights: attention weights of a sentence, which sum to one over the keys k.
      queries: the input subword of each row; in cross-attention, the subword that it predicts.
      keys: the subwords that the queries attend to.
      attention: encoder, decoder or cross.
    """
    has_text = queries.words >= 0
    weights, query_words = weights[:, :, has_text], queries.words[has_text]
    is_special = keys.words < 0
    shares = dict.fromkeys(SHARES, np.zeros(weights.shape[:3]))
    if attention == "cross":
        is_in_word = keys.words[:, None] == np.arange(keys.words.max(initial=-1) + 1)
        shares["one word"] = (weights @ is_in_word.astype(weights.dtype)).max(-1, initial=0)
    else:
        for name, offset in _BY_POSITION.items():
            is_kind = (keys.words == query_words[:, None] + offset) & ~is_special  # [queries, keys]
            shares[name] = (weights * is_kind).sum(-1)
    shares["punctuation"] = weights[..., keys.is_punctuation].sum(-1)
    shares["end of sentence"] = weights[..., is_special].sum(-1)
    logs = np.log(np.where(weights > 0, weights, 1))
    entropy = -(weights * logs).sum(-1)
    # A decoder query attends to itself and to earlier positions.
    num_choices = np.full(len(has_text), len(is_special))
    if attention == "decoder":
        num_choices = 1 + np.arange(len(has_text))
    max_entropy = np.log(np.maximum(num_choices, 2))[has_text]
    return HeadCounts(
        np.stack([shares[name].sum(-1) for name in SHARES]),
        entropy.sum(-1),
        (entropy / max_entropy).sum(-1),
        int(has_text.sum()),
    )


def attention_sides(
    source: tuple[Sequence[int], Sequence[str]], target: tuple[Sequence[int], Sequence[str]]
) -> dict[Part, tuple[Subwords, Subwords]]:
    """Return the queries and keys of each attention for a sentence and its translation.

    Args:
      source: the word index of each subword of the sentence, and the subwords.
      target: the word index of each subword of the translation, and the subwords.
    """
    # The queries of cross-attention are the predicted subwords, not the decoder inputs.
    sentence = Subwords(*source)
    words, pieces = target
    inputs = Subwords([-1, *words[:-1]], ["", *pieces[:-1]])
    return {
        "encoder": (sentence, sentence),
        "decoder": (inputs, inputs),
        "cross": (Subwords(words, pieces), sentence),
    }


def _is_punctuation(piece: str) -> bool:
    # ▁ marks a space and @@ a cut within a word.
    text = piece.removesuffix("@@").replace("▁", "")
    return bool(text) and all(unicodedata.category(letter).startswith("P") for letter in text)
