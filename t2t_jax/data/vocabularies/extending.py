"""Extension of a trained BPE vocabulary by subwords of new text, after the entries that it has.

The training of BPE goes on where it ended (Sennrich et al. 2016): the new text is split by the old
vocabulary, the most frequent pair of neighbours within words becomes a subword, and so on. New
subwords have scores below all old ones. So SentencePiece first splits text as before, and then
merges further, the earlier learned subwords first. A merge may make an old one possible, which then
comes first, here as in SentencePiece.

The recipe is that of `learning`: characters that the vocabulary cannot spell become entries first,
and a subword has letters of one script, or none, unless the vocabulary was learned otherwise.
"""

import heapq
import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from sentencepiece import sentencepiece_model_pb2

from t2t_jax.data.vocabularies.learning import character_coverage, spread_lines
from t2t_jax.data.vocabularies.shared import SharedVocabulary, processor_of
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.errors import UserError

_SPACE = "\u2581"
# Runs without a space are cut, as the time to merge the characters of one grows with its square.
_WORD = re.compile(f"{_SPACE}*[^{_SPACE}]{{1,500}}|{_SPACE}+")
_LEAST_COUNT = 2
_JOINED_SCRIPTS = "CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "IDEOGRAPHIC"


class Extension(NamedTuple):
    """A vocabulary with new subwords after its old ones, and what each of these takes the place of.

    The fields but for the first have an item for each new subword, in the order of their ids.
    """

    vocabulary: SharedVocabulary
    """The vocabulary; the old entries have their old ids."""
    pieces: Sequence[str]
    """The new subwords."""
    replaced: Sequence[Sequence[int]]
    """The ids into which the old vocabulary splits a new subword."""
    shares: Sequence[float]
    """How often the subword occurs in the new text for each time that the old vocabulary has the
    first id of `replaced` there; above 0, and at most 1."""
    counts: Sequence[int]
    """How often the subword occurs in the new text, split by the new vocabulary."""


def check_extensible(vocabulary: Vocabulary, owner: object) -> SharedVocabulary:
    """Return a vocabulary that can be extended, or refuse another one.

    Args:
      vocabulary: the vocabulary of a run.
      owner: the run, for the error.

    Raises:
      UserError: it is no BPE model of SentencePiece that sources and targets share.
    """
    if isinstance(vocabulary, SharedVocabulary):
        spec = _Model(vocabulary).proto.trainer_spec
        by_words = spec.split_by_whitespace and not spec.treat_whitespace_as_suffix
        if spec.model_type == spec.BPE and by_words:
            return vocabulary
        kind = f"a SentencePiece model of another kind ({spec.ModelType.Name(spec.model_type)})"
    else:
        kind = f"a {type(vocabulary).__name__}"
    raise UserError(
        f"{owner} has {kind}, and only a SentencePiece BPE that sources and targets share can be "
        "extended; name a run with such a vocabulary, as t2t-jax train learns it for translations "
        "and text, or train anew on both corpora"
    )


def extend_vocabulary(
    vocabulary: SharedVocabulary, chunks: Iterable[tuple[list[str], list[str]]], number: int
) -> Extension:
    """Learn subwords of new text that go after the entries of a vocabulary.

    The same text gives the same bytes. Subwords that occur once are not learned. From a large
    corpus, evenly spread pairs are used, as in `train_vocabulary`.

    Args:
      vocabulary: the vocabulary, which `check_extensible` has let pass.
      chunks: aligned source and target lines, as `Corpus.pairs` gives them.
      number: the number of new subwords.

    Raises:
      UserError: the text has fewer new subwords.
    """
    old = _Model(vocabulary)
    words = Counter(word for line in spread_lines(chunks) for word in old.words(line))
    ranks = dict(old.ranks)
    characters = old.new_characters(words)[:number]
    ranks |= {character: place - old.lowest for place, character in enumerate(characters, start=1)}
    text = _Text(words, ranks)
    before = Counter[int]()
    for piece, count in text.counts().items():
        for entry in old.ids(piece):
            before[entry] += count
    pieces = [*characters, *text.merges(number - len(characters), old)]
    if len(pieces) < number:
        raise UserError(
            f"the new text has {len(pieces)} new subwords that occur {_LEAST_COUNT} times or more, "
            f"fewer than {number}; ask for at most that many, or give more text"
        )
    after = text.counts()
    replaced = [
        [entry for part in _merged(piece, old.ranks) for entry in old.ids(part)] for piece in pieces
    ]
    shares = [
        min(1.0, max(after[piece], 1) / max(before[ids[0]], 1))
        for piece, ids in zip(pieces, replaced, strict=True)
    ]
    counts = [after[piece] for piece in pieces]
    return Extension(old.extended(pieces), pieces, replaced, shares, counts)


def spare_ids(vocabulary: SharedVocabulary) -> frozenset[int]:
    """Return the ids of what spells no character by itself: bytes, and the unknown entry."""
    entries = enumerate(_Model(vocabulary).proto.pieces)
    return frozenset(n for n, entry in entries if entry.type in (entry.BYTE, entry.UNKNOWN))


