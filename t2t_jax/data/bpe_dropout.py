"""Pairs of text whose subwords are drawn anew in each step of training, by BPE-dropout.

Provilkov et al. 2020, "BPE-Dropout: Simple and Effective Subword Regularization", Algorithm 1: in
each step of the merging of a word, every merge that is possible is dropped with a probability, and
the best of those left is made; the word is done in the step in which none is left.

The merge that is made is the best one unless that is dropped, then the second best, and so on. So
one random number a step, which decides how many of the best are dropped, is enough.
"""

import functools
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Int32, Int64, Integer, UInt64

from t2t_jax.batch import Batch
from t2t_jax.config import Config
from t2t_jax.data.rows import BatchShape, Chosen, offsets_of, random_bits, ranges
from t2t_jax.data.tokenized import OfText, TokenizedSplit, after_first_tokens
from t2t_jax.data.vocabularies.merges import Merges
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.errors import UserError

_STREAM = 1 << 34  # apart from those of `data.batching`, `data.images` and `data.masking`
_SAMPLED_PAIRS = 2000
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class _Drawing:
    """Texts as subwords: the ordinary ones at first, and others where they are drawn."""

    def __init__(
        self,
        merges: Merges,
        tokens: Integer[np.ndarray, " tokens"],
        lengths: Integer[np.ndarray, " texts"],
    ) -> None:
        """Take texts apart into words, and these into characters.

        Args:
          merges: the merges of the vocabulary.
          tokens: the tokens of all texts, one after the other.
          lengths: the number of tokens of each text, at least 1.
        """
        texts = offsets_of(lengths)
        begins = merges.begins_word[tokens]
        begins[texts[:-1]] = True
        first = np.append(np.flatnonzero(begins), len(tokens))
        places = offsets_of(merges.sizes[tokens])
        self._merges = merges
        self._entries = merges.taken_apart(tokens)
        self._starts, self._counts = places[first[:-1]], np.diff(places[first])
        self._text_of_word = np.searchsorted(texts, first[:-1], side="right") - 1
        self._merges_of_word = self._counts - np.diff(first)
        self._text_starts = places[texts]
        self._there = np.zeros(places[-1], bool)
        self._there[places[:-1]] = True
        self._tokens = self._entries.copy()
        self._tokens[places[:-1]] = tokens
        self._ordinary = self._tokens.copy(), self._there.copy()

    @property
    def lengths(self) -> Int64[np.ndarray, " texts"]:
        """Return the number of tokens of each text."""
        return np.add.reduceat(self._there, self._text_starts[:-1], dtype=np.int64)

    def pairs(self) -> TokenizedSplit:
        """Return the texts as pairs: their first half are the sources, their second the targets."""
        offsets = offsets_of(self.lengths)
        half = len(offsets) // 2
        tokens = np.split(self._tokens[self._there], offsets[half : half + 1])
        ends = offsets[: half + 1], offsets[half:] - offsets[half]
        return TokenizedSplit(tokens[0], ends[0], tokens[1], ends[1], {}, half)

    def uniform(self, keys: UInt64[np.ndarray, " texts"]) -> Float64[np.ndarray, " characters"]:
        """Return random numbers from 0 to 1 for each step of each word, by the keys of the texts.

        The generator is SplitMix64 (Steele et al. 2014), whose outputs follow from key and number.
        """
        counts = np.diff(self._text_starts)
        numbers = ranges(np.ones_like(counts), counts).astype(np.uint64)
        return (_mixed(np.repeat(keys, counts), numbers) >> np.uint64(11)) / 2.0**53

    def draw(
        self,
        texts: Bool[np.ndarray, " texts"],
        probability: float,
        uniform: Float64[np.ndarray, " characters"],
    ) -> None:
        """Draw the subwords of some texts, by a random number for each step of each word.

        Args:
          texts: the texts to draw; the others stay as they are.
          probability: the probability with which a merge is dropped.
          uniform: the random numbers, as `uniform` gives them.
        """
        starts, counts = self._starts, self._counts
        drops = offsets_of((uniform < probability).astype(np.int8))
        dropped = drops[starts + self._merges_of_word] > drops[starts]  # in its ordinary steps
        asked = texts[self._text_of_word]
        for words, drawn in ((asked & ~dropped, False), (asked & dropped, True)):
            count = counts[words]
            own = ranges(starts[words], count)
            found = self._ordinary[0][own], self._ordinary[1][own]
            if drawn:
                places = self._entries[own], offsets_of(count)[:-1], count
                most = int(count.max(initial=0))
                found = self._merges.merged(*places, dropped_in(uniform[own], probability, most))
            self._tokens[own], self._there[own] = found


