"""The entropy and the kind of attention heads, by stated rules.

The kinds are those of Voita et al. 2019 and Clark et al. 2019. They are told apart by the shares of
the weights that lie:

    previous word      on the word before the query's own
    same word          on the query's own word, its other subwords included
    next word          on the word after it
    punctuation        on subwords that are punctuation alone
    end of sentence    on the end of the sentence, or on its start in the decoder
    one word           the largest share of a single word of the source; in cross-attention alone

A share is the mean over all queries, of as many sentences as are counted; queries that stand for
no text, such as the end of a sentence, are left out. A head is of the kind that has the largest
share, if that is one half at least. Otherwise it is "broad" if its entropy is four fifths of the
greatest possible, or more, and else "other". Words are separated by spaces. In cross-attention a
query is the subword that is predicted, so it has no own, previous or next word.
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from t2t_jax.config.model import Part

_BY_POSITION = {"previous word": -1, "same word": 0, "next word": 1}
SHARES = (*_BY_POSITION, "punctuation", "end of sentence", "one word")
"""The kinds that are shares of the weights."""
LEAST_SHARE = 0.5
"""The least share of the weights by which a head is of a kind."""
BROAD = 0.8
"""The least entropy of a broad head, as a share of the greatest possible."""


class Attended:
    """The subwords of a sentence or a translation, as the queries or the keys of an attention."""

    def __init__(self, words: Sequence[int], pieces: Sequence[str]) -> None:
        """Find the punctuation among the subwords.

        Args:
          words: the number of each subword's word, from 0; -1 for the end or start of a sentence.
          pieces: the subwords as the vocabulary writes them.
        """
        self.words = np.array(words, int)
        """The number of each subword's word."""
        marks = [_is_punctuation(piece) for piece in pieces]
        self.is_punctuation = np.array(marks, bool) & (self.words >= 0)
        """Whether each subword is punctuation alone."""


@dataclass(frozen=True)
class HeadCounts:
    """Sums over the queries of one sentence or several, for every layer and head."""

    shares: Float[np.ndarray, "kinds n h"]
    """The sum of each of `SHARES`."""
    entropy: Float[np.ndarray, "n h"]
    """The sum of the entropies, in nats."""
    relative_entropy: Float[np.ndarray, "n h"]
    """The sum of the entropies, each divided by the greatest possible."""
    queries: int
    """The number of queries."""

    def __add__(self, other: "HeadCounts") -> "HeadCounts":
        """Return the sums over the queries of both."""
        sums = vars(self).items()
        return HeadCounts(**{name: own + getattr(other, name) for name, own in sums})

    @property
    def mean_entropy(self) -> Float[np.ndarray, "n h"]:
        """Return the mean entropy of a query's weights, in nats."""
        return self.entropy / max(1, self.queries)

    @property
    def mean_relative_entropy(self) -> Float[np.ndarray, "n h"]:
        """Return the mean entropy of a query's weights, as a share of the greatest possible."""
        return self.relative_entropy / max(1, self.queries)

    def kinds(self) -> list[list[str]]:
        """Return the kind of every head, by layer."""
        means = self.shares / max(1, self.queries)
        others = np.where(self.mean_relative_entropy >= BROAD, "broad", "other")
        largest = np.array(SHARES)[means.argmax(0)]
        kinds: list[list[str]] = np.where(means.max(0) >= LEAST_SHARE, largest, others).tolist()
        return kinds


def count_heads(
    weights: Float[np.ndarray, "n h q k"], queries: Attended, keys: Attended, which: Part
) -> HeadCounts:
    """Count the shares and entropies of the heads of an attention on one sentence.

    Args:
      weights: attention weights; each row sums to one.
      queries: the subwords that attend. In the decoder, subword i is the input of row i; in
        cross-attention, subword i is predicted by row i.
      keys: the subwords that are attended to.
      which: the attention that the weights are of.
    """
    has_text = queries.words >= 0
    weights, words = weights[:, :, has_text], queries.words[has_text]
    special = keys.words < 0
    shares = dict.fromkeys(SHARES, np.zeros(weights.shape[:3]))
    if which == "cross":
        of_words = keys.words[:, None] == np.arange(keys.words.max(initial=-1) + 1)
        shares["one word"] = (weights @ of_words.astype(weights.dtype)).max(-1, initial=0)
    else:
        for name, offset in _BY_POSITION.items():
            is_it = (keys.words == words[:, None] + offset) & ~special
            shares[name] = (weights * is_it).sum(-1)
    shares["punctuation"] = weights[..., keys.is_punctuation].sum(-1)
    shares["end of sentence"] = weights[..., special].sum(-1)
    logs = np.log(np.where(weights > 0, weights, 1))
    entropy = -(weights * logs).sum(-1)
    # In the decoder a query may attend to the positions before it, and to itself.
    choices = np.full(len(has_text), len(special))
    if which == "decoder":
        choices = 1 + np.arange(len(has_text))
    greatest = np.log(np.maximum(choices, 2))[has_text]
    return HeadCounts(
        np.stack([shares[name].sum(-1) for name in SHARES]),
        entropy.sum(-1),
        (entropy / greatest).sum(-1),
        int(has_text.sum()),
    )


def sides(
    source: tuple[Sequence[int], Sequence[str]], target: tuple[Sequence[int], Sequence[str]]
) -> dict[Part, tuple[Attended, Attended]]:
    """Return the queries and the keys of each attention for a sentence and its translation.

    In the decoder's self-attention both are the inputs: the start, and the translation without its
    last subword. In cross-attention the queries are the subwords that are predicted.

    Args:
      source: for the sentence, the number of each subword's word, and the subwords.
      target: the same for the translation.
    """
    of_source = Attended(*source)
    words, pieces = target
    inputs = Attended([-1, *words[:-1]], ["", *pieces[:-1]])
    return {
        "encoder": (of_source, of_source),
        "decoder": (inputs, inputs),
        "cross": (Attended(words, pieces), of_source),
    }


def _is_punctuation(piece: str) -> bool:
    """Return whether a subword is punctuation alone, beside ▁ for a space and @@ at a cut."""
    text = piece.removesuffix("@@").replace("▁", "")
    return bool(text) and all(unicodedata.category(letter).startswith("P") for letter in text)
