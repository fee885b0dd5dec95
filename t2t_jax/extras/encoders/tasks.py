"""The tasks of encoder-only networks: labels of sentences, words or images, and hidden subwords."""

import dataclasses
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32, Int32

from t2t_jax.batch import BOS_ID, EOS_ID, Batch
from t2t_jax.config import Config
from t2t_jax.data import splits, tokenized
from t2t_jax.data.corpus import Corpus
from t2t_jax.data.layout import batch_shape, ladder_length
from t2t_jax.data.rows import BatchShape, Examples
from t2t_jax.data.tokenized import TrainText, document_text
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.decoding.long_lines import check_one_pass
from t2t_jax.decoding.translator import Translator
from t2t_jax.errors import UserError
from t2t_jax.extras.encoders import labelled
from t2t_jax.extras.encoders.labelled import MASK, Labelled, LabelledText, MaskedText
from t2t_jax.extras.encoders.vocabulary import LabelledVocabulary, labelled_vocabulary
from t2t_jax.modules import decoding_model, interceptors, parameters
from t2t_jax.parallel import devices
from t2t_jax.run.evaluation import computed_batches
from t2t_jax.system.records import Record
from t2t_jax.tasks import task


class Prediction(NamedTuple):
    """The most probable labels of an example, in the order of its targets."""

    targets: Int32[np.ndarray, " n"]
    """The numbers of the right labels."""
    labels: Int32[np.ndarray, " n"]
    """The numbers of the most probable labels."""
    probabilities: Float32[np.ndarray, " n"]
    """The probability of each of `labels` under the model."""


@dataclass(frozen=True)
class LabelScores:
    """The scores of predicted labels against the right ones."""

    accuracy: float
    """Percentage of the labels that are right."""
    num_labels: int
    """Number of labels that were predicted."""

    @property
    def best(self) -> float:
        """Return the score that chooses the best checkpoint; higher is better."""
        return self.accuracy

    def __str__(self) -> str:
        """Return the scores as one line for the log."""
        return f"accuracy {self.accuracy:.2f}, mean of {self.num_labels:,}"


@dataclass(frozen=True)
class MaskedScores(LabelScores):
    """The scores of a model on the hidden subwords of a split."""

    masked_nll: float
    """Mean negative log-likelihood of the hidden subwords, in nats."""

    @property
    def best(self) -> float:
        """Return the score that chooses the best checkpoint; higher is better."""
        return -self.masked_nll


class EncoderTask(task.Task):
    """The common part of the tasks, whose models answer each input in one pass."""

    searches = False

    @abstractmethod
    def unlabelled(self, translator: Translator, inputs: Sequence[Any], first: int) -> LabelledText:
        """Return examples for inputs without labels, which a model can predict.

        Args:
          inputs: sentences or images; nothing is predicted of a blank sentence.
        """

    def score_rows(self, record: Record) -> Iterable[tuple[str, str, str]]:
        """Yield the row of the accuracy."""
        number = f"percent of {record['num_labels']:,} {self.unit}s"
        yield "accuracy", f"{record['accuracy']:.2f}", number

    def experiment(self, config: Config) -> task.PublishedExperiment:
        """Return the base model on English-German, as the paper has no such task."""
        return task.beside_base_model(config, "has labels or hides words", "predicts no labels")


