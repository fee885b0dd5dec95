"""The merges of a SentencePiece BPE vocabulary, applied to many words at once.

Sennrich et al. 2016, "Neural Machine Translation of Rare Words with Subword Units", section 3.2,
in the form of SentencePiece: in each step, a word joins the two neighbours whose joined subword has
the best score in the vocabulary, and of equal ones the leftmost.
"""

import numpy as np
from jaxtyping import Bool, Int32, Int64, Integer
from sentencepiece import sentencepiece_model_pb2

from t2t_jax.batch import PAD_ID
from t2t_jax.data.rows import offsets_of, ranges
from t2t_jax.data.vocabularies.shared import SharedVocabulary
from t2t_jax.data.vocabulary import Vocabulary

_SPACE = "\u2581"
_BITS, _PLACE = 32, 2**32 - 1  # a key is a rank and, in its lower bits, a place
_NO_PAIR, _FREE = (2**31 - 1) << _BITS, -1
_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # 2**64 over the golden ratio: multiplicative hashing


class Merges:
    """The characters of the entries of a vocabulary, and the pairs of entries that join to one.

    Special entries, bytes and protected tokens stay whole and join with nothing.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Make the tables of a vocabulary.

        Raises:
          ValueError: it is not one of SentencePiece's BPE for sources and targets together, or has
            unused entries, or some of several words; the message says what it is.
        """
        if not isinstance(vocabulary, SharedVocabulary):
            raise ValueError("not of SentencePiece's BPE for sources and targets together")
        model = sentencepiece_model_pb2.ModelProto.FromString(vocabulary.serialized)
        if model.trainer_spec.model_type != model.trainer_spec.BPE:
            raise ValueError("a SentencePiece model of another kind than BPE")
        pieces = [piece.piece for piece in model.pieces]
        ids = {p.piece: n for n, p in enumerate(model.pieces) if p.type == p.NORMAL}
        unused = any(piece.type == piece.UNUSED for piece in model.pieces)
        if unused or any(_SPACE in piece[1:] for piece in ids):
            raise ValueError("a SentencePiece model with unused subwords, or some of several words")
        characters = [
            [ids[one] for one in piece] if piece in ids and ids.keys() >= set(piece) else [n]
            for n, piece in enumerate(pieces)
        ]
        self.sizes = np.array([len(own) for own in characters])
        """The number of entries into which each entry is taken apart."""
        self.begins_word = np.array([piece.startswith(_SPACE) for piece in pieces])
        """Whether each entry begins a word."""
        self._offsets = offsets_of(self.sizes)
        self._characters = np.concatenate(characters).astype(np.int32)
        by_score = sorted(ids.values(), key=lambda n: -model.pieces[n].score)
        self._ranked = np.array(by_score, np.int32)
        self._hash_pairs(
            {
                ids[pieces[n][:cut]] * len(pieces) + ids[pieces[n][cut:]]: rank
                for rank, n in enumerate(by_score)
                for cut in range(1, len(pieces[n]))
                if pieces[n][:cut] in ids and pieces[n][cut:] in ids
            }
        )

    def taken_apart(self, tokens: Integer[np.ndarray, " tokens"]) -> Int32[np.ndarray, " entries"]:
        """Return the entries of the characters of tokens, one token after the other."""
        return self._characters[ranges(self._offsets[tokens], self.sizes[tokens])]

    def merged(
        self,
        entries: Int32[np.ndarray, " entries"],
        starts: Int64[np.ndarray, " words"],
        counts: Int64[np.ndarray, " words"],
        dropped: Integer[np.ndarray, " entries"],
    ) -> tuple[Int32[np.ndarray, " entries"], Bool[np.ndarray, " entries"]]:
        """Merge the entries of words, step by step, all words at once.

        Args:
          entries: the entries of words that are taken apart, one word after the other.
          starts: the place of the first entry of each word.
          counts: the number of entries of each word, at least 1.
          dropped: the number of merges, from the best on, that are dropped in each step: that of
            step s (from 0) of a word at `start + s`. A word is done in the step that makes none.

        Returns:
          The subwords, each in the place of its first entry, and which places have one.
        """
        end = len(entries)
        tokens = np.append(entries, np.int32(PAD_ID))  # the place `end` is beyond every word
        places = np.arange(end + 1)
        before, after = places - 1, places + 1
        before[starts], after[starts + counts - 1], after[end] = end, end, end
        there = np.ones(end + 1, bool)
        keys = self._keys(tokens, places, after)
        step = 0
        while len(starts):
            best = _best(keys, starts, counts, dropped[starts + step])
            going_on = best < _NO_PAIR
            starts, counts, best = starts[going_on], counts[going_on], best[going_on]
            place = best & _PLACE
            gone, previous = after[place], before[place]
            following = after[gone]
            tokens[place] = self._ranked[best >> _BITS]
            there[gone], keys[gone] = False, _NO_PAIR
            after[place], before[following] = following, place
            keys[place] = self._keys(tokens, place, following)
            keys[previous] = self._keys(tokens, previous, place)
            step += 1
        return tokens[:-1], there[:-1]

    def _keys(
        self,
        tokens: Int32[np.ndarray, " all"],
        left: Int64[np.ndarray, " pairs"],
        right: Int64[np.ndarray, " pairs"],
    ) -> Int64[np.ndarray, " pairs"]:
        """Return for each pair of places its rank, above the left place: the lowest is the best."""
        pairs = tokens[left] * np.int64(len(self.sizes)) + tokens[right]
        slots = self._slots(pairs)
        found = self._pairs[slots]
        astray = np.flatnonzero((found != pairs) & (found != _FREE))
        while len(astray):
            slots[astray] = (slots[astray] + 1) % len(self._pairs)
            found = self._pairs[slots[astray]]
            astray = astray[(found != pairs[astray]) & (found != _FREE)]
        return self._ranks[slots] << _BITS | left

    def _slots(self, pairs: Int64[np.ndarray, " pairs"]) -> Int64[np.ndarray, " pairs"]:
        """Return the place in the tables at which the search for a pair begins."""
        shift = np.uint64(65 - len(self._pairs).bit_length())
        return (pairs.astype(np.uint64) * _FACTOR >> shift).astype(np.int64)

    def _hash_pairs(self, ranks: dict[int, int]) -> None:
        """Make the tables of pairs and of their ranks, at least three quarters of which are free.

        A pair stands at its slot, or at the first one after it that was free.
        """
        size = 1 << max(4 * len(ranks), 8).bit_length()
        self._pairs = np.full(size, _FREE)
        self._ranks = np.full(size, _NO_PAIR >> _BITS)
        pairs = np.fromiter(ranks, np.int64, len(ranks))
        for pair, slot, rank in zip(
            pairs.tolist(), self._slots(pairs).tolist(), ranks.values(), strict=True
        ):
            while self._pairs[slot] != _FREE:
                slot = (slot + 1) % size
            self._pairs[slot], self._ranks[slot] = pair, rank


def _best(
    keys: Int64[np.ndarray, " all"],
    starts: Int64[np.ndarray, " words"],
    counts: Int64[np.ndarray, " words"],
    dropped: Integer[np.ndarray, " words"],
) -> Int64[np.ndarray, " words"]:
    """Return the lowest key of each word, after so many lower ones that are dropped."""
    own, firsts = keys[ranges(starts, counts)], offsets_of(counts)[:-1]
    best = np.minimum.reduceat(own, firsts)
    again, number = np.flatnonzero((dropped > 0) & (best < _NO_PAIR)), 0
    while len(again):
        first, count, number = firsts[again], counts[again], number + 1
        own[first + (best[again] & _PLACE) - starts[again]] = _NO_PAIR
        best[again] = np.minimum.reduceat(own[ranges(first, count)], offsets_of(count)[:-1])
        again = again[(dropped[again] > number) & (best[again] < _NO_PAIR)]
    return best