class _Model:
    """The entries of a SentencePiece model, and the rules by which it was learned."""

    def __init__(self, vocabulary: SharedVocabulary) -> None:
        self.proto = sentencepiece_model_pb2.ModelProto.FromString(vocabulary.serialized)
        self._processor = processor_of(vocabulary.serialized)
        self._numbers = {entry.piece: n for n, entry in enumerate(self.proto.pieces)}
        normal = [entry for entry in self.proto.pieces if entry.type == entry.NORMAL]
        self.ranks = {entry.piece: -entry.score for entry in normal}
        """The order in which merges are done: for each entry that they can make, its place."""
        self.lowest = min(entry.score for entry in normal)
        tokens = sorted(vocabulary.protected_tokens, key=len, reverse=True)
        self._tokens = re.compile("|".join(map(re.escape, tokens)) or "(?!)")

    def words(self, line: str) -> Iterator[str]:
        """Yield the parts of a line that merges do not join with one another."""
        for part in self._tokens.split(self._processor.normalize(line)):
            yield from _WORD.findall(part)

    def new_characters(self, words: Mapping[str, int]) -> list[str]:
        """Return the characters that the model cannot spell, down to the coverage of its recipe."""
        counts = Counter[str]()
        for word, count in words.items():
            for character in word:
                counts[character] += count
        share = character_coverage(self.proto.trainer_spec.byte_fallback)
        unknown = sorted((-n, one) for one, n in counts.items() if one not in self._numbers)
        rest, found = counts.total() * (1 - share) + sum(n for n, _ in unknown), []
        for less, character in unknown:
            if rest < 0 and -less >= _LEAST_COUNT:
                found.append(character)
            rest -= less
        return found

    def ids(self, piece: str) -> list[int]:
        """Return the id of an entry, or else of the bytes that spell it, or of what is unknown."""
        if piece in self.ranks:
            return [self._numbers[piece]]
        if self.proto.trainer_spec.byte_fallback:
            return [self._numbers[f"<0x{byte:02X}>"] for byte in piece.encode()]
        return [self._processor.unk_id()]

    def allows(self, piece: str) -> bool:
        """Return whether the recipe of the model allows an entry that it does not have."""
        spec, letters = self.proto.trainer_spec, piece.removeprefix(_SPACE)
        if _SPACE in letters or not letters or len(piece) > spec.max_sentencepiece_length:
            return False
        if piece in self._numbers or (spec.split_digits and any(map(str.isdigit, letters))):
            return False
        scripts = {script for character in letters if (script := _script(character)) is not None}
        return len(scripts) <= 1 or not spec.split_by_unicode_script

    def extended(self, pieces: Sequence[str]) -> SharedVocabulary:
        """Return the vocabulary with more entries, whose merges are done last, in this order."""
        proto = sentencepiece_model_pb2.ModelProto()
        proto.CopyFrom(self.proto)
        for place, piece in enumerate(pieces, start=1):
            proto.pieces.add(piece=piece, score=self.lowest - place)
        proto.trainer_spec.vocab_size = len(proto.pieces)
        return SharedVocabulary(proto.SerializeToString(deterministic=True))


class _Text:
    """The words of a text, each once, and the subwords that they are split into so far."""

    def __init__(self, words: Mapping[str, int], ranks: dict[str, float]) -> None:
        """Split words with their counts by merges, whose order `ranks` has; `merges` adds to it."""
        self._ranks = ranks
        self._counts = list(words.values())
        self._split = [_merged(word, ranks) for word in words]
        self._pairs = Counter[str]()
        self._places: dict[str, set[int]] = defaultdict(set)
        self._changed: set[str] = set()
        for number in range(len(self._split)):
            self._add(number, 1)

    def counts(self) -> Counter[str]:
        """Count each subword of the text."""
        found = Counter[str]()
        for pieces, count in zip(self._split, self._counts, strict=True):
            for piece in pieces:
                found[piece] += count
        return found

    def merges(self, number: int, model: _Model) -> Iterator[str]:
        """Yield the most frequent pair that a model allows as one subword, merge it, and go on.

        Of several that are equally frequent, the first in the order of their code points is taken.
        """
        heap: list[tuple[int, str]] = []
        rank = max(self._ranks.values())
        for place in range(1, number + 1):
            for joined in sorted(self._changed):
                if self._pairs[joined] >= _LEAST_COUNT and model.allows(joined):
                    heapq.heappush(heap, (-self._pairs[joined], joined))
            self._changed.clear()
            while heap and -heap[0][0] != self._pairs[heap[0][1]]:
                heapq.heappop(heap)  # its count has changed since
            if not heap:
                return
            _, best = heapq.heappop(heap)
            self._ranks[best] = rank + place
            for word in sorted(self._places[best]):
                self._add(word, -1)
                self._split[word] = _merged(self._split[word], self._ranks)
                self._add(word, 1)
            yield best

    def _add(self, number: int, sign: int) -> None:
        """Count the pairs of a word, or take them away again if `sign` is -1."""
        for left, right in pairwise(self._split[number]):
            if left in self._ranks and right in self._ranks:
                self._pairs[left + right] += sign * self._counts[number]
                self._places[left + right].add(number)
                self._changed.add(left + right)


def _merged(pieces: Iterable[str], ranks: Mapping[str, float]) -> list[str]:
    """Merge neighbours that make an entry, the lowest rank first and then the leftmost."""
    found = list(pieces)
    while len(found) > 1:
        pairs = enumerate(pairwise(found))
        rank, place = min((ranks.get(left + right, math.inf), n) for n, (left, right) in pairs)
        if rank == math.inf:
            break
        found[place : place + 2] = [found[place] + found[place + 1]]
    return found


def _script(character: str) -> str | None:
    """Return the script of a letter, "" of what is no letter, and None of a combining mark."""
    category = unicodedata.category(character)[0]
    if category == "M":
        return None
    script = unicodedata.name(character, "").partition(" ")[0] if category == "L" else ""
    return _JOINED_SCRIPTS[0] if script in _JOINED_SCRIPTS else script
