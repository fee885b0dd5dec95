"""What a client asks for and gets: LibreTranslate's API, and the fuller one of this project.

Each function reads the fields of a request, and gives what is sent back as JSON.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any

from t2t_jax.decoding.alignments import Links
from t2t_jax.decoding.translator import Hypothesis
from t2t_jax.serving.bodies import (
    Fields,
    check_known,
    choice_of,
    known_fields,
    number_of,
    text_of,
    texts_of,
    truth_of,
)
from t2t_jax.serving.documents import Document, html_document, text_document
from t2t_jax.serving.engine import Wanted
from t2t_jax.serving.languages import Detected, Languages, is_auto
from t2t_jax.serving.metrics import Metrics
from t2t_jax.serving.service import Service, Translated, prepared
from t2t_jax.serving.settings import Bounds, RefusedError, Split

_SPLITS = "sentences", "lines"


@dataclass(frozen=True)
class Answers:
    """Answers requests.

    Attributes:
      languages: the language pairs.
      bounds: what is allowed.
      metrics: what is counted.
      split: what is translated as one, unless a request says.
    """

    languages: Languages
    bounds: Bounds
    metrics: Metrics
    split: Split = "sentences"

    async def translate(self, fields: Fields, client: str) -> dict[str, Any]:
        """Answer `POST /translate` of LibreTranslate.

        Args:
          fields: the fields of the request.
          client: what its client is known by.

        Raises:
          RefusedError: it cannot be answered.
        """
        fields = known_fields(fields, ("q", "source", "target", "format", "alternatives"))
        texts, is_list = texts_of(fields, "q", self.bounds)
        service, detected = await self._service(fields, texts)
        documents = await self._documents(fields, service, texts)
        more = number_of(fields, "alternatives", 0, 0, 100)
        num_best = min(more + 1, service.engine.most_best)
        translated = await self._translated(service, documents, Wanted(num_best, client=client))
        found = translated.texts(documents, num_best)
        one: Any = list if is_list else _only
        answer = {"translatedText": one([best[0].text for best in found])}
        if more:
            answer["alternatives"] = one([[other.text for other in best[1:]] for best in found])
        if detected is not None:
            said = {"language": detected.language, "confidence": _percent(detected)}
            answer["detectedLanguage"] = one([said for _ in texts])
        return answer

    async def detect(self, fields: Fields) -> list[dict[str, Any]]:
        """Answer `POST /detect` of LibreTranslate.

        Args:
          fields: the fields of the request.

        Raises:
          RefusedError: it cannot be answered, or there is no detector.
        """
        fields = known_fields(fields, ("q",))
        texts, _ = texts_of(fields, "q", self.bounds)
        found = await asyncio.to_thread(self.languages.detect, texts)
        return [{"language": one.language, "confidence": _percent(one)} for one in found]

    async def translations(self, fields: Fields, client: str) -> dict[str, Any]:
        """Answer `POST /v1/translations`: n-best, scores, alignments.

        Args:
          fields: the fields of the request.
          client: what its client is known by.

        Raises:
          RefusedError: it cannot be answered.
        """
        asked = await self._asked(fields, client)
        translated = await self._translated(asked.service, asked.documents, asked.wanted)
        return await self._described(asked, translated)

    async def streamed(self, fields: Fields, client: str) -> AsyncGenerator[str, None]:
        """Answer `POST /v1/translations` with a stream of events, as tokens are chosen.

        Args:
          fields: the fields of the request.
          client: what its client is known by.

        Raises:
          RefusedError: it cannot be answered.
        """
        asked = await self._asked(fields, client)
        if asked.wanted.num_best > 1:
            raise RefusedError(400, "a stream has one translation of a text; leave num_best out")
        return self._stream(asked)

    async def _stream(self, asked: "_Asked") -> AsyncGenerator[str, None]:
        """Events: `partial` for each sentence as it grows, then `done`."""
        loop, changed = asyncio.get_running_loop(), asyncio.Event()
        news: dict[int, str] = {}  # of each sentence the last: a client that is slow misses some
        places = [
            (text, sentence)
            for text, document in enumerate(asked.documents)
            for sentence in range(len(document.sentences))
        ]

        def hear(number: int, so_far: str) -> None:
            news[number] = so_far
            changed.set()

        def tell(number: int, so_far: str) -> None:
            loop.call_soon_threadsafe(hear, number, so_far)

        wanted = asked.wanted._replace(greedy=True)
        work = asyncio.create_task(self._translated(asked.service, asked.documents, wanted, tell))
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
            yield event("done", await self._described(asked, await work))
        finally:
            work.cancel()

    async def _asked(self, fields: Fields, client: str) -> "_Asked":
        """What a request to `/v1/translations` asks for."""
        check_known(fields, _FIELDS)
        texts, _ = texts_of(fields, "q", self.bounds)
        service, detected = await self._service(fields, texts)
        most = service.engine.most_best
        num_best = number_of(fields, "num_best", 1, 1, most)
        beam_size = number_of(fields, "beam_size", most, 1, 1000)
        if beam_size not in (1, most):
            raise RefusedError(400, f"beam_size={beam_size} is neither 1 nor this server's {most}")
        if num_best > beam_size:
            raise RefusedError(400, f"num_best={num_best} is more than beam_size={beam_size}")
        max_tokens = number_of(fields, "max_tokens", 0, 1, 100_000) if "max_tokens" in fields else 0
        wanted = Wanted(num_best, beam_size == 1 < most, max_tokens or None, client)
        documents = await self._documents(fields, service, texts)
        return _Asked(service, documents, wanted, truth_of(fields, "alignments"), detected)

    async def _service(
        self, fields: Fields, texts: Sequence[str]
    ) -> tuple[Service, Detected | None]:
        source, target = text_of(fields, "source", "auto"), text_of(fields, "target")
        if is_auto(source):
            return await asyncio.to_thread(self.languages.service, source, target, texts)
        return self.languages.service(source, target, texts)

    async def _documents(
        self, fields: Fields, service: Service, texts: Sequence[str]
    ) -> list[Document]:
        split: Any = self.split if "split" not in fields else choice_of(fields, "split", _SPLITS)
        is_html = choice_of(fields, "format", ("text", "html")) == "html"

        def document(text: str) -> Document:
            if is_html:
                return html_document(text, service.source)
            return text_document(text, service.source, split)

        return await prepared(lambda texts: [document(text) for text in texts], texts)

    async def _translated(
        self, service: Service, documents: Sequence[Document], wanted: Wanted, *listener: Any
    ) -> Translated:
        """Translate, and count what was translated."""
        found = await service.translate(documents, wanted, *listener)
        self.metrics.lines.labels(service.name).inc(sum(map(len, found.sentences)))
        self.metrics.tokens.labels(service.name, "in").inc(found.source_tokens)
        self.metrics.tokens.labels(service.name, "out").inc(found.target_tokens)
        return found

    async def _described(self, asked: "_Asked", translated: Translated) -> dict[str, Any]:
        """The translations of all texts, with their sentences."""
        num_best, engine = asked.wanted.num_best, asked.service.engine
        whole = translated.texts(asked.documents, num_best)
        links = iter(await self._links(asked, translated))

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
            "source": asked.service.source,
            "target": asked.service.target,
            "translations": [
                {
                    "hypotheses": [hypothesis(one) for one in of_text],
                    "sentences": [
                        sentence(*each)
                        for each in zip(document.sentences, of_sentences, strict=True)
                    ],
                }
                for of_text, document, of_sentences in zip(
                    whole, asked.documents, translated.sentences, strict=True
                )
            ],
        }

    async def _links(self, asked: "_Asked", translated: Translated) -> Sequence[Links | None]:
        """The links between words of each sentence and its best translation, if asked for."""
        sources = [one for document in asked.documents for one in document.sentences]
        best = [found[0].text for one in translated.sentences for found in one]
        align = asked.service.engine.align
        links = await asyncio.to_thread(align, sources, best) if asked.alignments else None
        return [None] * len(best) if links is None else links


_FIELDS = (
    *("q", "source", "target", "format", "split", "num_best", "beam_size", "max_tokens"),
    *("alignments", "stream", "api_key"),
)


@dataclass(frozen=True)
class _Asked:
    """What a request to `/v1/translations` asks for."""

    service: Service
    documents: list[Document]
    wanted: Wanted
    alignments: bool
    detected: Detected | None


def _only(found: Sequence[Any]) -> Any:
    return found[0]


def _percent(detected: Detected) -> float:
    return round(100 * detected.confidence, 1)


def event(name: str, data: dict[str, Any]) -> str:
    """A server-sent event.

    Args:
      name: its name.
      data: what it says.
    """
    return f"event: {name}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"
