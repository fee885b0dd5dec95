"""Translations that use the terms of a glossary.

A sentence is translated as ever. If a term of its source is not translated as the glossary says,
the model's own attention says where its translation stands (`decoding.alignments`): the sentence is
translated again, with what stands before that place and the wanted term as its prefix, so that the
model goes on from the term (prefix-constrained search: Wuebker et al. 2016, "Models and Inference
for Prefix-Constrained Machine Translation"). That is repeated from left to right until every term
is there. So a sentence that uses its terms costs nothing more, and no program is compiled for a
glossary.

A model that was trained on marked terms (`data.terms`) gets marked sources, and then misses few.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from t2t_jax.data.terms import Found, Glossary, Term, marks_terms
from t2t_jax.decoding.alignments import alignments
from t2t_jax.decoding.translator import Translator
from t2t_jax.errors import UserError
from t2t_jax.markup.projection import Links

_MOST_ROUNDS = 16
_OPENING = "([{<\"'¿¡«»‹›„“”‚‘’「『（《"


def is_spelt(translator: Translator, text: str) -> bool:
    """Return whether the vocabulary of a model can spell a text."""
    # A vocabulary of bytes, which spells everything, has the end of sentence in place of unk_id.
    return translator.vocabulary.unk_id not in translator.encode_targets([text])[0][:-1]


def check_spelling(glossary: Glossary, spells: Callable[[str], bool]) -> None:
    """Refuse terms that the vocabulary of a model cannot spell, as `spells` says.

    Raises:
      UserError: the target of a term has a character that the vocabulary does not have.
    """
    for term in glossary.terms:
        if not spells(term.target):
            raise UserError(
                f"the model's vocabulary cannot spell {term.target!r}, which is wanted for "
                f"{term.source!r}; leave the term out"
            )


class WithTerms(NamedTuple):
    """Translations that use the terms of a glossary."""

    lines: list[str]
    """The translations."""
    missing: list[tuple[int, Term]]
    """The terms that are not in them all the same, with the numbers of their lines from 0 on."""


def translate_with_terms(
    translator: Translator,
    lines: Iterable[str],
    glossary: Glossary,
    *,
    head: tuple[int, ...] | None = None,
    first_line: int = 1,
    **settings: Any,
) -> WithTerms:
    """Translate lines, each into one line that uses the terms of a glossary.

    A term is missing in the end where a line is split because it is too long, or where the model
    ends a translation within the prefix.

    Args:
      translator: the model, which is no ensemble.
      lines: sentences.
      glossary: the terms.
      head: the fields of the `AlignmentHead` that says where terms stand; see
        `decoding.alignments.alignments`.
      first_line: number of the first line, by which errors name them.
      settings: the others of `Translator.translate`.

    Raises:
      UserError: as `Translator.translate` does, or the vocabulary cannot spell a term.
    """
    check_spelling(glossary, partial(is_spelt, translator))
    sources = list(lines)
    given = glossary.marked(sources) if marks_terms(translator.vocabulary) else sources
    found = translator.translate(given, first_line=first_line, **settings)
    use = TermUse(sources, found, glossary, partial(is_spelt, translator))
    while use.waiting:
        aligned = alignments(translator, *use.texts, head=head)
        head = aligned.head
        prefixes = use.prefixes(aligned.links)
        how = settings | {"before": None}  # the lines no longer follow each other
        again = [given[number] for number in use.waiting]
        use.take(translator.translate(again, prefixes=prefixes, **how))
    return use.ended()


class TermUse:
    """Sentences with the terms that their translations have to use, as far as they do."""

    def __init__(
        self,
        sources: Sequence[str],
        found: Sequence[str],
        glossary: Glossary,
        spells: Callable[[str], bool],
    ) -> None:
        """Begin with translations of sentences.

        Args:
          spells: says whether the model's vocabulary can spell a text.
        """
        self._found = list(found)
        self._lines = {
            n: _Line(source, wanted, found[n], spells)
            for n, source in enumerate(sources)
            if (wanted := glossary.found(source))
        }
        self._rounds = 0
        self.waiting: list[int] = []
        """The numbers of the sentences that are to be translated again, from 0 on."""
        self._wait()

    def _wait(self) -> None:
        more = self._rounds < _MOST_ROUNDS
        self.waiting = [n for n, line in self._lines.items() if more and line.is_waiting]

    @property
    def texts(self) -> tuple[list[str], list[str]]:
        """Return the waiting sentences, and their translations so far."""
        lines = [self._lines[n] for n in self.waiting]
        return [line.source for line in lines], [line.target for line in lines]

    def prefixes(self, links: Sequence[Links]) -> list[str]:
        """Return the prefixes with which the translations of the waiting sentences have to begin.

        Args:
          links: links between the words of these sentences and of their translations so far.
        """
        return [self._lines[n].prefix(own) for n, own in zip(self.waiting, links, strict=True)]

    def take(self, targets: Sequence[str]) -> None:
        """Take the translations of the waiting sentences that begin with these prefixes."""
        for n, target in zip(self.waiting, targets, strict=True):
            self._lines[n].take(target)
        self._rounds += 1
        self._wait()

    def ended(self) -> WithTerms:
        """Return the translations of all sentences."""
        for n, line in self._lines.items():
            self._found[n] = line.target
        missing = [(n, one.term) for n, line in self._lines.items() for one in line.missing]
        return WithTerms(self._found, missing)


class _Line:
    """A sentence with the terms that its translation has to use."""

    def __init__(
        self, source: str, wanted: Sequence[Found], target: str, spells: Callable[[str], bool]
    ) -> None:
        self.source, self._wanted, self.target, self._spells = source, wanted, target, spells
        self._prefix, self._is_whole, self._given_up = "", False, False

    @property
    def missing(self) -> list[Found]:
        """Return the terms that the translation does not use."""
        uses = Counter[str]()
        found = []
        for one in self._wanted:
            uses[one.term.target] += 1
            flags = re.NOFLAG if one.term.case else re.IGNORECASE
            there = re.findall(one.term.pattern(one.term.target), self.target, flags)
            if len(there) < uses[one.term.target]:
                found.append(one)
        return found

    @property
    def is_waiting(self) -> bool:
        """Return whether the sentence is to be translated again."""
        return not self._given_up and bool(self.missing)

    def prefix(self, links: Links) -> str:
        """Return the prefix with which the translation has to begin: up to one more term."""
        words, fixed = self.target.split(), len(self._prefix.split())
        linked: dict[int, list[int]] = {}
        for of_source, of_target in links:
            linked.setdefault(of_source, []).append(of_target)
        places = []
        for one in self.missing:
            before = self.source[: one.begin]
            first = len(before.split()) - (before[-1:].strip() != "")
            last = len(self.source[: one.end].split())
            own = [n for word in range(first, last) for n in linked.get(word, ())]
            place = min(own, default=first * len(words) // max(1, len(self.source.split())))
            places.append((max(place, fixed), one.begin, one.term))
        place, _, term = min(places)
        begins = words[place] if place < len(words) else ""
        text = term.target
        capital = text[:1].upper() + text[1:]
        if not term.case and begins[:1].isupper() and not place and self._spells(capital):
            text = capital
        self._is_whole = not term.part
        self._prefix = " ".join([*words[:place], _opening_marks(begins) + text])
        return self._prefix

    def take(self, target: str) -> None:
        """Take the translation with that prefix; one that goes on within the term is cut there."""
        target = " ".join(target.split())
        self._given_up = not target.startswith(self._prefix)
        if self._is_whole and not self._given_up:
            target = self._prefix + re.sub(r"^\w+", "", target[len(self._prefix) :])
        self.target = target


def _opening_marks(word: str) -> str:
    """Return the opening brackets and quotation marks at the beginning of a word."""
    return word[: len(word) - len(word.lstrip(_OPENING))]
