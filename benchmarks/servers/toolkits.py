"""The toolkits that translate one batch after another: t2t_jax's closed search, and CTranslate2."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from t2t_jax.batch import EOS_ID
from t2t_jax.config import DecodingConfig
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.decoding.long_lines import parts
from t2t_jax.decoding.row_group import Sentence
from t2t_jax.decoding.scheduler import rung
from t2t_jax.decoding.translations import Hypothesis, is_blank
from t2t_jax.decoding.translator import Translator

_SHORTEST = 16
_WORD_ID = 8  # the id of any subword that is not special


class ClosedSearch:
    """t2t_jax's search for a list of sentences, which no further sentences join."""

    def __init__(self, translator: Translator, decoding: DecodingConfig) -> None:
        """Keep the model.

        Args:
          translator: the model.
          decoding: the settings of the search.
        """
        self._translator, self._decoding = translator, decoding

    def prepare(self, sentences: Sequence[str]) -> list[list[list[int]]]:
        """Return the tokens of each sentence; see `Toolkit`."""
        translator = self._translator
        encoded = translator.encode(sentences)
        longest = translator.longest_sentence
        return _prepared(encoded, self._decoding, translator.vocabulary, longest)

    def translate(self, batch: Sequence[list[int]]) -> list[Hypothesis]:
        """Return the best translation of each list of tokens; see `Toolkit`."""
        extra = self._decoding.max_extra_length
        return self._searched([Sentence(tokens, len(tokens) + extra, 0) for tokens in batch])

    def warm_up(self, rows: int) -> None:
        """Compile the programs for batches of all sizes, which are powers of two; see `Toolkit`."""
        length = _SHORTEST
        while length <= rung(self._decoding.max_source_length):
            tokens = [_WORD_ID] * (min(length, self._decoding.max_source_length) - 1) + [EOS_ID]
            number = 1
            while number < 2 * rows:
                self._searched([Sentence(tokens, 1, 0)] * min(number, rows))
                number *= 2
            length *= 2

    def _searched(self, sentences: Sequence[Sentence]) -> list[Hypothesis]:
        search = self._translator.search(sentences, self._decoding, 1, 0)
        found = {index: self._translator.read(best)[0] for index, best in search}
        return [found[index] for index in range(len(sentences))]


class CTranslate2:
    """CTranslate2 with the same weights, in float32, on all cores."""

    def __init__(
        self, model: Path, vocabulary: Vocabulary, decoding: DecodingConfig, workers: int
    ) -> None:
        """Load the model.

        Args:
          model: a directory that `t2t-jax export --to ctranslate2` has written.
          vocabulary: the vocabulary of the run that was exported.
          decoding: the settings of the search.
          workers: the number of batches translated at a time, which divide the cores.
        """
        import ctranslate2

        self._translator: Any = ctranslate2.Translator(
            str(model),
            compute_type="float32",
            inter_threads=workers,
            intra_threads=max(1, (os.cpu_count() or 1) // workers),
        )
        self._vocabulary, self._decoding = vocabulary, decoding
        (pieces,) = vocabulary.target_pieces([range(len(vocabulary))])
        self._ids = {piece: number for number, piece in enumerate(pieces)}

    def prepare(self, sentences: Sequence[str]) -> list[list[list[int]]]:
        """Return the tokens of each sentence; see `Toolkit`."""
        encoded = self._vocabulary.encode([one.replace("\n", " ").strip() for one in sentences])
        return _prepared(encoded, self._decoding, self._vocabulary, float("inf"))

    def translate(self, batch: Sequence[list[int]]) -> list[Hypothesis]:
        """Return the best translation of each list of tokens; see `Toolkit`.

        CTranslate2 sorts the sentences by length, and translates up to 1,024 tokens at a time.
        """
        decoding = self._decoding
        results = self._translator.translate_batch(
            self._vocabulary.pieces([tokens[:-1] for tokens in batch]),  # CTranslate2 adds the end
            batch_type="tokens",
            max_batch_size=1024,
            max_input_length=0,
            beam_size=decoding.beam_size,
            length_penalty=decoding.length_penalty,
            max_decoding_length=max(map(len, batch)) + decoding.max_extra_length,
            min_decoding_length=0,
        )
        ids = [tuple(self._ids[piece] for piece in one.hypotheses[0]) for one in results]
        texts = self._vocabulary.decode(ids)
        return [Hypothesis(text, 0.0, 0.0, of) for text, of in zip(texts, ids, strict=True)]

    def warm_up(self, rows: int) -> None:
        """Translate once, as a first call has extra work; see `Toolkit`."""
        self.translate([[_WORD_ID] * 15 + [EOS_ID]] * rows)


def _prepared(
    encoded: Sequence[list[int]],
    decoding: DecodingConfig,
    vocabulary: Vocabulary,
    longest: float,
) -> list[list[list[int]]]:
    """Return the tokens of the parts of each sentence, as `Engine.prepare` does."""
    found: list[list[list[int]]] = [[] for _ in encoded]
    for part in parts(encoded, decoding, vocabulary, longest, 1):
        if not is_blank(part.tokens):
            found[part.line].append(part.tokens)
    return found
