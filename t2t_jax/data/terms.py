"""Terms with the translations that are wanted, and sources that say how theirs are translated.

A model learns to use wanted terms where some sources of its training have them (Dinu et al. 2019,
"Training Neural Machine Translation to Apply Terminology Constraints"): behind a term of a source
stands its translation, of which the target has one. Marks around both, which are entries of the
vocabulary, take the place of that paper's source factors.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from t2t_jax.data.lines import read_lines
from t2t_jax.data.splits import Chunk
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.errors import UserError

TERM_MARKS = "<term>", "<as>", "</term>"
"""The marks in front of a term, between it and its translation, and behind that."""

_OPTIONS = "case", "part"
_WORD = re.compile(r"[^\W\d_]{4,}")
_STREAM = 1 << 36  # apart from those of `data.mixing` and others


class Term(NamedTuple):
    """A term of a glossary."""

    source: str
    """The term in the source language."""
    target: str
    """The translation that is wanted."""
    case: bool = False
    """Whether upper and lower case count; else the translation is written as in the glossary, but
    for a capital at the beginning of a sentence."""
    part: bool = False
    """Whether the term may be a part of a longer word, in the source and in the translation."""

    def pattern(self, text: str) -> str:
        """Return a regular expression for one of the two sides, any white space being one space."""
        escaped = r"\s+".join(map(re.escape, text.split()))
        return escaped if self.part else rf"(?<!\w){escaped}(?!\w)"


class Found(NamedTuple):
    """A term in a source."""

    begin: int
    """The place of its first character."""
    end: int
    """The place behind its last one."""
    term: Term


@dataclass(frozen=True)
class Glossary:
    """Terms with the translations that are wanted."""

    terms: tuple[Term, ...]
    """The terms, of which no two have the same source."""

    @cached_property
    def _patterns(self) -> list[tuple[re.Pattern[str], Mapping[str, Term], bool]]:
        """The terms for which case counts, and then the others, each kind as one pattern."""
        found: list[tuple[re.Pattern[str], Mapping[str, Term], bool]] = []
        for case in (True, False):
            own = {_key(one.source, case): one for one in self.terms if one.case == case}
            longest_first = sorted(own.values(), key=lambda one: -len(one.source))
            every = "|".join(one.pattern(one.source) for one in longest_first)
            if every:
                pattern = re.compile(every, re.NOFLAG if case else re.IGNORECASE)
                found.append((pattern, own, case))
        return found

    def found(self, line: str) -> list[Found]:
        """Return the terms of a source in order; of several at a place, the longest."""
        every = (
            Found(*match.span(), term)
            for pattern, own, case in self._patterns
            for match in pattern.finditer(line)
            if (term := own.get(_key(match[0], case))) is not None
        )
        taken: list[Found] = []
        for one in sorted(every, key=lambda one: (one.begin, -one.end)):
            if not taken or one.begin >= taken[-1].end:
                taken.append(one)
        return taken

    def marked(self, lines: Sequence[str]) -> list[str]:
        """Return lines with the translation of each term behind it, between `TERM_MARKS`."""
        return [_marked(line, self.found(line)) for line in lines]


def _marked(line: str, found: Sequence[Found]) -> str:
    """Return a line in which terms have their translations behind them."""
    first, between, last = TERM_MARKS
    parts, place = [], 0
    for begin, end, term in found:
        parts += [line[place:begin], first, line[begin:end], between, term.target, last]
        place = end
    return "".join([*parts, line[place:]])


def marks_terms(vocabulary: Vocabulary) -> bool:
    """Return whether a model of this vocabulary was trained on marked terms."""
    return vocabulary.protected_tokens.issuperset(TERM_MARKS)


def _key(text: str, case: bool) -> str:
    """Return what two texts have in common that a pattern of either one matches."""
    text = " ".join(text.split())
    if case:
        return text
    # As patterns do it, one character by one: ß is not ss.
    return "".join(min(one.casefold(), one.lower(), key=len) for one in text)


def read_glossary(path: Path) -> Glossary:
    """Read a glossary: a line for each term, with the source, the target, and perhaps options.

    Tabs separate the three. Options are `case` and `part` of `Term`. Blank lines, and those that
    begin with `#`, are left out.

    Raises:
      UserError: the file cannot be read, or a line has an empty side, an unknown option, or a
        source with another target than before.
    """
    terms: dict[tuple[str, bool], tuple[int, Term]] = {}
    for number, line in enumerate(read_lines(path), start=1):
        if line.strip() and not line.startswith("#"):
            term = _term(line, f"{path} line {number}")
            key = _key(term.source, term.case), term.case
            before, other = terms.setdefault(key, (number, term))
            if other.target != term.target:
                raise UserError(
                    f"{path} line {number} has {term.target!r} for {term.source!r}, and line "
                    f"{before} {other.target!r}; leave one of them"
                )
    return Glossary(tuple(term for _, term in terms.values()))


def _term(line: str, where: str) -> Term:
    """Return the term of a line of a glossary."""
    source, target, options, *more = [*line.split("\t"), "", ""][: max(3, 1 + line.count("\t"))]
    if more or not source.strip() or not target.strip():
        raise UserError(
            f"{where} is not a source term, a tab and a target term; give both, and behind another "
            f"tab options if you like ({', '.join(_OPTIONS)})"
        )
    asked = options.split()
    if unknown := [option for option in asked if option not in _OPTIONS]:
        raise UserError(f"{where} has the option {unknown[0]!r}; there are {', '.join(_OPTIONS)}")
    source, target = (" ".join(side.split()) for side in (source, target))
    return Term(source, target, "case" in asked, "part" in asked)


def learned_glossary(pairs: Iterable[Chunk], *, most: int = 200_000, least: int = 5) -> Glossary:
    """Return words of a parallel text, each with the word that most often translates it.

    Two words are a term if each is the other's best by the Dice coefficient, and that is 0.3 or
    more.

    Args:
      pairs: the text.
      most: the most pairs to read, from the first on.
      least: the least pairs with a word.
    """
    lines = chain.from_iterable(zip(*chunk, strict=True) for chunk in pairs)
    sides = [
        (frozenset(_WORD.findall(source.lower())), frozenset(_WORD.findall(target)))
        for source, target in islice(lines, most)
    ]
    counts = [Counter(chain.from_iterable(side)) for side in zip(*sides, strict=True)]
    together: dict[str, Counter[str]] = defaultdict(Counter)
    for words, others in sides:
        for word in words:
            if counts[0][word] >= least:
                together[word].update(others)
    best: dict[str, tuple[float, str]] = {}
    of_target: dict[str, tuple[float, str]] = {}
    for word, found in together.items():
        for other, number in found.items():
            dice = 2 * number / (counts[0][word] + counts[1][other])
            best[word] = max(best.get(word, (0.0, "")), (dice, other))
            of_target[other] = max(of_target.get(other, (0.0, "")), (dice, word))
    terms = sorted(
        Term(word, other)
        for word, (dice, other) in best.items()
        if dice >= 0.3 and of_target[other][1] == word
    )
    return Glossary(tuple(terms))


def marked_pairs(
    pairs: Iterable[Chunk], glossary: Glossary, share: float, seed: int
) -> Iterator[tuple[str, str]]:
    """Yield some pairs of a text once more, with marked terms in their sources.

    A pair can be marked if its target has the translation of a term of its source; only such terms
    are marked. Which pairs are, depends on the seed and the numbers of the pairs alone.

    Args:
      share: the share of the pairs that can be marked which are.
    """
    rng = np.random.Generator(np.random.Philox(key=[seed, _STREAM]))
    for sources, targets in pairs:
        drawn = rng.random(len(sources)) < share
        for source, target, is_drawn in zip(sources, targets, drawn.tolist(), strict=True):
            if is_drawn:
                there = [
                    one
                    for one in glossary.found(source)
                    if re.search(one.term.pattern(one.term.target), target)
                ]
                if there:
                    yield _marked(source, there), target
