"""Translations that use the terms of a glossary.

A sentence is translated as ever. If terms of its source are not translated as the glossary says,
it is translated again by a search for translations that contain them (`decoding.dynamic_beams`). So
a sentence that uses its terms costs nothing more, and no program is compiled for a glossary.

A model that was trained on marked terms (`data.terms`) gets marked sources, and then misses few.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

from t2t_jax.config import DecodingConfig
from t2t_jax.data.terms import Glossary, Term, marks_terms
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.decoding.forbidden import spelt_by
from t2t_jax.decoding.row_group import Sentence
from t2t_jax.decoding.translator import Translator
from t2t_jax.decoding.wanted_terms import Spelling, WantedTerm
from t2t_jax.errors import UserError
from t2t_jax.parallel.device_memory import within_memory

_LEAST_BEAM = 4
"""The fewest hypotheses of a sentence that has to contain terms."""
_WAVES = 8
"""How often the rows of a search with terms are refilled, if sentences are few."""


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


def is_spelt(vocabulary: Vocabulary, text: str) -> bool:
    """Return whether a vocabulary can spell a text."""
    # A vocabulary of bytes, which spells everything, has the end of sentence in place of unk_id.
    return vocabulary.unk_id not in vocabulary.encode_targets([text])[0][:-1]


@lru_cache(maxsize=4096)
def wanted_term(vocabulary: Vocabulary, term: Term) -> WantedTerm:
    """Return the spellings of a term's target: behind a space, behind a bracket, and at first.

    The last of them has a capital, unless upper and lower case count.
    """
    capital = term.target[:1].upper() + term.target[1:]
    asked = [("", term.target, False), ("a ", term.target, False), ("(", term.target, False)]
    if not term.case and is_spelt(vocabulary, capital):
        asked.append(("", capital, True))
    found: dict[tuple[int, ...], Spelling] = {}
    texts = spelt_by(vocabulary)
    for before, text, at_beginning in asked:
        tokens = _spelt_after(vocabulary, before, text)
        if tokens and tokens not in found:
            ends, begins = texts[tokens[-1]].endswith(b" "), texts[tokens[0]].startswith(b" ")
            found[tokens] = Spelling(
                tokens, not (term.part or ends), not (term.part or begins), at_beginning
            )
    return tuple(found.values())


def _spelt_after(vocabulary: Vocabulary, before: str, text: str) -> tuple[int, ...]:
    """Return the ids that spell a text behind another one; none if no id begins with the text."""
    texts = spelt_by(vocabulary)
    [tokens] = vocabulary.encode_targets([before + text])
    spelt, kept = "", [token for token in tokens[:-1] if texts[token]]
    while kept and spelt.strip() != before.strip():
        spelt += texts[kept.pop(0)].decode(errors="replace")
    return tuple(kept)


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
    first_line: int = 1,
    seed: int = 0,
    before: Sequence[str] | None = (),
    **overrides: Any,
) -> WithTerms:
    """Translate lines, each into one line that uses the terms of a glossary.

    A term is missing in the end where a line is split because it is too long, or where no room is
    left for it.

    Args:
      translator: the model.
      lines: sentences.
      glossary: the terms.
      first_line: number of the first line, by which errors name them.
      seed: seed of sampling (`temperature` above 0), by which terms are not found.
      before: the lines before the first one; see `Translator.translate`.
      overrides: settings of the search, as `Translator.configured` takes them.

    Raises:
      UserError: as `Translator.translate` does, or the vocabulary cannot spell a term, or the model
        translates contexts as well.
    """
    vocabulary = translator.vocabulary
    if translator.context is not None:
        translator.context.check_takes("glossary")
    check_spelling(glossary, partial(is_spelt, vocabulary))
    sources = list(lines)
    given = glossary.marked(sources) if marks_terms(vocabulary) else sources
    how: Any = {"first_line": first_line, "seed": seed, "before": before}
    found = translator.translate(given, **how, **overrides)
    use = TermUse(sources, found, glossary)
    decoding = translator.configured(**overrides).decoding
    parts = translator.parts(given, decoding, first_line, before=before) if use.waiting else []
    lines_of = Counter(part.line for part in parts)
    whole = {part.line: part.tokens for part in parts if lines_of[part.line] == 1}
    while numbers := [n for n in use.waiting if n in whole]:
        wanted = [[wanted_term(vocabulary, one) for one in use.terms(n)] for n in numbers]
        again = _searched(translator, decoding, [whole[n] for n in numbers], wanted)
        use.take(dict(zip(numbers, again, strict=True)))
    return use.ended()


def _searched(
    translator: Translator,
    decoding: DecodingConfig,
    sources: Sequence[list[int]],
    wanted: Sequence[Sequence[WantedTerm]],
) -> list[str]:
    """Return translations of some sources, each of which contains the terms of its source."""
    extra = decoding.max_extra_length
    sentences = [
        Sentence(source, len(source) + extra, 0, terms=terms)
        for source, terms in zip(sources, wanted, strict=True)
    ]
    # These sentences are few, and rows are refilled only where there are fewer of them.
    positions = sum(len(source) + extra for source in sources) // _WAVES
    batch = min(decoding.tokens_per_batch, max(1, positions))
    search = replace(decoding_with_terms(decoding), tokens_per_batch=batch)
    found = [""] * len(sentences)
    with within_memory(decoding=True):
        for index, best in translator.search(sentences, search, 1, 0):
            found[index] = translator.read(best)[0].text
    return found


def decoding_with_terms(decoding: DecodingConfig) -> DecodingConfig:
    """Return the settings of a search for translations that contain terms."""
    return replace(decoding, beam_size=max(decoding.beam_size, _LEAST_BEAM), temperature=0.0)


class TermUse:
    """Sentences with the terms that their translations have to use, as far as they do."""

    def __init__(self, sources: Sequence[str], found: Sequence[str], glossary: Glossary) -> None:
        """Begin with translations of sentences."""
        self._found = list(found)
        self._wanted = [[one.term for one in glossary.found(source)] for source in sources]
        self._asked: dict[int, frozenset[str]] = {}
        self.waiting: list[int] = []
        """The numbers of the sentences that are to be translated again, from 0 on."""
        self._wait({n: self._missing(n) for n in range(len(self._found))})

    def _wait(self, missing: Mapping[int, Sequence[Term]]) -> None:
        """Have those sentences wait that miss a term which was not asked for yet."""
        self.waiting = []
        for n, terms in missing.items():
            asked = self._asked.get(n, frozenset())
            self._asked[n] = asked.union(one.target for one in terms)
            if self._asked[n] != asked:
                self.waiting.append(n)

    def _missing(self, number: int) -> list[Term]:
        return missing_terms(self._wanted[number], self._found[number])

    def terms(self, number: int) -> list[Term]:
        """Return the terms that the next translation of a waiting sentence has to contain.

        They are those that any translation so far has missed, each as often as it is wanted.
        """
        return [one for one in self._wanted[number] if one.target in self._asked[number]]

    def take(self, targets: Mapping[int, str]) -> list[int]:
        """Take translations of waiting sentences by their numbers; return which of them are used.

        A translation that misses no fewer terms than the one before is not used, but the terms that
        it misses are asked for as well. A sentence without a translation waits no more.
        """
        missing = {n: missing_terms(self._wanted[n], target) for n, target in targets.items()}
        used = [n for n, terms in missing.items() if len(terms) < len(self._missing(n))]
        for n in used:
            self._found[n] = targets[n]
        self._wait(missing)
        return used

    def ended(self) -> WithTerms:
        """Return the translations of all sentences."""
        every = range(len(self._found))
        return WithTerms(self._found, [(n, term) for n in every for term in self._missing(n)])


def missing_terms(wanted: Sequence[Term], target: str) -> list[Term]:
    """Return the terms that a translation does not have, or has less often than is wanted."""
    uses = Counter[str]()
    found = []
    for term in wanted:
        uses[term.target] += 1
        flags = re.NOFLAG if term.case else re.IGNORECASE
        if len(re.findall(term.pattern(term.target), target, flags)) < uses[term.target]:
            found.append(term)
    return found
