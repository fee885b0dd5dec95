"""The sentences before a sentence in its document, which a model reads as the sentence's context.

Tiedemann and Scherrer 2017, "Neural Machine Translation with Extended Context": sentences before
are put in front of a sentence, with a token after each that separates them. In front of sources
alone (their "2+1", for one sentence before), a model reads more; in front of sources and targets
("2+2"), it also translates them again, and what it says agrees with what it has said.

A blank source ends a document.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from t2t_jax.batch import EOS_ID
from t2t_jax.config import DataConfig
from t2t_jax.data.rows import FlatSentences, offsets_of, ranges
from t2t_jax.data.splits import Chunk, chunks
from t2t_jax.data.vocabulary import Rows, Vocabulary
from t2t_jax.errors import UserError

CONTEXT_BREAK = "<brk>"
"""The entry of a vocabulary that ends a sentence of the context."""

Pairs = tuple[FlatSentences, FlatSentences]
"""The sources of consecutive pairs, and their targets."""


class DocumentContext(NamedTuple):
    """How many sentences stand before a sentence, and where."""

    sentences: int
    """The most sentences of a context."""
    most: int
    """The most tokens of a source, or of a target, with its context; a context that is longer loses
    its first sentences."""
    source_break: int
    """The id, in sources, of the token that ends a sentence of the context."""
    target_break: int | None
    """The same in targets; None if targets have no context."""

    def check_takes(self, what: str) -> None:
        """Refuse to give something for the target of a sentence where its context is one as well.

        Args:
          what: what is given, such as a prefix.

        Raises:
          UserError: targets have contexts.
        """
        if self.target_break is not None:
            raise UserError(
                "this model translates the context of a sentence as well (data.context_sides="
                f"'both'), before the sentence, so that no {what} can be given"
            )

    def sources(self, side: FlatSentences, most: float, first: int = 0) -> FlatSentences:
        """Return sources with their contexts, of which targets have none or are not yet known.

        Args:
          most: the most tokens of a source with its context.
          first: the number of sources in front of the first that is asked for.
        """
        starts = self._starts((side,), min(most, self.most))
        return _joined(side, starts, self.source_break, first)

    def pairs(self, pairs: Pairs, first: int = 0) -> Pairs:
        """Return sources and targets with their contexts.

        Args:
          first: the number of pairs in front of the first that is asked for.
        """
        source, target = pairs
        if self.target_break is None:
            return self.sources(source, self.most, first), _rest(target, first)
        starts = self._starts(pairs, self.most)
        found = _joined(source, starts, self.source_break, first)
        return found, _joined(target, starts, self.target_break, first)

    def _starts(self, sides: tuple[FlatSentences, ...], most: float) -> Int64[np.ndarray, " n"]:
        """Return the number of the first sentence of each context; its own where there is none."""
        blank = sides[0].lengths == 1  # the end of sentence alone
        own = np.arange(len(blank))
        starts = np.maximum.accumulate(np.where(blank, own + 1, 0))
        starts = np.minimum(np.maximum(starts, own - self.sentences), own)
        offsets = [offsets_of(side.lengths) for side in sides]
        for _ in range(self.sentences):
            is_long = np.any([ends[1:] - ends[starts] > most for ends in offsets], axis=0)
            starts += is_long & (starts < own)
        return starts

    def following(self) -> Callable[[Pairs], Pairs]:
        """Return a function that gives some pairs of a text, and then the next ones, contexts."""
        before: Pairs | None = None

        def extended(pairs: Pairs) -> Pairs:
            nonlocal before
            count = 0
            if before is not None:
                count = len(before[0].lengths)
                pairs = _one_after_other(before[0], pairs[0]), _one_after_other(before[1], pairs[1])
            last = max(0, len(pairs[0].lengths) - self.sentences)
            before = _rest(pairs[0], last), _rest(pairs[1], last)
            return self.pairs(pairs, count)

        return extended

    def without(self, target: tuple[int, ...]) -> tuple[int, ...]:
        """Return a target without its context."""
        if self.target_break not in target:
            return target
        return target[len(target) - target[::-1].index(self.target_break) :]


def _joined(
    side: FlatSentences, starts: Int64[np.ndarray, " n"], separator: int, first: int
) -> FlatSentences:
    """Return sentences from a number on, each joined to those before it from its start on."""
    offsets = offsets_of(side.lengths)
    lengths = (offsets[1:] - offsets[starts])[first:]
    tokens = np.asarray(side.tokens)[ranges(offsets[starts][first:], lengths)]
    is_break = tokens == EOS_ID
    is_break[np.cumsum(lengths) - 1] = False
    return FlatSentences(
        np.where(is_break, tokens.dtype.type(separator), tokens), lengths.astype(np.int32)
    )


def _rest(side: FlatSentences, first: int) -> FlatSentences:
    return FlatSentences(side.tokens[side.lengths[:first].sum() :], side.lengths[first:])


def _one_after_other(first: FlatSentences, second: FlatSentences) -> FlatSentences:
    return FlatSentences(*map(np.concatenate, zip(first, second, strict=True)))


def context_of(config: DataConfig, vocabulary: Vocabulary) -> DocumentContext | None:
    """Return the contexts that `data.context_sentences` asks for; None if it asks for none.

    Raises:
      UserError: the vocabulary has no entry `<brk>`.
    """
    if not config.context_sentences:
        return None
    source = _number(vocabulary.pieces, vocabulary.source_size)
    both = config.context_sides == "both"
    target = _number(vocabulary.target_pieces, len(vocabulary)) if both else None
    return DocumentContext(config.context_sentences, config.max_length, source, target)


def _number(pieces: Callable[[Rows], list[list[str]]], size: int) -> int:
    [known] = pieces([range(size)])
    if CONTEXT_BREAK not in known:
        raise UserError(
            f"the vocabulary has no entry {CONTEXT_BREAK}, which ends a sentence of the context; "
            "leave data.context_sentences out, or begin with a run that was trained with it"
        )
    return known.index(CONTEXT_BREAK)


def with_blank_lines(pairs: Iterator[tuple[str, str]], ids: Iterator[str]) -> Iterator[Chunk]:
    """Yield pairs in chunks, with a blank pair where one document ends and another begins.

    Args:
      ids: for each pair the name of its document.
    """

    def separated() -> Iterator[tuple[str, str]]:
        last = None
        for pair, name in zip(pairs, ids, strict=True):
            if last is not None and name != last:
                yield "", ""
            last = name
            yield pair

    return chunks(separated())