class Labelling(EncoderTask):
    """The common part of tasks whose models label sentences, words or images."""

    inputs = "sentences"
    unit = "label"
    measures = (task.Measure("accuracy", "accuracy"),)
    grid = task.GridMeasures(measures[0])

    def training_examples(self, config: Config, corpus: Corpus, vocabulary: Vocabulary) -> Examples:
        """Return the examples of train."""
        return self.examples(config, corpus, vocabulary, "train", config.model.longest_sentence)

    def lines(
        self, translator: Translator, inputs: Sequence[Any], first: int = 1, shares: bool = False
    ) -> list[str]:
        """Predict the labels of each input; a blank sentence has none.

        Args:
          inputs: lines of text, or images.
          shares: whether each label is followed by its probability, as in NN:0.98.

        Returns:
          A line for each input, with spaces between labels.
        """
        rows = predictions(translator, self.unlabelled(translator, inputs, first))
        pieces = translator.vocabulary.target_pieces([x.labels.tolist() for x in rows])
        if shares:
            suffixes = ([f":{share:.4f}" for share in x.probabilities] for x in rows)
            pieces = [list(map(str.__add__, *pair)) for pair in zip(pieces, suffixes, strict=True)]
        return list(map(" ".join, pieces))

    def scored(self, asked: task.Scoring) -> task.Scored:
        """Label the inputs of a split, and compare the labels with those of the corpus."""
        inputs, targets = asked.lines
        lines = self.lines(asked.translator, inputs)
        right = [
            label == gold
            for line, target in zip(lines, targets, strict=True)
            for label, gold in zip(self.labels_of(line), self.labels_of(target), strict=False)
        ]
        scores = LabelScores(100 * sum(right) / max(1, len(right)), len(right))
        shown = [x if isinstance(x, str) else f"image {n}" for n, x in enumerate(inputs, 1)]
        return task.Scored(scores, shown, lines, targets)

    def labels_of(self, target: str) -> list[str]:
        """Return the labels of a line of the corpus."""
        return [target.strip()] if target.strip() else []

    def label_names(self, corpus: Corpus) -> list[str]:
        """List the labels of the train split in alphabetical order."""
        targets = chain.from_iterable(targets for _, targets in corpus.pairs("train"))
        names = sorted({*chain.from_iterable(map(self.labels_of, targets))})
        if not names:
            raise UserError(f"the train split of {corpus.name} has no labels")
        return names


class Classification(Labelling):
    """The task of sentences with one label each: `train.txt` beside `train.label`."""

    model = "a classifier of sentences"

    def largest_shape(self, config: Config) -> BatchShape:
        """Return the shape for sentences with one label each; see `Task.largest_shape`."""
        return super().largest_shape(config)._replace(target_length=1)

    def positions(self, words: Sequence[Sequence[int]]) -> list[int]:
        """Return the positions from which a sentence's labels are predicted: that of `<s>`, 0.

        Args:
          words: the ids of each word's subwords; none if the sentence is blank.
        """
        return [0] if words else []

    def vocabulary(
        self, config: Config, corpus: Corpus, given: Vocabulary | None = None
    ) -> Vocabulary:
        """Make a vocabulary of the labels and the sentences of train; see `Task.vocabulary`."""
        names = self.label_names(corpus)
        source = given.source if isinstance(given, LabelledVocabulary) else given
        source = source or tokenized.prepare_vocabulary(config.data, _without_labels(corpus))
        return labelled_vocabulary(source, names)

    def examples(
        self, config: Config, corpus: Corpus, vocabulary: Vocabulary, split: str, longest: float
    ) -> LabelledText:
        """Return the sentences of a split, of train without those that are blank or too long."""
        numbers, skipped, sentences = _numbers(vocabulary), Counter[str](), []
        lines, targets = corpus.lines(split)
        pairs = zip(self._sentences(vocabulary, lines), targets, strict=True)
        for line, (sentence, target) in enumerate(pairs, 1):
            name = f"line {line} in the {split} split of {corpus.name}"
            needed, length = len(sentence.labels), len(sentence.tokens)
            labels = self.labels_of(target) if needed else []
            if len(labels) != needed:
                raise UserError(
                    f"{name} needs {needed} label(s) and has {len(labels)}; give one for each of "
                    "the words of a tagger, and one for each sentence of a classifier"
                )
            if split == "train" and (not needed or length > config.data.max_length):
                skipped["too_long" if needed else "empty_source"] += 1
                continue
            check_one_pass(name, length, longest)
            places = zip(sentence.labels, labels, strict=True)
            known = [(place, numbers[label]) for (place, _), label in places if label in numbers]
            sentences.append(sentence._replace(labels=known))
        return LabelledText.of(sentences, skipped)

    def unlabelled(self, translator: Translator, inputs: Sequence[str], first: int) -> LabelledText:
        """Return examples for sentences without labels; see `EncoderTask.unlabelled`."""
        sentences = self._sentences(translator.vocabulary, inputs)
        for number, sentence in enumerate(sentences, first):
            check_one_pass(f"line {number}", len(sentence.tokens), translator.longest_sentence)
        return LabelledText.of(sentences, {})

    def _sentences(self, vocabulary: Vocabulary, lines: Sequence[str]) -> list[Labelled]:
        """Return the subwords of lines, with the first label at all positions that have one."""
        split = [line.split() for line in lines]
        distinct = sorted({*chain.from_iterable(split)})
        encoded = (ids[:-1] or [vocabulary.unk_id] for ids in vocabulary.encode(distinct))
        ids, sentences = dict(zip(distinct, encoded, strict=True)), []
        for line in split:
            words = [ids[word] for word in line]
            tokens = [BOS_ID, *chain.from_iterable(words), EOS_ID]
            sentences.append(Labelled(tokens, [(place, 0) for place in self.positions(words)]))
        return sentences


