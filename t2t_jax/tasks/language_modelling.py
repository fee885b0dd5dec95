"""Language modelling, which predicts each token of a text from the tokens before it."""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from t2t_jax.config import Config
from t2t_jax.data import rows, tokenized
from t2t_jax.data.corpus import Corpus
from t2t_jax.data.tokenized import TrainText, document_text
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.decoding import arguments, open_search, row_group
from t2t_jax.decoding.translator import Translator
from t2t_jax.errors import UserError
from t2t_jax.modules.models import start_id
from t2t_jax.parallel.devices import within_memory
from t2t_jax.system.records import Record
from t2t_jax.tasks import task

_NAME = "language_modelling"
_SHOWN_TOKENS = 32  # of the continuations in the log of training
_NUM_SHOWN = 3


@dataclass(frozen=True)
class LanguageModelScores:
    """The scores of a language model on the text of a split, each token of which counts once."""

    bits_per_byte: float
    """Negative log-likelihood in bits over the bytes in UTF-8, comparable across vocabularies."""
    bits_per_character: float
    """Negative log-likelihood in bits over the characters of the text."""
    num_bytes: int
    """Bytes of the documents, the end of each counted as one."""
    num_characters: int
    """Characters of the documents, the end of each counted as one."""
    definition: str
    """The length and the stride of the windows in which the text was scored."""

    @property
    def best(self) -> float:
        """Return the score that chooses the best checkpoint; higher is better."""
        return -self.bits_per_byte

    def __str__(self) -> str:
        """Return the scores as one line for the log."""
        return (
            f"bits per byte {self.bits_per_byte:.4f}  bits per character "
            f"{self.bits_per_character:.4f} ({self.definition})"
        )


