"""Translate the sentences of all requests, in batches of the sentences that wait."""

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

from sentencex import segment

from t2t_jax.config import DecodingConfig
from t2t_jax.data.languages import language_of
from t2t_jax.decoding.long_lines import LinePart
from t2t_jax.decoding.row_group import Sentence
from t2t_jax.decoding.scheduler import length_bucket
from t2t_jax.decoding.search.hypotheses import SearchResult
from t2t_jax.decoding.translator import Translator, is_blank

_WINDOW = 2000
"""The maximum number of characters that sentencex splits at once. Its time can grow with the square
of this number, and it blocks all threads."""


@dataclass(frozen=True)
class PreparedTexts:
    """The texts of one request, split into sentences and encoded."""

    texts: list[list[str]]
    """The segments of each text, as `split_sentences` returns them."""
    parts: list[LinePart]
    """The parts of all sentences; `LinePart.line` is the index of the sentence."""
    translator: Translator
    """The translator for the request's languages."""

    @property
    def num_sentences(self) -> int:
        """Return the number of sentences in all texts."""
        return sum(len(segments) // 2 for segments in self.texts)


class QueueFullError(Exception):
    """A request has more sentences than the queue has room for."""


class _Request(NamedTuple):
    sentence: Sentence
    result: "asyncio.Future[SearchResult]"


class Engine:
    """A translator of many concurrent requests, on one event loop.

    While one batch of sentences is translated, the sentences of new requests wait for the next.

    Attributes:
      rows: the most sentences of a batch.
      max_waiting: the most sentences that may wait.
      num_translating: the number of sentences of the current batch.
    """

    def __init__(
        self,
        translator: Translator,
        decoding: DecodingConfig,
        *,
        rows: int = 16,
        max_length: int = 256,
        max_waiting: int = 4096,
        seed: int = 0,
    ) -> None:
        """Create an engine with an empty queue.

        Args:
          max_length: the most tokens of a sentence.
          seed: the seed of sampling.
        """
        translator.check_translates()
        max_length = min(max_length, decoding.max_source_length)
        self._max_bucket = length_bucket(max_length)
        # So many tokens fit every batch, so that each batch needs one call of a program.
        num_tokens = rows * (self._max_bucket + decoding.max_extra_length)
        self._decoding = replace(
            decoding, max_source_length=max_length, tokens_per_batch=num_tokens
        )
        self._translator, self._seed = translator, seed
        self.rows, self.max_waiting, self.num_translating = rows, max_waiting, 0
        # Batches are padded to one of two sizes, because each size needs a program.
        self._batch_sizes = sorted({-(-rows // 8), rows})
        self._queue: deque[_Request] = deque()
        self._worker: asyncio.Task[None] | None = None

    @property
    def num_waiting(self) -> int:
        """Return the number of sentences in the queue, without canceled sentences."""
        return sum(not request.result.done() for request in self._queue)

    def warm_up(self) -> None:
        """Compile every program, so that no sentence has to wait for a compilation."""
        length, lengths = 1, list[int]()
        while length_bucket(length) <= self._max_bucket:
            lengths.append(length)
            length = length_bucket(length) + 1
        for size, length in product(self._batch_sizes, lengths):
            blank = Sentence(self._translator.model.sources.blank(length), 0, 0)
            self._search([blank] * size)

    @property
    def languages(self) -> tuple[str, str]:
        """Return the default source and target languages of a request."""
        data = self._translator.config.data
        return data.source_language, data.target_language

    def prepare(
        self, texts: Sequence[str], source: str | None = None, target: str | None = None
    ) -> PreparedTexts:
        """Split the texts of a request into sentences and encode them.

        The default languages are those of the run.
        """
        translator = self._translator
        languages = source or self.languages[0], target or self.languages[1]
        if [name.lower() for name in languages] != [name.lower() for name in self.languages]:
            translator = translator.between(*languages)
        text_segments = [split_sentences(text, languages[0]) for text in texts]
        sentences = [sentence for segments in text_segments for sentence in segments[1::2]]
        parts = translator.parts(sentences, self._decoding)
        parts = [part for part in parts if not is_blank(part.tokens)]
        return PreparedTexts(text_segments, parts, translator)

    async def translate(self, prepared: PreparedTexts) -> list[str]:
        """Translate the texts of a request. If the call is canceled, so are its waiting sentences.

        Raises:
          QueueFullError: too many sentences are waiting.
        """
        if (count := self.num_waiting) + len(prepared.parts) > self.max_waiting:
            raise QueueFullError(f"{count} sentences are already waiting")
        loop, requests = asyncio.get_running_loop(), list[_Request]()
        for part in prepared.parts:
            prefix = prepared.translator.vocabulary.target_begin  # such as a language tag
            length = max(len(part.tokens), len(prefix))
            limit = length + self._decoding.max_extra_length
            requests.append(_Request(Sentence(part.tokens, limit, 0, prefix), loop.create_future()))
        self._queue.extend(requests)
        if self._worker is None or self._worker.done():
            self._worker = loop.create_task(self._work())
        try:
            results = await asyncio.gather(*(request.result for request in requests))
        finally:
            for request in requests:
                request.result.cancel()
        return await asyncio.to_thread(_join_translations, prepared, results)

    async def _work(self) -> None:
        """Translate batches until no sentence waits."""
        while live := [request for request in self._queue if not request.result.done()]:
            batch, self._queue = live[: self.rows], deque(live[self.rows :])
            self.num_translating = len(batch)
            sentences = [request.sentence for request in batch]
            try:
                results = await asyncio.to_thread(self._search, sentences)
            except Exception as error:
                for request in batch:
                    if not request.result.done():
                        request.result.set_exception(error)
            else:
                for request, result in zip(batch, results, strict=True):
                    if not request.result.done():
                        request.result.set_result(result)
            self.num_translating = 0

    def _search(self, sentences: Sequence[Sentence]) -> list[SearchResult]:
        """Return the result of each sentence; blank sentences pad the batch."""
        size = next((n for n in self._batch_sizes if n >= len(sentences)), self.rows)
        blank = Sentence(self._translator.model.sources.blank(0), 0, 0)
        padded = [*sentences, *[blank] * (size - len(sentences))]
        results = dict(self._translator.search(padded, self._decoding, 1, self._seed))
        return [results[index] for index in range(len(sentences))]


def _join_translations(prepared: PreparedTexts, results: Sequence[SearchResult]) -> list[str]:
    translations = [""] * prepared.num_sentences
    for part, result in zip(prepared.parts, results, strict=True):
        [hypothesis] = prepared.translator.read(result)
        translations[part.line] = f"{translations[part.line]} {hypothesis.text}".strip()
    next_translation = iter(translations)
    # Sentences have odd indices, and the white space between them has even ones.
    return [
        "".join(next(next_translation) if n % 2 else segment for n, segment in enumerate(segments))
        for segments in prepared.texts
    ]


def split_sentences(text: str, language: str) -> list[str]:
    """Split a text into segments: sentences at odd indices, white space around them at even ones.

    Every line break ends a sentence, so a translation has as many lines as the text. Otherwise
    sentences end by the rules of the language, a code that `language_of` reads.
    """
    segments = [""]
    for line_index, line in enumerate(text.split("\n")):
        segments[-1] += "\n" if line_index else ""
        for part in _sentences(line, language):
            if sentence := part.strip():
                before, _, after = part.partition(sentence)
                segments[-1] += before
                segments += [sentence, after]
            else:
                segments[-1] += part
    return segments


def _sentences(line: str, language: str) -> Iterator[str]:
    start = 0
    while start < len(line):
        window = line[start : start + _WINDOW]
        sentences: list[str] = segment(language_of(language), window) or [window]
        if start + len(window) < len(line) and len(sentences) > 1:
            del sentences[-1]  # this sentence may continue after the window
        yield from sentences
        start += sum(map(len, sentences))