class Tagging(Classification):
    """The task of sentences with a tag per word: `train.txt` beside `train.tags`, or trees."""

    model = "a tagger"
    largest_shape = EncoderTask.largest_shape

    def positions(self, words: Sequence[Sequence[int]]) -> list[int]:
        """Return the position of each word's first subword (Devlin et al. 2019, section 5.3)."""
        return list(accumulate(map(len, words), initial=1))[:-1]

    def labels_of(self, target: str) -> list[str]:
        """Return the tags of a line of the corpus, one for each word."""
        return target.split()


class ImageClassification(Labelling):
    """The task of images with one label each; see `data.images`."""

    model = "a classifier of images"
    inputs = "images"

    def largest_shape(self, config: Config) -> BatchShape:
        """Return the shape for images of one size, with a label each; see `Task.largest_shape`."""
        length = config.model.num_positions
        rung = ladder_length(length)
        shape = batch_shape(config.data, rung, rung)
        return shape._replace(source_length=length, target_length=1)

    def vocabulary(
        self, config: Config, corpus: Corpus, given: Vocabulary | None = None
    ) -> Vocabulary:
        """Make a vocabulary of the labels of train; see `Task.vocabulary`."""
        return labelled_vocabulary(None, self.label_names(corpus))

    def examples(
        self, config: Config, corpus: Corpus, vocabulary: Vocabulary, split: str, longest: float
    ) -> LabelledText:
        """Return the images of a split; see `Task.examples`."""
        images, labels = corpus.lines(split)
        numbers = _numbers(vocabulary)
        known = [numbers.get(label, -1) for label in labels]
        return labelled.labelled_images(images, known, config.model)

    def unlabelled(self, translator: Translator, inputs: Sequence[Any], first: int) -> LabelledText:
        """Return examples for arrays `[height, width, channels]` or `[height, width]`."""
        return labelled.labelled_images(inputs, [0] * len(inputs), translator.config.model, first)


class MaskedLanguageModelling(EncoderTask):
    """The task of documents of one language with hidden subwords; see `MaskedText`."""

    model = "a masked language model"
    inputs = "documents"
    unit = "hidden subword"
    measures = (
        task.Measure("accuracy", "accuracy"),
        task.Measure("masked_nll", "NLL of what is hidden"),
    )
    grid = task.GridMeasures(measures[0], whole_split=False)

    def largest_shape(self, config: Config) -> BatchShape:
        """Return the shape for sequences and their hidden subwords; see `Task.largest_shape`."""
        return labelled.masked_shape(super().largest_shape(config), config.data.masked_share)

    def vocabulary(
        self, config: Config, corpus: Corpus, given: Vocabulary | None = None
    ) -> Vocabulary:
        """Make a vocabulary of the documents, with the entry `<mask>` that hides a subword."""
        vocabulary = given or tokenized.prepare_vocabulary(config.data, corpus, needed=MASK)
        labelled.mask_id(vocabulary)
        return vocabulary

    def training_examples(self, config: Config, corpus: Corpus, vocabulary: Vocabulary) -> Examples:
        """Return the sequences of train, in which each step hides other subwords."""
        text = tokenized.prepare_text(config.data, corpus, vocabulary, "train", bidirectional=True)
        return self.train_text(config, vocabulary).examples(text)

    def train_text(self, config: Config, vocabulary: Vocabulary) -> TrainText:
        """Return how documents become sequences; see `Task.train_text`."""
        seed = config.training.effective_seed("order_seed")
        masked = partial(MaskedText.of, data=config.data, vocabulary=vocabulary, seed=seed)
        return document_text(config.data, vocabulary, masked, begin=True)

    def examples(
        self, config: Config, corpus: Corpus, vocabulary: Vocabulary, split: str, longest: float
    ) -> MaskedText:
        """Return the sequences of a split, in which the same subwords are hidden every time."""
        text = tokenized.prepare_text(config.data, corpus, vocabulary, split, bidirectional=True)
        return MaskedText.of(text, config.data, vocabulary)

    def unlabelled(self, translator: Translator, inputs: Sequence[str], first: int) -> LabelledText:
        """Return examples that predict the subwords which lines hide."""
        vocabulary, sentences = translator.vocabulary, []
        mask = labelled.mask_id(vocabulary)
        for number, ids in enumerate(translator.encode(inputs), first):
            tokens = [BOS_ID, *labelled.with_masks(vocabulary, mask, ids)]
            check_one_pass(f"line {number}", len(tokens), translator.longest_sentence)
            hidden = [(position, 0) for position, token in enumerate(tokens) if token == mask]
            sentences.append(Labelled(tokens, hidden))
        return LabelledText.of(sentences, {})

    def scored(self, asked: task.Scoring) -> task.Scored:
        """Score the predictions of hidden subwords of a split; its documents are not shown."""
        translator, corpus, split = asked[:3]
        config, vocabulary = translator.config, translator.vocabulary
        examples = self.examples(config, corpus, vocabulary, split, translator.longest_sentence)
        right = np.concatenate([x.labels == x.targets for x in predictions(translator, examples)])
        scores = MaskedScores(100 * float(right.mean()), len(right), asked.loss().nll)
        return task.Scored(scores, [], [], [])

    def lines(
        self, translator: Translator, inputs: Sequence[str], first: int = 1, shares: bool = False
    ) -> list[str]:
        """Fill in every `<mask>` of the lines, each with the most probable subword in its place."""
        examples = self.unlabelled(translator, inputs, first)
        mask, rows = labelled.mask_id(translator.vocabulary), examples.sentences
        for row, (_, labels, _) in zip(rows, predictions(translator, examples), strict=True):
            row[row == mask] = np.where(labels == EOS_ID, mask, labels)  # an end would end the text
        return translator.vocabulary.decode([row[1:].tolist() for row in rows])