def dropped_in(
    uniform: Float64[np.ndarray, " steps"], probability: float, most: int
) -> Int64[np.ndarray, " steps"]:
    """Return how many merges are dropped in each step, from the best on, until one stays.

    The number is `n` or more with the probability `probability**n`, up to `most`.
    """
    powers = np.cumprod(np.full(most, probability))
    return most - np.searchsorted(powers[::-1], uniform, side="right")


def _mixed(
    keys: UInt64[np.ndarray, " n"], numbers: UInt64[np.ndarray, " n"]
) -> UInt64[np.ndarray, " n"]:
    """Return the outputs of SplitMix64, by key and number of the output from 1 on."""
    mixed = keys + numbers * _GOLDEN
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ mixed >> np.uint64(shift)) * np.uint64(factor)
    return mixed ^ mixed >> np.uint64(31)


@dataclass(frozen=True)
class DrawnText(OfText):
    """Pairs whose subwords are drawn anew in each step.

    Batches are laid out for drawn subwords: a pair takes as many positions as they need on average,
    and those of one standard deviation more (of the pair, or its share of that of a packed row),
    but no more than `max_length` on a side. A row whose subwords do not fit all the same is drawn
    again, by the same random numbers with half of the probability, until they do, as those of the
    ordinary segmentation always do.
    """

    merges: Merges
    """The merges of the vocabulary."""
    probability: float
    """The probability with which a merge is dropped, above 0 and below 1."""
    max_length: int
    """The most subwords of a source or a target, end included."""
    row_length: int
    """The positions of a row of several pairs; 0 if each pair has a row of its own."""
    source_loss: bool
    """Whether pairs are cut by `data.tokenized.after_first_tokens`."""
    seed: int
    """The seed of the draws."""

    @property
    def source_lengths(self) -> Int32[np.ndarray, " n"]:
        """Return the number of positions that the source of each pair takes."""
        return self._lengths[0]

    @property
    def target_lengths(self) -> Int32[np.ndarray, " n"]:
        """Return the number of positions that the target of each pair takes."""
        return self._lengths[1]

    @functools.cached_property
    def target_tokens(self) -> Integer[np.ndarray, " total"]:
        """Return the subwords of all targets in the ordinary segmentation."""
        return self._cut(self.pairs).target_tokens

    def shape(self, shape: BatchShape, most: int) -> BatchShape:
        """Return the shape as it is, because pairs take the positions that they may need."""
        return shape

    def batch(
        self, chosen: Chosen, shape: BatchShape, step: int, numbers: Integer[np.ndarray, " rows"]
    ) -> Batch:
        """Return the arrays of a batch; the draws depend on seed, step, row and place in it."""
        drawing, uniform = self._drawing(chosen, numbers, step, self.seed)
        again, probability = np.ones(len(chosen.examples), bool), self.probability
        while True:
            drawing.draw(np.tile(again, 2), probability, uniform)
            drawn = self._cut(drawing.pairs())
            fits = np.ones(shape.rows, bool)
            fits[chosen.rows[(drawing.lengths > self.max_length).reshape(2, -1).any(axis=0)]] = (
                False
            )
            for own, room in zip(
                (drawn.source_lengths, drawn.target_lengths), shape[1:], strict=True
            ):
                fits &= np.bincount(chosen.rows, own, shape.rows) <= room
            if fits.all():
                break
            again, probability = ~fits[chosen.rows], probability / 2
        numbered = chosen._replace(examples=np.arange(len(drawn), dtype=np.int32))
        return drawn.batch(numbered, shape, step, numbers)

    def _drawing(
        self, chosen: Chosen, numbers: Integer[np.ndarray, " rows"], step: int, seed: int
    ) -> tuple[_Drawing, Float64[np.ndarray, " characters"]]:
        """Return the chosen sources, then targets, as they are, and the random numbers of each."""
        text, examples = self.pairs, chosen.examples
        tokens, lengths = [], []
        for every, offsets in (
            (text.source_tokens, text.source_offsets),
            (text.target_tokens, text.target_offsets),
        ):
            lengths.append(offsets[examples + 1] - offsets[examples])
            tokens.append(np.asarray(every)[ranges(offsets[examples], lengths[-1])])
        drawing = _Drawing(self.merges, np.concatenate(tokens), np.concatenate(lengths))
        stream, only = np.array([seed, _STREAM], np.uint64), np.zeros(1, np.int64)
        [raw] = random_bits(stream, only, step, 2 * int(numbers.max(initial=0)) + 2)
        rows = raw.reshape(-1, 2)[numbers[chosen.rows]].T
        return drawing, drawing.uniform(
            _mixed(rows.ravel(), np.tile(chosen.segments, 2).astype(np.uint64))
        )

    def _cut(self, split: TokenizedSplit) -> TokenizedSplit:
        return after_first_tokens(split) if self.source_loss else split

    @functools.cached_property
    def _lengths(self) -> tuple[Int32[np.ndarray, " n"], Int32[np.ndarray, " n"]]:
        """Return the positions that sources and targets take, by draws of a sample of the pairs.

        They are the same for every seed.
        Sums of integers, quotients and roots are the same on every machine, as batches must be.
        """
        sample = np.arange(0, len(self), -(-len(self) // _SAMPLED_PAIRS) or 1, dtype=np.int32)
        rows = np.arange(len(sample))
        drawing, uniform = self._drawing(Chosen(sample, rows, rows), rows, 0, 0)
        drawing.draw(np.ones(2 * len(sample), bool), self.probability, uniform)
        before = self.pairs.source_lengths, self.pairs.target_lengths
        room = []
        for every, after in zip(before, drawing.lengths.reshape(2, -1), strict=True):
            total, drawn = max(1, int(every[sample].sum())), int(after.sum())
            off = total * after - drawn * every[sample].astype(np.int64)
            spread = sum(one * one for one in off.tolist()) / total**3
            deviation = np.sqrt(spread / np.maximum(every, self.row_length))
            needed = np.ceil(every * (drawn / total + deviation))
            room.append(np.maximum(every, np.minimum(needed, self.max_length)).astype(np.int32))
        sources, targets = room
        return (np.ones_like(sources), sources - 1 + targets) if self.source_loss else tuple(room)


def drawn_text(config: Config, pairs: TokenizedSplit, vocabulary: Vocabulary) -> DrawnText:
    """Return the examples of pairs with the BPE-dropout of a config, `data.bpe_dropout` above 0.

    Raises:
      UserError: the vocabulary is none of SentencePiece's BPE, which has merges to drop.
    """
    data, training = config.data, config.training
    try:
        merges = Merges(vocabulary)
    except ValueError as error:
        raise UserError(
            f"data.bpe_dropout={data.bpe_dropout} drops merges of SentencePiece's BPE, and the "
            f"vocabulary is {error}; leave it out, or let the run learn a vocabulary of its own"
        ) from error
    row_length = data.max_length if data.batching == "pack" else 0
    return DrawnText(
        pairs,
        merges,
        data.bpe_dropout,
        max_length=data.max_length,
        row_length=row_length,
        source_loss=training.source_loss,
        seed=training.seed,
    )
