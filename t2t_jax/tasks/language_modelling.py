"""The language modelling task: predict each token from the tokens before it."""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from t2t_jax.config import Config
from t2t_jax.data import rows, tokenized
from t2t_jax.data.corpus import Corpus
from t2t_jax.data.tokenized import TrainText, document_text
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.decoding import arguments, row_group
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
    """The scores of a language model on the text of a split; each token counts once."""

    bits_per_byte: float
    """Negative log-likelihood in bits per UTF-8 byte, which is comparable across vocabularies."""
    bits_per_character: float
    """Negative log-likelihood in bits per character of the text."""
    num_bytes: int
    """Number of bytes of the documents, plus one for the end of each document."""
    num_characters: int
    """Number of characters of the documents, plus one for the end of each document."""
    definition: str
    """The length and the stride of the scored windows of text."""

    @property
    def best(self) -> float:
        """Return the score that selects the best checkpoint."""
        return -self.bits_per_byte

    def __str__(self) -> str:
        """Return the scores as one line for the log."""
        return (
            f"bits per byte {self.bits_per_byte:.4f}  bits per character "
            f"{self.bits_per_character:.4f} ({self.definition})"
        )


class LanguageModelling(task.Task):
    """The language modelling task, on documents of one language."""

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
        """Return the shape of a batch of the longest sequences, which have no sources."""
        return task.longest_rows(config.data, has_sources=False)

    def training_examples(
        self, config: Config, corpus: Corpus, vocabulary: Vocabulary
    ) -> rows.Examples:
        """Return the sequences of the train split, cut according to `data.text_rows`."""
        return tokenized.prepare_text(config.data, corpus, vocabulary, "train", bidirectional=False)

    def train_text(self, config: Config, vocabulary: Vocabulary) -> TrainText:
        """Return the rules that turn documents into training sequences of tokens."""
        return document_text(config.data, vocabulary, lambda text: text, bos=False)

    def examples(
        self, config: Config, corpus: Corpus, vocabulary: Vocabulary, split: str, longest: float
    ) -> rows.Examples:
        """Return overlapping windows of tokens over a split, which score each token once."""
        del longest  # windows have the length of training sequences
        text = tokenized.prepare_text(config.data, corpus, vocabulary, split, bidirectional=False)
        if config.data.text_rows == "run_on" and len(text):
            text = dataclasses.replace(
                text,
                source_offsets=text.source_offsets[:2],
                target_offsets=text.target_offsets[[0, -1]],
            )
        return tokenized.windows(text, *_window(config), start_id(config.model))

    def scored(self, request: task.Scoring) -> task.Scored:
        """Compute the bits per byte and character of a split, and continue some documents."""
        translator, loss = request.translator, request.loss()
        _, documents = request.corpus.lines(request.split)
        length, stride = _window(translator.config)
        bits = loss.nll * loss.tokens / math.log(2)  # the loss is a mean in nats
        num_bytes = sum(len(document.encode()) + 1 for document in documents)
        num_characters = sum(len(document) + 1 for document in documents)
        definition = f"windows of {length} subwords, stride {stride}"
        scores = LanguageModelScores(
            bits / num_bytes, bits / num_characters, num_bytes, num_characters, definition
        )
        samples = documents[: min(request.num_sentences or _NUM_SHOWN, _NUM_SHOWN)]
        prompts = [_beginning(translator, document, length // 2) for document in samples]
        references = [text[len(prompt) :] for text, prompt in zip(samples, prompts, strict=True)]
        max_tokens = min(_SHOWN_TOKENS, length - length // 2)
        continued = generate(
            translator, prompts, max_tokens=max_tokens, seed=request.seed, decoding=request.decoding
        )
        return task.Scored(scores, prompts, continued, references)

    def score_rows(self, record: Record) -> Iterable[tuple[str, str, str]]:
        """Yield the table rows of bits per byte and per character."""
        definition = record["definition"]
        for name, unit in (("byte", "bytes"), ("character", "characters")):
            total = f"{record[f'num_{unit}']:,} {unit}"
            yield f"bits per {name}", f"{record[f'bits_per_{name}']:.4f}", f"{total}, {definition}"

    def experiment(self, config: Config) -> task.PublishedExperiment:
        """Return the paper's base model on English-German, as the paper has no language model."""
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
    """Continue each text with a language model.

    Args:
      translator: a model trained with `data.task="language_modelling"`.
      prompts: texts to continue; trailing white space is removed. "" starts a new document.
      max_tokens: maximal number of subwords per continuation.
      stop: strings that end a continuation before their first occurrence.
      seed: seed of sampling (`temperature` above 0).
      first_line: number of the first prompt, for errors and for the random numbers of sampling.
      overrides: decoding settings for `Translator.configured`.

    Returns:
      The continuations, in the order of the prompts, without the prompts.

    Raises:
      TypeError: an argument has the wrong type.
      UserError: the model is not a language model, has too few positions for prompt and
        continuation, or refuses an argument.
    """
    translator.check_process()
    config = translator.configured(**{**overrides, "max_extra_length": max_tokens})
    if config.data.task != _NAME:
        raise UserError(
            f"the model was trained with data.task={config.data.task}, not to continue text; use "
            f"a model with data.task={_NAME}"
        )
    arguments.whole_number(seed, "seed", 0, 2**32 - 1)
    if "" in stop:
        raise UserError("an empty stop string would end every text at once; leave it out")
    # Subwords include their leading space, so a trailing space would be a token of its own.
    prompts = [prompt.rstrip() for prompt in arguments.texts(prompts, "prompts", first_line)]
    sentences = [
        row_group.Sentence([start_id(config.model), *tokens[:-1]], max_tokens, line_number)
        for line_number, tokens in enumerate(translator.encode_targets(prompts), first_line)
    ]
    model = config.model
    for sentence in sentences:
        num_positions = len(sentence.source) + sentence.limit - 1
        if model.positions.has_table and num_positions > model.num_positions:
            raise UserError(
                f"prompt {sentence.number} has {len(sentence.source):,} subwords, which with "
                f"{sentence.limit:,} new ones need {num_positions:,} positions, and the model has "
                f"{model.num_positions:,}; shorten the prompt or lower max_tokens"
            )
    outputs: list[list[int]] = [[] for _ in sentences]
    with within_memory(decoding=True):
        for index, best in translator.search(sentences, config.decoding, 1, seed):
            outputs[index] = best.tokens[0, : int(best.lengths[0])].tolist()
    ids = [sentence.source[1:] for sentence in sentences]
    return [_cut_at_stop(text, stop) for text in continuations(translator.vocabulary, ids, outputs)]


def continuations(
    vocabulary: Vocabulary, prompts: Sequence[list[int]], outputs: Sequence[list[int]]
) -> list[str]:
    """Decode outputs, and return the text that they add to their prompts."""
    prompt_texts = vocabulary.decode(prompts)
    full_texts = vocabulary.decode([a + b for a, b in zip(prompts, outputs, strict=True)])
    return [text[len(prompt) :] for prompt, text in zip(prompt_texts, full_texts, strict=True)]


def _cut_at_stop(text: str, stop: Sequence[str]) -> str:
    return text[: min((text.find(string) for string in stop if string in text), default=len(text))]


def _window(config: Config) -> tuple[int, int]:
    # The length and the stride of scoring windows, in subwords.
    return config.data.max_length, max(1, config.data.max_length // 2)


def _beginning(translator: Translator, document: str, max_tokens: int) -> str:
    """Return the first half of a document, shortened to at most `max_tokens` subwords."""
    words = document.split(" ")
    count = (len(words) + 1) // 2
    while count and len(translator.encode_targets([" ".join(words[:count])])[0]) > max_tokens:
        count //= 2
    return " ".join(words[:count])
