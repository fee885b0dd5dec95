"""Masked language modelling, which predicts hidden subwords from both sides (BERT)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

import numpy as np

from t2t_jax.batch import BOS_ID, EOS_ID
from t2t_jax.config import Config
from t2t_jax.data.corpus import Corpus
from t2t_jax.data.labelled import Labelled, LabelledText, flat
from t2t_jax.data.masking import MASK, MaskedText, mask_id, masked_room, with_masks
from t2t_jax.data.rows import BatchShape
from t2t_jax.data.shards.pieces import TrainText, document_text
from t2t_jax.data.tokenized import TokenizedSplit, prepare_text, prepare_vocabulary
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.decoding.arguments import texts
from t2t_jax.decoding.long_lines import check_one_pass
from t2t_jax.decoding.predictions import predictions
from t2t_jax.decoding.translator import Translator
from t2t_jax.errors import UserError
from t2t_jax.system.records import Record
from t2t_jax.tasks.task import (
    GridMeasures,
    Measure,
    PublishedExperiment,
    Scored,
    Scoring,
    Task,
    beside_base_model,
    longest_rows,
)

_NAME = "masked_language_modelling"
_NUM_SHOWN = 3


@dataclass(frozen=True)
class MaskedScores:
    """The scores of a model on the hidden subwords of a split."""

    accuracy: float
    """Percentage of the hidden subwords that the model finds most probable."""
    masked_nll: float
    """Mean negative log-likelihood of the hidden subwords, in nats."""
    num_masked: int
    """Number of hidden subwords."""
    definition: str
    """The share of the subwords that was hidden."""

    @property
    def best(self) -> float:
        """Return the score that chooses the best checkpoint; higher is better."""
        return -self.masked_nll

    def __str__(self) -> str:
        """Return the scores as one line for the log."""
        return f"accuracy {self.accuracy:.2f}  NLL {self.masked_nll:.4f} ({self.definition})"


class MaskedLanguageModelling(Task):
    """The task of documents of one language with hidden subwords; see `data.masking`."""

    model = "a masked language model"
    inputs = "documents"
    unit = "hidden subword"
    searches = False
    measures = (
        Measure("accuracy", "accuracy", "definition"),
        Measure("masked_nll", "NLL of what is hidden"),
    )
    grid = GridMeasures(measures[0], whole_split=False)

    def largest_shape(self, config: Config) -> BatchShape:
        """Return the shape for sequences and their hidden subwords; see `Task.largest_shape`."""
        shape = longest_rows(config.data)
        room = masked_room(config.data.masked_share, shape.source_length)
        return shape._replace(target_length=room)

    def vocabulary(
        self, config: Config, corpus: Corpus, given: Vocabulary | None = None
    ) -> Vocabulary:
        """Make a vocabulary of the documents, with the entry `<mask>` that hides a subword.

        Raises:
          UserError: the vocabulary that is given has no such entry.
        """
        if given is not None:
            mask_id(given)
            return given
        return prepare_vocabulary(config.data, corpus, needed=MASK)

    def training_examples(
        self, config: Config, corpus: Corpus, vocabulary: Vocabulary
    ) -> MaskedText:
        """Return the sequences of train, in which each step hides other subwords."""
        text = prepare_text(config.data, corpus, vocabulary, "train", bidirectional=True)
        return _masked(config, vocabulary, text, config.training.seed)

    def train_text(self, config: Config, vocabulary: Vocabulary) -> TrainText:
        """Return how documents become sequences; see `Task.train_text`."""
        masked = partial(_masked, config, vocabulary, seed=config.training.seed)
        return document_text(config.data, vocabulary, masked, begin=True)

    def examples(
        self, config: Config, corpus: Corpus, vocabulary: Vocabulary, split: str, longest: float
    ) -> MaskedText:
        """Return the sequences of a split, in which the same subwords are hidden every time."""
        del longest  # sequences are as long as those of training
        text = prepare_text(config.data, corpus, vocabulary, split, bidirectional=True)
        return _masked(config, vocabulary, text, seed=0)

    def scored(self, asked: Scoring) -> Scored:
        """Score the predictions of hidden subwords of a split, and fill in some documents."""
        translator, corpus, split = asked[:3]
        config, vocabulary = translator.config, translator.vocabulary
        examples = self.examples(config, corpus, vocabulary, split, translator.longest_sentence)
        right = np.concatenate(
            [one.labels == one.targets for one in predictions(translator, examples)]
        )
        how = f"{config.data.masked_share:.0%} of the subwords"
        scores = MaskedScores(100 * float(right.mean()), asked.loss().nll, len(right), how)
        _, documents = corpus.lines(split)
        short = (one for one in documents if len(one.split()) < config.data.max_length // 4)
        fitting = (one for one in short if _fits(translator, _without_a_word(one)))
        shown = list(islice(fitting, min(asked.num_sentences or _NUM_SHOWN, _NUM_SHOWN)))
        hidden = [_without_a_word(one) for one in shown]
        return Scored(scores, hidden, fill(translator, hidden), shown)

    def lines(
        self, translator: Translator, inputs: Sequence[str], first: int, probabilities: bool
    ) -> list[str]:
        """Return each line with its hidden subwords filled in; see `Predicting.lines`."""
        return fill(translator, inputs, first_line=first)

    def score_rows(self, record: Record) -> Iterable[tuple[str, str, str]]:
        """Yield the row of the accuracy on hidden subwords."""
        number = f"percent of {record['num_masked']:,} hidden subwords, {record['definition']}"
        yield "accuracy", f"{record['accuracy']:.2f}", number

    def experiment(self, config: Config) -> PublishedExperiment:
        """Return the base model on English-German, as the paper hides no words."""
        return beside_base_model(config, "is text of one language", "hides no words")


TASK: Task = MaskedLanguageModelling()
"""The task of masked language modelling."""


def fill(translator: Translator, lines: Iterable[str], *, first_line: int = 1) -> list[str]:
    """Fill in every `<mask>` of some lines, each with the most probable subword in its place.

    Args:
      translator: a model trained with `data.task="masked_language_modelling"`.
      lines: texts. A text without `<mask>` is returned as the vocabulary spells it.
      first_line: number of the first line, by which errors name lines.

    Returns:
      The lines, in their order.

    Raises:
      TypeError: an argument is of the wrong type.
      UserError: the model is of another task, or has too few positions for a line.
    """
    task = translator.config.data.task
    if task != _NAME:
        raise UserError(f"the model was trained with data.task={task}, not to fill in {MASK}")
    vocabulary = translator.vocabulary
    mask = mask_id(vocabulary)
    rows = translator.encode(texts(lines, "lines", first_line))
    encoded = [[BOS_ID, *with_masks(vocabulary, mask, ids)] for ids in rows]
    for number, ids in enumerate(encoded, first_line):
        check_one_pass(f"line {number}", len(ids), translator.longest_sentence)
    places = [[n for n, token in enumerate(ids) if token == mask] for ids in encoded]
    asked = [n for n, at in enumerate(places) if at]
    sentences = (Labelled(encoded[n], places[n], [0] * len(places[n])) for n in asked)
    examples = LabelledText(flat(sentences, len(vocabulary), {}, len(asked)), len(vocabulary))
    for n, found in zip(asked, predictions(translator, examples), strict=True):
        for place, token in zip(places[n], found.labels.tolist(), strict=True):
            encoded[n][place] = token if token != EOS_ID else mask
    return vocabulary.decode([ids[1:] for ids in encoded])


def _masked(config: Config, vocabulary: Vocabulary, text: TokenizedSplit, seed: int) -> MaskedText:
    return MaskedText(text, mask_id(vocabulary), len(vocabulary), config.data.masked_share, seed)


def _fits(translator: Translator, text: str) -> bool:
    """Return whether the model has positions for the subwords of a text."""
    [ids] = translator.encode([text])
    return len(ids) < translator.longest_sentence


def _without_a_word(text: str) -> str:
    """Return the text with its middle word hidden."""
    words = text.split()
    words[len(words) // 2] = MASK
    return " ".join(words)
