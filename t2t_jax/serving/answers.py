"""The answers to requests, of LibreTranslate's API and of the fuller one of this project.

Each method that `routes` names takes the fields of a request, and returns the answer, which is
sent as JSON, or raises a `RefusedError`.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any

from t2t_jax.data.cleaning.limits import base_language
from t2t_jax.data.terms import Glossary
from t2t_jax.decoding.glossary import check_spelling
from t2t_jax.decoding.translations import Hypothesis
from t2t_jax.errors import UserError
from t2t_jax.markup.document import Document, html_document
from t2t_jax.markup.files import FileDocument, file_document
from t2t_jax.markup.projection import Links
from t2t_jax.markup.sentences import sentence_splitter, text_document
from t2t_jax.serving.bodies import SentFile
from t2t_jax.serving.downloads import Downloads
from t2t_jax.serving.engine import Wanted
from t2t_jax.serving.fields import Asked
from t2t_jax.serving.languages import Detected, Languages, is_auto
from t2t_jax.serving.metrics import ServerMetrics
from t2t_jax.serving.service import Service, Translated, prepared
from t2t_jax.serving.settings import Bounds, RefusedError, Split

_DETECTED = 1000
"""The most characters of a file by which its language is detected."""
_UNPACKED = 16
"""How many times as large as a body a file may be, unpacked."""


@dataclass(frozen=True)
class Answers:
    """The functions that answer requests."""

    languages: Languages
    """The language pairs."""
    bounds: Bounds
    """The bounds on requests."""
    metrics: ServerMetrics
    """The counters."""
    split: Split = "sentences"
    """The unit of translation for requests that do not name one."""
    downloads: Downloads = field(default_factory=Downloads)
    """The translated files that wait to be fetched."""

    async def translate(self, asked: Asked) -> dict[str, Any]:
        """Answer `POST /translate` of LibreTranslate."""
        (texts, is_list), (service, detected) = asked["q"], await self._service(asked)
        documents = await self._documents(asked, service, self.split)
        more = asked["alternatives"]
        num_best = min(more + 1, service.engine.most_best)
        wanted = Wanted(num_best, client=asked.client)
        glossary = self._glossary(asked, service, num_best)
        translated = await self._translated(service, documents, wanted, None, glossary)
        found = await translated.texts(documents, num_best)
        one: Any = list if is_list else itemgetter(0)
        answer = {"translatedText": one([best[0].text for best in found])}
        if more:
            answer["alternatives"] = one([[other.text for other in best[1:]] for best in found])
        if detected is not None:
            answer["detectedLanguage"] = one([_described(detected) for _ in texts])
        return answer

    async def translate_file(self, asked: Asked) -> dict[str, Any]:
        """Answer `POST /translate_file` of LibreTranslate."""
        sent, source, target = asked["file"], asked["source"], asked["target"]
        document = await self._file(sent, source)
        beginning = " ".join(_sentences_of(document))[:_DETECTED]
        service, _ = await asyncio.to_thread(self.languages.service, source, target, [beginning])
        if service.source != source:
            document = await self._file(sent, service.source)
        length, most = sum(map(len, _sentences_of(document))), self.bounds.max_characters
        if length > most:
            message = f"the file has {length:,} characters, more than {most:,}; send less at once"
            raise RefusedError(400, message)
        wanted = Wanted(client=asked.client)
        translated = await self._translated(service, document.documents, wanted)
        found = await translated.texts(document.documents, 1)
        texts = [best[0].text for best in found]
        content = await asyncio.to_thread(document.filled, texts)
        name = self.downloads.put(content, Path(sent.name).suffix)
        return {"translatedFileUrl": f"{asked.base}download_file/{name}"}

    def _glossary(self, asked: Asked, service: Service, num_best: int) -> Glossary | None:
        """Return the terms of a request, which is for one translation that is no stream."""
        glossary: Glossary | None = asked["glossary"]
        if glossary is None or not glossary.terms:
            return None
        if num_best > 1:
            raise RefusedError(400, "glossary is for one translation of a text, and for no stream")
        if service.engine.terms([]) is None:
            raise RefusedError(400, "this server has no glossaries; start it with --glossaries yes")
        try:
            check_spelling(glossary, service.engine.spells)
        except UserError as error:
            raise RefusedError(400, str(error)) from error
        return glossary

    async def _file(self, sent: SentFile, language: str) -> FileDocument:
        """Return a file as documents, read in another thread."""
        most = _UNPACKED * self.bounds.max_body_bytes
        how = sent.content, Path(sent.name).suffix, base_language(language), most
        try:
            return await asyncio.to_thread(file_document, *how)
        except UserError as error:
            raise RefusedError(400, str(error)) from error

    async def detect(self, asked: Asked) -> list[dict[str, Any]]:
        """Answer `POST /detect` of LibreTranslate."""
        found = await asyncio.to_thread(self.languages.detect, asked["q"][0])
        return [_described(one) for one in found]

    async def translations(self, asked: Asked) -> dict[str, Any] | AsyncGenerator[str, None]:
        """Answer `POST /v1/translations` with n-best, scores and alignments, or with a stream."""
        is_stream, (service, _) = asked["stream"], await self._service(asked)
        num_best, beam_size, most = asked["num_best"], asked["beam_size"], service.engine.most_best
        if num_best > beam_size:
            raise RefusedError(400, f"num_best={num_best} is more than beam_size={beam_size}")
        if is_stream and num_best > 1:
            raise RefusedError(400, "a stream has one translation of a text; leave num_best out")
        is_greedy = is_stream or beam_size == 1 < most
        wanted = Wanted(num_best, is_greedy, asked["max_tokens"], asked.client)
        documents = await self._documents(asked, service, asked["split"])
        job = _Job(service, documents, wanted, asked["alignments"])
        glossary = self._glossary(asked, service, 2 if is_stream else num_best)
        if is_stream:
            return self._stream(job)
        translated = await self._translated(service, documents, wanted, None, glossary)
        return await self._described(job, translated)

    async def _stream(self, job: "_Job") -> AsyncGenerator[str, None]:
        """Yield the events of a stream: `partial` for each sentence as it grows, then `done`."""
        loop, changed = asyncio.get_running_loop(), asyncio.Event()
        news: dict[int, str] = {}  # the last news of each sentence: a slow client misses some
        places = [
            (text, sentence)
            for text, document in enumerate(job.documents)
            for sentence in range(len(document.sentences))
        ]

        def hear(number: int, so_far: str) -> None:
            news[number] = so_far
            changed.set()

        def tell(*told: Any) -> None:
            loop.call_soon_threadsafe(hear, *told)

        translated = self._translated(job.service, job.documents, job.wanted, tell)
        work = asyncio.create_task(translated)
        work.add_done_callback(lambda _: changed.set())
        try:
            while news or not work.done():
                while news:
                    number = next(iter(news))
                    text, sentence = places[number]
                    so_far = {"text": text, "sentence": sentence, "translation": news.pop(number)}
                    yield event("partial", so_far)
                changed.clear()
                if not work.done():
                    await changed.wait()
            yield event("done", await self._described(job, await work))
        finally:
            work.cancel()

    async def _service(self, asked: Asked) -> tuple[Service, Detected | None]:
        """Return the service for a request and the detected language; bound the fields by it."""
        (texts, _), pair = asked["q"], (asked["source"], asked["target"])
        if is_auto(pair[0]):
            found = await asyncio.to_thread(self.languages.service, *pair, texts)
        else:
            found = self.languages.service(*pair, texts)
        asked.bound(found[0].engine.most_best)
        return found

    async def _documents(self, asked: Asked, service: Service, split: Split) -> list[Document]:
        (texts, _), is_html = asked["q"], asked["format"] == "html"
        language = base_language(service.source)

        def document(text: str) -> Document:
            if is_html:
                return html_document(text, sentence_splitter(language))
            return text_document(text, language, by_lines=split == "lines")

        return await prepared(lambda texts: [document(text) for text in texts], texts)

    async def _translated(
        self, service: Service, documents: Sequence[Document], wanted: Wanted, *more: Any
    ) -> Translated:
        """Translate documents, and count their sentences and tokens; see `Service.translate`."""
        found = await service.translate(documents, wanted, *more)
        self.metrics.lines.labels(service.name).inc(sum(map(len, found.sentences)))
        self.metrics.tokens.labels(service.name, "in").inc(found.source_tokens)
        self.metrics.tokens.labels(service.name, "out").inc(found.target_tokens)
        return found

    async def _described(self, job: "_Job", translated: Translated) -> dict[str, Any]:
        """Return the translations of all texts, with their sentences, as the answer's JSON."""
        num_best, engine = job.wanted.num_best, job.service.engine
        whole = await translated.texts(job.documents, num_best)
        links = iter(await self._links(job, translated))

        def hypothesis(one: Hypothesis) -> dict[str, Any]:
            return {
                "text": one.text,
                "score": one.score,
                "log_prob": one.log_prob,
                "confidence": engine.confidence(one),
            }

        def sentence(source: str, found: Sequence[Hypothesis]) -> dict[str, Any]:
            said = {"source": source, "hypotheses": [hypothesis(one) for one in found]}
            link = next(links)
            return said if link is None else said | {"alignment": link}

        return {
            "source": job.service.source,
            "target": job.service.target,
            "translations": [
                {
                    "hypotheses": [hypothesis(one) for one in of_text],
                    "sentences": [
                        sentence(*each)
                        for each in zip(document.sentences, of_sentences, strict=True)
                    ],
                }
                for of_text, document, of_sentences in zip(
                    whole, job.documents, translated.sentences, strict=True
                )
            ],
        }

    async def _links(self, job: "_Job", translated: Translated) -> Sequence[Links | None]:
        """Return the links between the words of each sentence and its best translation, or None."""
        sources = [one for document in job.documents for one in document.sentences]
        best = [found[0].text for one in translated.sentences for found in one]
        align = job.service.engine.align
        links = await asyncio.to_thread(align, sources, best) if job.alignments else None
        return [None] * len(best) if links is None else links


@dataclass(frozen=True)
class _Job:
    """The documents of a request to `/v1/translations`, with its service and settings."""

    service: Service
    documents: list[Document]
    wanted: Wanted
    alignments: bool


def _sentences_of(document: FileDocument) -> Iterator[str]:
    return chain.from_iterable(one.sentences for one in document.documents)


def _described(detected: Detected) -> dict[str, Any]:
    return {"language": detected.language, "confidence": round(100 * detected.confidence, 1)}


def event(name: str, data: dict[str, Any]) -> str:
    """Write a server-sent event with a name, and with data as JSON."""
    return f"event: {name}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"