CLASSIFICATION: task.Task = Classification()
"""The task of classifying sentences."""
TAGGING: task.Task = Tagging()
"""The task of tagging words."""
IMAGES: task.Task = ImageClassification()
"""The task of classifying images."""
MASKED: task.Task = MaskedLanguageModelling()
"""The task of masked language modelling."""


def _numbers(vocabulary: Vocabulary) -> dict[str, int]:
    """Return the number of each label of train."""
    [names] = vocabulary.target_pieces([range(len(vocabulary))])
    return {name: number for number, name in enumerate(names)}


def _without_labels(corpus: Corpus) -> Corpus:
    """Return the corpus without the labels of train, from which a vocabulary can be learned."""
    train = corpus.parts["train"]
    text = splits.Split(
        lambda: splits.digest("sentences", train.fingerprint()),
        lambda: (([""] * len(lines), lines) for lines, _ in train.read()),
    )
    return dataclasses.replace(corpus, parts={**corpus.parts, "train": text}, mixed=())


def predictions(translator: Translator, examples: Examples) -> list[Prediction]:
    """Predict the most probable label of every target of some examples."""
    translator.check_process()
    results = [Prediction(*np.zeros((3, 0), np.int32))] * len(examples)
    if not len(examples.target_tokens):
        return results
    program = partial(_most_probable, translator.model, translator.params)
    with devices.within_memory(decoding=True):
        for chosen, targets, out in computed_batches(translator, examples, program):
            arrays = targets.tokens, *(np.reshape(x, targets.tokens.shape) for x in out)
            for example, row, segment in zip(*chosen, strict=True):
                is_target = targets.segments[row] == segment
                results[example] = Prediction(*(x[row][is_target] for x in arrays))
    return results


@partial(interceptors.InterceptedJit, static_argnums=0)
def _most_probable(
    model: decoding_model.ScoringModel, params: parameters.Parameters, batch: Batch
) -> tuple[Int32[Array, "passes rows t"], Float32[Array, "passes rows t"]]:
    """Return the most probable label at every target of a batch, and its probability."""

    def one_pass(rows: Batch) -> tuple[Array, Array]:
        logits = model.logits(params, rows).astype(jnp.float32)
        best = logits.argmax(-1).astype(jnp.int32)
        return best, jnp.exp(logits.max(-1) - jax.nn.logsumexp(logits, -1))

    return jax.lax.map(one_pass, batch)