class LanguageModelling(task.Task):
    """The task of documents of one language; see `data.corpus`."""

    model = "a language model"
    inputs = "documents"
    unit = "subword"
    searches = False
    measures = (
        task.Measure("bits_per_byte", "bits per byte", "definition"),
        task.Measure("bits_per_character", "bits per character"),
    )
    grid = task.GridMeasures(measures[0], measures[1], whole_split=False)

    def largest_shape(self, config: Config) -> rows.BatchShape:
        """Return the shape for sequences without sources; see `Task.largest_shape`."""
        return task.longest_rows(config.data, has_sources=False)

    def training_examples(
        self, config: Config, corpus: Corpus, vocabulary: Vocabulary
    ) -> rows.Examples:
        """Return the sequences of train, which are cut as `data.text_rows` says."""
        return tokenized.prepare_text(config.data, corpus, vocabulary, "train", bidirectional=False)

    def train_text(self, config: Config, vocabulary: Vocabulary) -> TrainText:
        """Return how documents become sequences; see `Task.train_text`."""
        return document_text(config.data, vocabulary, lambda text: text, begin=False)

    def examples(
        self, config: Config, corpus: Corpus, vocabulary: Vocabulary, split: str, longest: float
    ) -> rows.Examples:
        """Return the windows of a split, which score each token once; see `windows`."""
        del longest  # windows are as long as the sequences of training
        whole = tokenized.prepare_text(config.data, corpus, vocabulary, split, bidirectional=False)
        if config.data.text_rows == "run_on" and len(whole):
            whole = dataclasses.replace(
                whole,
                source_offsets=whole.source_offsets[:2],
                target_offsets=whole.target_offsets[[0, -1]],
            )
        return tokenized.windows(whole, *_window(config), start_id(config.model))

    def scored(self, asked: task.Scoring) -> task.Scored:
        """Score the likelihood of a split, and let the model continue some documents."""
        translator, loss = asked.translator, asked.loss()
        _, documents = asked.corpus.lines(asked.split)
        length, stride = _window(translator.config)
        bits = loss.nll * loss.tokens / math.log(2)
        num_bytes = sum(len(document.encode()) + 1 for document in documents)
        num_characters = sum(len(document) + 1 for document in documents)
        definition = f"windows of {length} subwords, stride {stride}"
        scores = LanguageModelScores(
            bits / num_bytes, bits / num_characters, num_bytes, num_characters, definition
        )
        shown = documents[: min(asked.num_sentences or _NUM_SHOWN, _NUM_SHOWN)]
        begins = [_beginning(translator, document, length // 2) for document in shown]
        rests = [text[len(begin) :] for text, begin in zip(shown, begins, strict=True)]
        most = min(_SHOWN_TOKENS, length - length // 2)
        continued = generate(
            translator, begins, max_tokens=most, seed=asked.seed, decoding=asked.decoding
        )
        return task.Scored(scores, begins, continued, rests)

    def score_rows(self, record: Record) -> Iterable[tuple[str, str, str]]:
        """Yield the rows of bits per byte and per character."""
        how = record["definition"]
        for name, of in (("byte", "bytes"), ("character", "characters")):
            number = f"{record[f'num_{of}']:,} {of}"
            yield f"bits per {name}", f"{record[f'bits_per_{name}']:.4f}", f"{number}, {how}"

    def experiment(self, config: Config) -> task.PublishedExperiment:
        """Return the base model on English-German, as the paper trains no language model."""
        return task.beside_base_model(config, "is text of one language", "trains no language model")


TASK: task.Task = LanguageModelling()
"""The task of language modelling."""


def generate(
    translator: Translator,
    prompts: Iterable[str],
    *,
    max_tokens: int = 64,
    stop: Sequence[str] = (),
    seed: int = 0,
    first_line: int = 1,
    **overrides: Any,
) -> list[str]:
    """Continue texts, each on its own.

    Args:
      translator: a model trained with `data.task="language_modelling"`.
      prompts: texts to continue, without white space at their ends; "" begins a document.
      max_tokens: most subwords of a continuation, which ends earlier if the document ends.
      stop: strings before whose first occurrence a continuation ends.
      seed: seed of sampling (`temperature` above 0).
      first_line: number of the first prompt, for errors; sampling depends on the numbers.
      overrides: settings of the search, as `Translator.configured` takes them.

    Returns:
      The continuations, in the order of the prompts; a prompt and its continuation together are the
      text that the model has written.

    Raises:
      TypeError: an argument is of the wrong type.
      UserError: the model is no language model, or has no positions for prompt and continuation, or
        an argument is refused.
    """
    config, sentences = _sentences(
        translator, prompts, max_tokens, stop, seed, first_line, overrides
    )
    outputs: list[list[int]] = [[] for _ in sentences]
    with within_memory(decoding=True):
        for index, best in translator.search(sentences, config.decoding, 1, seed):
            outputs[index] = best.tokens[0][: int(best.lengths[0])].tolist()
    ids = [sentence.source[1:] for sentence in sentences]
    return [_before(text, stop) for text in continuations(translator.vocabulary, ids, outputs)]


def stream(
    translator: Translator,
    prompt: str,
    *,
    max_tokens: int = 64,
    stop: Sequence[str] = (),
    seed: int = 0,
    **overrides: Any,
) -> Iterator[str]:
    """Continue a text piece by piece; the pieces together are the result of `generate`.

    Args:
      overrides: fields of `DecodingConfig`; `beam_size` has to be 1 unless the text is sampled.
    """
    config, [sentence] = _sentences(translator, [prompt], max_tokens, stop, seed, 1, overrides)
    if config.decoding.beam_size > 1 and config.decoding.temperature == 0:
        raise UserError(
            f"decoding.beam_size={config.decoding.beam_size} searches for several texts, none of "
            "which is certain before the end; use beam_size=1"
        )
    so_far: SimpleQueue[list[int] | None] = SimpleQueue()
    held = max((len(one) for one in stop), default=1) - 1
    limits = open_search.Limits(rows=1, longest=len(sentence.source), most_steps=1)
    shown = ""
    with closing(translator.open_search(config.decoding, limits, seed=seed)) as search:
        future = search.submit(
            sentence.source, limit=sentence.limit, number=sentence.number, listener=so_far.put
        )
        future.add_done_callback(lambda _: so_far.put(None))
        try:
            while (tokens := so_far.get()) is not None:
                [whole] = continuations(translator.vocabulary, [sentence.source[1:]], [tokens])
                text = _before(whole, stop)
                if len(text) < len(whole):
                    break
                # The last character may lack bytes, and the last ones may begin a stop string.
                text = text.rstrip("\ufffd")
                text = text[: max(0, len(text) - held)]
                yield text[len(shown) :]
                shown = max(shown, text, key=len)
            else:
                best = future.result()
                tokens = best.tokens[0][: int(best.lengths[0])].tolist()
                [whole] = continuations(translator.vocabulary, [sentence.source[1:]], [tokens])
                text = _before(whole, stop)
            yield text[len(shown) :]
        finally:
            future.cancel()


def _sentences(
    translator: Translator,
    prompts: Iterable[str],
    max_tokens: int,
    stop: Sequence[str],
    seed: int,
    first_line: int,
    overrides: Mapping[str, Any],
) -> tuple[Config, list[row_group.Sentence]]:
    """Return the config for continuing prompts, and the prompts as sources of a search."""
    translator.check_process()
    config = translator.configured(**{**overrides, "max_extra_length": max_tokens})
    if config.data.task != _NAME:
        raise UserError(
            f"the model was trained with data.task={config.data.task}, not to continue text; use "
            f"one with data.task={_NAME}"
        )
    arguments.whole_number(seed, "seed", 0, 2**32 - 1)
    if "" in stop:
        raise UserError("an empty stop string would end every text at once; leave it out")
    # A space at the end belongs to the subword that follows it.
    prompts = [prompt.rstrip() for prompt in arguments.texts(prompts, "prompts", first_line)]
    sentences = [
        row_group.Sentence([start_id(config.model), *tokens[:-1]], max_tokens, number)
        for number, tokens in enumerate(translator.encode_targets(prompts), first_line)
    ]
    model = config.model
    for sentence in sentences:
        needed = len(sentence.source) + sentence.limit - 1
        if model.positions.has_table and needed > model.num_positions:
            raise UserError(
                f"prompt {sentence.number} has {len(sentence.source):,} subwords, which with "
                f"{sentence.limit:,} more take {needed:,} positions, and the model has "
                f"{model.num_positions:,}; shorten the prompt or lower max_tokens"
            )
    return config, sentences


def continuations(
    vocabulary: Vocabulary, prompts: Sequence[list[int]], outputs: Sequence[list[int]]
) -> list[str]:
    """Return the text that the subwords of outputs add to the text of their prompts."""
    begins = vocabulary.decode(prompts)
    whole = vocabulary.decode([a + b for a, b in zip(prompts, outputs, strict=True)])
    return [text[len(begin) :] for begin, text in zip(begins, whole, strict=True)]


def _before(text: str, stop: Sequence[str]) -> str:
    """Return the text before the first occurrence of any of the stop strings."""
    return text[: min((text.find(one) for one in stop if one in text), default=len(text))]


def _window(config: Config) -> tuple[int, int]:
    """Return the length and the stride of the windows in which text is scored."""
    return config.data.max_length, max(1, config.data.max_length // 2)


def _beginning(translator: Translator, document: str, most: int) -> str:
    """Return the first half of a document's words, or fewer, in at most `most` subwords."""
    words = document.split(" ")
    count = (len(words) + 1) // 2
    while count and len(translator.encode_targets([" ".join(words[:count])])[0]) > most:
        count //= 2
    return " ".join(words[:count])
