"""The engine of a server: up to four searches that sentences of all requests join at any time.

One search gives the best translation of a sentence, as the command line does; one gives as many as
the beam holds; one is greedy, so that its tokens can be streamed as they are chosen; and one finds
translations that contain terms. So no setting of a request needs another program, and no request
waits for a compilation. The languages of a model of several are tokens of a sentence, so all pairs
share the searches and the parameters.
"""

import copy
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

from t2t_jax.config import DecodingConfig
from t2t_jax.data.terms import Term, marks_terms
from t2t_jax.decoding.alignments import PairAligner
from t2t_jax.decoding.glossary import (
    decoding_with_terms,
    is_spelt,
    wanted_term,
)
from t2t_jax.decoding.open_search import Limits, OpenSearch
from t2t_jax.decoding.translations import Hypothesis, is_blank
from t2t_jax.decoding.translator import Translator
from t2t_jax.decoding.wanted_terms import WantedTerm, num_tokens
from t2t_jax.markup.projection import Links
from t2t_jax.run.calibration import Calibration, confidence
from t2t_jax.serving.engine import Load, ModelLanguages, Wanted

_ROWS_OF_OTHERS = 4  # rows for rare requests: those for several translations, and for streams
_MOST_TERM_TOKENS = 64  # of all spellings of a sentence's terms


class Searches:
    """Open searches of one model.

    Attributes:
      most_best: the most translations of a sentence: the beam size.
      languages: the languages of a model of several, or None.
      marks_terms: whether the model was trained on marked terms.
    """

    def __init__(
        self,
        translator: Translator,
        decoding: DecodingConfig,
        limits: Limits,
        calibration: Calibration | None = None,
        *,
        has_terms: bool = False,
    ) -> None:
        """Start the searches of a model that translates; `limits` are those of the first one.

        Args:
          has_terms: whether there is a search for translations that contain terms.

        Raises:
          UserError: the model does not translate.
        """
        longest = min(limits.longest, decoding.max_source_length)
        limits = replace(limits, longest=longest)
        self._translator, self._calibration = translator, calibration
        self._decoding = replace(decoding, max_source_length=longest)
        self.marks_terms = marks_terms(translator.vocabulary)
        known = translator.vocabulary.marked_languages, translator.vocabulary.marked_targets
        self.languages = ModelLanguages(*known) if any(known) else None
        self.most_best = 1 if decoding.temperature > 0 else decoding.beam_size
        self._aligner = self._aligner_of(translator)
        few = replace(limits, rows=min(limits.rows, _ROWS_OF_OTHERS))
        of_kinds = {"best": (self._decoding, limits, 1)}
        if self.most_best > 1:
            of_kinds["several"] = self._decoding, few, self.most_best
            of_kinds["greedy"] = replace(self._decoding, beam_size=1), few, 1
        if has_terms:
            if translator.context is not None:
                translator.context.check_takes("glossary")
            asked = decoding_with_terms(self._decoding)
            of_kinds["terms"] = asked, replace(few, terms=_MOST_TERM_TOKENS), 1
        translator.check_lines([])  # refuses a model that does not translate
        self._searches = {
            kind: translator.open_search(decoding, limits, num_best=num_best)
            for kind, (decoding, limits, num_best) in of_kinds.items()
        }

    def _aligner_of(self, translator: Translator) -> PairAligner | None:
        shows, longest = translator.model.shows_attention, self._decoding.max_source_length
        return PairAligner(translator, longest) if shows else None

    def between(self, source: str, target: str) -> "Searches":
        """Return the searches for another pair of languages, which are the same; see `Engine`."""
        other = copy.copy(self)
        other._translator = self._translator.between(source, target)
        other._aligner = self._aligner_of(other._translator)
        if other._translator.vocabulary is not self._translator.vocabulary:
            other._calibration = None  # it says how good translations of one pair are
        return other

    def prepare(self, sentences: Sequence[str]) -> list[list[list[int]]]:
        """Encode each sentence as lists of ids; see `Engine`."""
        found: list[list[list[int]]] = [[] for _ in sentences]
        for part in self._translator.parts(list(sentences), self._decoding):
            if not is_blank(part.tokens):
                found[part.line].append(part.tokens)
        return found

    def submit(
        self,
        tokens: list[int],
        wanted: Wanted,
        *,
        timeout: float,
        listener: Callable[[str], None] | None = None,
    ) -> "Future[list[Hypothesis]]":
        """Submit a sentence for translation; see `Engine`."""
        search = self._search(wanted)
        prefix = self._translator.vocabulary.target_begin  # which is no part of the translation
        most = len(tokens) + self._decoding.max_extra_length
        limit = most if wanted.max_tokens is None else min(most, wanted.max_tokens + len(prefix))
        return search.submit(
            tokens,
            limit=limit,
            timeout=timeout,
            listener=listener and partial(self._tell, listener),
            client=wanted.client,
            request=wanted.request,
            prefix=prefix,
            terms=wanted.terms,
            read=self._translator.read,
        )

    def _tell(self, listener: Callable[[str], None], so_far: list[int]) -> None:
        listener(self._translator.vocabulary.decode([so_far])[0])

    def terms(self, terms: Sequence[Term]) -> tuple[WantedTerm, ...] | None:
        """Spell the terms that a translation has to contain; see `Engine`."""
        found = tuple(wanted_term(self._translator.vocabulary, one) for one in terms)
        fits = "terms" in self._searches and num_tokens(found) <= _MOST_TERM_TOKENS
        return found if fits else None

    def spells(self, text: str) -> bool:
        """Return whether the vocabulary can spell a translation; see `Engine`."""
        return is_spelt(self._translator.vocabulary, text)

    def align(self, sources: Sequence[str], targets: Sequence[str]) -> list[Links] | None:
        """Align the words of sentences and translations; see `Engine`."""
        return None if self._aligner is None else self._aligner.links(sources, targets)

    def confidence(self, hypothesis: Hypothesis) -> float:
        """Return the confidence of a translation; see `Engine`."""
        return confidence(hypothesis, self._calibration)

    def load(self) -> Load:
        """Return how busy the searches are; see `Engine`."""
        searches = self._searches.values()
        return Load(
            sum(search.num_waiting for search in searches),
            sum(search.num_under_way for search in searches),
            sum(search.num_rows for search in searches),
        )

    def warm_up(self) -> None:
        """Compile every program; see `Engine`."""
        for search in self._searches.values():
            search.warm_up()
        if self._aligner is not None:
            self._aligner.warm_up()

    def close(self) -> None:
        """Drain the searches; see `Engine`."""
        for search in self._searches.values():
            search.close()

    def _search(self, wanted: Wanted) -> OpenSearch:
        if wanted.terms:
            return self._searches["terms"]
        kind = "several" if wanted.num_best > 1 else "greedy" if wanted.greedy else "best"
        return self._searches.get(kind, self._searches["best"])
