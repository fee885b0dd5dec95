"""Translate the sentences of all requests in one search, which sentences can join at any time."""

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

from sentencex import segment

from t2t_jax.config import DecodingConfig
from t2t_jax.data.languages import language_of
from t2t_jax.decoding.long_lines import LinePart
from t2t_jax.decoding.open_search import Limits
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


class Engine:
    """A translator of many concurrent requests.

    Attributes:
      search: the search that all sentences join.
    """

    def __init__(
        self, translator: Translator, decoding: DecodingConfig, limits: Limits, *, seed: int = 0
    ) -> None:
        """Start the search that all requests share."""
        translator.check_translates()
        max_length = min(limits.max_length, decoding.max_source_length)
        self._translator = translator
        self._decoding = replace(decoding, max_source_length=max_length)
        limits = replace(limits, max_length=max_length)
        self.search = translator.open_search(self._decoding, limits, seed=seed)

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

    async def translate(self, prepared: PreparedTexts, timeout: float) -> list[str]:
        """Translate the texts of a request.

        If the call fails or is canceled, the search drops its sentences.

        Raises:
          QueueFullError: too many sentences are waiting.
          TimeoutError: the translation took longer than `timeout` seconds.
        """
        futures: list[Future[SearchResult]] = []
        prefix = prepared.translator.vocabulary.target_begin  # such as a language tag
        try:
            for part in prepared.parts:
                futures.append(self.search.submit(part.tokens, timeout=timeout, prefix=prefix))
            results = await asyncio.gather(*map(asyncio.wrap_future, futures))
        finally:
            for future in futures:
                future.cancel()
        return await asyncio.to_thread(_join_translations, prepared, results)


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
