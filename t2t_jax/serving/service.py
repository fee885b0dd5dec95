"""Translation of documents: their sentences go to an engine together, and come back in order."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TypeVar

from t2t_jax.data.terms import Glossary
from t2t_jax.decoding.glossary import TermUse
from t2t_jax.decoding.open_search import ClosedError
from t2t_jax.decoding.translations import Hypothesis, best_choices, joined_hypotheses
from t2t_jax.decoding.wanted_terms import WantedTerm
from t2t_jax.errors import UserError
from t2t_jax.markup.document import Document
from t2t_jax.markup.projection import Links, element_texts
from t2t_jax.markup.tagged import Tagged
from t2t_jax.serving.engine import Engine, Load, ModelLanguages, Wanted
from t2t_jax.serving.settings import Bounds, RefusedError

_FEW, _FEW_CHARACTERS = 16, 2000
"""The most texts and characters that the event loop prepares: another thread would cost more."""
_T = TypeVar("_T")
_BLANK = [Hypothesis("", 0.0, 0.0, ())]

Listener = Callable[[int, str], None]
"""A function that is called with the number of a sentence, and its translation so far."""


async def prepared(prepare: Callable[[Sequence[str]], _T], texts: Sequence[str]) -> _T:
    """Return what a function makes of texts; where these are long, call it in another thread."""
    if len(texts) <= _FEW and sum(map(len, texts)) <= _FEW_CHARACTERS:
        return prepare(texts)
    return await asyncio.to_thread(prepare, texts)


@dataclass
class Translated:
    """The translations of the sentences of documents."""

    sentences: list[list[list[Hypothesis]]]
    """For each document, for each of its sentences, the hypotheses, best first."""
    source_tokens: int
    """Number of subwords of all sentences."""
    links: Mapping[tuple[str, str], Links]
    """The links between the words of each sentence with markup and of its translations."""
    known: Mapping[str, str]
    """Translations of the texts of elements by themselves."""

    @property
    def target_tokens(self) -> int:
        """Return the number of subwords of the best hypotheses of all sentences."""
        return sum(len(best[0].tokens) for best in chain.from_iterable(self.sentences))

    async def texts(self, documents: Sequence[Document], num_best: int) -> list[list[Hypothesis]]:
        """Return each document's best translations, best first; scores are sums over sentences."""

        def filled(_: Sequence[str]) -> list[list[Hypothesis]]:
            return [
                [self._whole(document, chosen) for chosen in best_choices(of_document, num_best)]
                for document, of_document in zip(documents, self.sentences, strict=True)
            ]

        return await prepared(filled, [one for each in documents for one in each.sentences])

    def _whole(self, document: Document, chosen: Sequence[Hypothesis]) -> Hypothesis:
        texts = [one.text for one in chosen]
        links = [self.links.get(pair, []) for pair in zip(document.sentences, texts, strict=True)]
        return Hypothesis(
            document.filled(texts, links, self.known),
            sum(one.score for one in chosen),
            sum(one.log_prob for one in chosen),
            tuple(chain.from_iterable(one.tokens for one in chosen)),
        )


@dataclass(eq=False)
class ServedModel:
    """A model that is served; its engine can be replaced."""

    source: str
    """The code of the source language; of a model of several languages, that of its run."""
    target: str
    """The code of the target language, in the same way."""
    engine: Engine
    """The engine that translates sentences of these languages."""
    bounds: Bounds
    """The bounds on one request."""

    @property
    def name(self) -> str:
        """Return the name of the language pair, such as `en-de`."""
        return f"{self.source}-{self.target}"

    @property
    def languages(self) -> ModelLanguages:
        """Return the languages of the model."""
        return self.engine.languages or ModelLanguages([self.source], [self.target])

    def load(self) -> Load:
        """Return how busy the present engine is."""
        return self.engine.load()


class Service:
    """A service that translates documents of one language pair for one request.

    Attributes:
      source: the code of the source language.
      target: the code of the target language.
      bounds: the bounds on one request.
    """

    def __init__(self, model: ServedModel, source: str, target: str) -> None:
        """Take two languages that the model has."""
        self.source, self.target, self.bounds = source, target, model.bounds
        self._model = model
        self._engines: dict[Engine, Engine] = {}

    @property
    def name(self) -> str:
        """Return the name of the language pair, such as `en-de`."""
        return f"{self.source}-{self.target}"

    @property
    def engine(self) -> Engine:
        """Return the present engine of the model, for the languages of the request."""
        present = self._model.engine
        if present.languages is None:
            return present
        if present not in self._engines:
            self._engines[present] = present.between(self.source, self.target)
        return self._engines[present]

    async def translate(
        self,
        documents: Sequence[Document],
        wanted: Wanted,
        listener: Listener | None = None,
        glossary: Glossary | None = None,
    ) -> Translated:
        """Translate the sentences of documents; a cancelled call frees its rows.

        A listener is called with the text so far of each sentence in a greedy search; sentences are
        counted over all documents.

        Raises:
          RefusedError: there are too many sentences, or one is too long.
          QueueFullError: too many sentences wait.
          ClosedError: the server is stopping.
          TimeoutError: the time for a request is over.
        """
        tagged = [one for document in documents for one in document.tagged]
        sentences = [one.text for one in tagged]
        if len(sentences) > self.bounds.max_lines:
            raise RefusedError(
                400,
                f"there are {len(sentences):,} sentences, more than {self.bounds.max_lines:,}; "
                "send less at once",
            )
        wanted = wanted._replace(request=object())
        given = sentences
        if glossary is not None and self.engine.marks_terms:
            given = glossary.marked(sentences)
        parts, translated = await self._translated(given, wanted, listener)
        if glossary is not None:
            use = TermUse(sentences, [one[0].text for one in translated], glossary)
            translated = await self._with_terms(use, given, parts, translated, wanted)
        both = list(zip(tagged, translated, strict=True))
        links, known = await self._links(both), await self._known(both, wanted)
        each = iter(translated)
        of_documents = [[next(each) for _ in one.tagged] for one in documents]
        return Translated(of_documents, sum(map(len, chain(*parts))), links, known)

    async def _with_terms(
        self,
        use: TermUse,
        sentences: Sequence[str],
        parts: Sequence[Sequence[list[int]]],
        found: list[list[Hypothesis]],
        wanted: Wanted,
    ) -> list[list[Hypothesis]]:
        """Return translations that use the terms of a glossary; see `decoding.glossary`."""
        engine, found = self.engine, [*found]

        async def again(number: int, terms: tuple[WantedTerm, ...]) -> tuple[int, Hypothesis]:
            asked = wanted._replace(terms=terms)
            _, [best] = await self._translated([sentences[number]], asked)
            return number, best[0]

        async with asyncio.timeout(self.bounds.timeout):
            # A sentence of several parts, or of very many terms, stays as it is.
            while asked := {
                n: terms
                for n in use.waiting
                if len(parts[n]) == 1 and (terms := engine.terms(use.terms(n))) is not None
            }:
                better = dict(await asyncio.gather(*(again(*one) for one in asked.items())))
                for n in use.take({n: one.text for n, one in better.items()}):
                    found[n] = [better[n]]
        return found

    async def _links(
        self, translated: Sequence[tuple[Tagged, Sequence[Hypothesis]]]
    ) -> dict[tuple[str, str], Links]:
        """Return the links between the words of sentences with markup and of their translations."""
        pairs = {
            (sentence.text, one.text)
            for sentence, hypotheses in translated
            for one in hypotheses
            if sentence.elements
        }
        if not pairs:
            return {}
        links = await asyncio.to_thread(self.engine.align, *zip(*sorted(pairs), strict=True))
        return dict(zip(sorted(pairs), links, strict=True)) if links is not None else {}

    async def _known(
        self, translated: Sequence[tuple[Tagged, Sequence[Hypothesis]]], wanted: Wanted
    ) -> dict[str, str]:
        """Return translations of the texts of elements by themselves."""
        texts = dict.fromkeys(
            text
            for sentence, hypotheses in translated
            for text in element_texts(sentence, hypotheses[0].text)
        )
        if not texts:
            return {}
        how = Wanted(client=wanted.client, request=wanted.request)
        _, best = await self._translated([*texts], how)
        return {text: one[0].text for text, one in zip(texts, best, strict=True)}

    async def _translated(
        self, sentences: Sequence[str], wanted: Wanted, listener: Listener | None = None
    ) -> tuple[list[list[list[int]]], list[list[Hypothesis]]]:
        """Return the tokens of the parts of sentences, and the hypotheses of each sentence.

        A call that is cancelled gives its sentences up.
        """
        parts, futures = await self._submitted(sentences, wanted, listener)
        try:
            async with asyncio.timeout(self.bounds.timeout):
                found = await asyncio.gather(*map(asyncio.wrap_future, chain(*futures)))
        finally:
            for future in chain(*futures):
                future.cancel()
        ended = iter(found)
        return parts, [
            joined_hypotheses([next(ended) for _ in part], wanted.num_best) if part else _BLANK
            for part in parts
        ]

    async def _submitted(
        self, sentences: Sequence[str], wanted: Wanted, listener: Listener | None
    ) -> tuple[list[list[list[int]]], list[list["Future[list[Hypothesis]]"]]]:
        """Submit sentences; return the tokens of their parts, and the futures of translations."""
        while True:
            engine = self.engine
            try:
                parts = await prepared(engine.prepare, sentences)
            except UserError as error:
                raise RefusedError(400, str(error)) from error
            try:
                # Within one turn of the event loop, so that no other engine comes in between.
                return parts, self._submit(engine, parts, wanted, listener)
            except ClosedError:
                if engine is self.engine:
                    raise

    def _submit(
        self,
        engine: Engine,
        parts: Sequence[Sequence[list[int]]],
        wanted: Wanted,
        listener: Listener | None,
    ) -> list[list["Future[list[Hypothesis]]"]]:
        """Submit the parts of all sentences, or none of them."""
        futures: list[list[Future[list[Hypothesis]]]] = []
        try:
            for number, of_sentence in enumerate(parts):
                futures.append([])
                so_far = [""] * len(of_sentence)
                for part, tokens in enumerate(of_sentence):
                    told = listener and partial(_tell, listener, number, so_far, part)
                    timeout = self.bounds.timeout
                    asked = engine.submit(tokens, wanted, timeout=timeout, listener=told)
                    futures[-1].append(asked)
        except BaseException:
            for future in chain(*futures):
                future.cancel()
            raise
        return futures


def _tell(listener: Listener, number: int, so_far: list[str], part: int, text: str) -> None:
    """Tell a listener the text so far of a sentence that may be translated in parts."""
    so_far[part] = text
    listener(number, " ".join(filter(None, so_far)))
