"""The tasks of encoder-only networks: classification, tagging and masked language modeling."""

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
from t2t_jax.data.layout import batch_shape, bucket_length
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
    """The predictions for an example, in the order of its targets."""

    targets: Int32[np.ndarray, " n"]
    """The ids of the correct labels."""
    labels: Int32[np.ndarray, " n"]
    """The ids of the most probable labels."""
    probabilities: Float32[np.ndarray, " n"]
    """The probability of each of `labels` under the model."""


@dataclass(frozen=True)
class LabelScores:
    """The accuracy of predicted labels."""

    accuracy: float
    """The percentage of correct labels."""
    num_labels: int
    """The number of predicted labels."""

    @property
    def best(self) -> float:
        """Return the score that chooses the best checkpoint; higher is better."""
        return self.accuracy

    def __str__(self) -> str:
        """Return the scores as one line for the log."""
        return f"accuracy {self.accuracy:.2f}, mean of {self.num_labels:,}"


@dataclass(frozen=True)
class MaskedScores(LabelScores):
    """The scores of a model on the masked subwords of a split."""

    masked_nll: float
    """The mean negative log-likelihood of the masked subwords, in nats."""

    @property
    def best(self) -> float:
        """Return the score that chooses the best checkpoint; higher is better."""
        return -self.masked_nll


class EncoderTask(task.Task):
    """Base class of tasks whose models label each input in one forward pass."""

    searches = False

    @abstractmethod
    def unlabelled(self, translator: Translator, inputs: Sequence[Any], first: int) -> LabelledText:
        """Make examples of sentences or images without labels, for prediction.

        Args:
          first: the number of the first input in error messages.
        """

    def score_rows(self, record: Record) -> Iterable[tuple[str, str, str]]:
        """Yield the table row of the accuracy: name, formatted value and definition."""
        definition = f"percent of {record['num_labels']:,} {self.unit}s"
        yield "accuracy", f"{record['accuracy']:.2f}", definition

    def experiment(self, config: Config) -> task.PublishedExperiment:
        """Return the base model to compare with, because the paper has no encoder-only models."""
        return task.beside_base_model(config, "has labels or hides words", "predicts no labels")


class Labelling(EncoderTask):
    """Base class of tasks whose models label sentences, words or images."""

    inputs = "sentences"
    unit = "label"
    measures = (task.Measure("accuracy", "accuracy"),)
    grid = task.GridMeasures(measures[0])

    def training_examples(self, config: Config, corpus: Corpus, vocabulary: Vocabulary) -> Examples:
        """Return the labeled examples of the train split."""
        return self.examples(config, corpus, vocabulary, "train", config.model.longest_sentence)

    def lines(
        self, translator: Translator, inputs: Sequence[Any], first: int = 1, with_prob: bool = False
    ) -> list[str]:
        """Predict the labels of each input, as a line of labels separated by spaces.

        Args:
          inputs: lines of text, or images.
          first: the number of the first input in error messages.
          with_prob: append the probability to each label, as in NN:0.98.
        """
        results = predictions(translator, self.unlabelled(translator, inputs, first))
        labels = translator.vocabulary.target_pieces([x.labels.tolist() for x in results])
        if with_prob:
            suffixes = ([f":{probability:.4f}" for probability in x.probabilities] for x in results)
            labels = [list(map(str.__add__, *pair)) for pair in zip(labels, suffixes, strict=True)]
        return list(map(" ".join, labels))

    def scored(self, request: task.Scoring) -> task.Scored:
        """Predict labels for a split, and compare them with the labels of the corpus."""
        inputs, targets = request.lines
        lines = self.lines(request.translator, inputs)
        is_correct = [
            label == gold
            for line, target in zip(lines, targets, strict=True)
            for label, gold in zip(self.labels_of(line), self.labels_of(target), strict=False)
        ]
        scores = LabelScores(100 * sum(is_correct) / max(1, len(is_correct)), len(is_correct))
        sources = [x if isinstance(x, str) else f"image {n}" for n, x in enumerate(inputs, 1)]
        return task.Scored(scores, sources, lines, targets)

    def labels_of(self, target: str) -> list[str]:
        """Return the labels in a target line of the corpus."""
        return [target.strip()] if target.strip() else []

    def label_names(self, corpus: Corpus) -> list[str]:
        """List the labels of the train split in alphabetical order."""
        targets = chain.from_iterable(targets for _, targets in corpus.pairs("train"))
        names = sorted({*chain.from_iterable(map(self.labels_of, targets))})
        if not names:
            raise UserError(f"the train split of {corpus.name} has no labels")
        return names


class Classification(Labelling):
    """The task of predicting one label per sentence (`train.txt` and `train.label`)."""

    model = "a classifier of sentences"

    def largest_shape(self, config: Config) -> BatchShape:
        """Return the shape of a batch of maximal length, with one label per row."""
        return super().largest_shape(config)._replace(target_length=1)

    def positions(self, words: Sequence[Sequence[int]]) -> list[int]:
        """Return the positions that predict the labels of a sentence: 0, the position of `<s>`.

        Args:
          words: the token ids of each word; [] for a blank sentence.
        """
        return [0] if words else []

    def vocabulary(
        self, config: Config, corpus: Corpus, inherited: Vocabulary | None = None
    ) -> Vocabulary:
        """Make a vocabulary of the labels in train, and of subwords unless `inherited` has them."""
        names = self.label_names(corpus)
        source = inherited.source if isinstance(inherited, LabelledVocabulary) else inherited
        source = source or tokenized.prepare_vocabulary(config.data, _without_labels(corpus))
        return labelled_vocabulary(source, names)

    def examples(
        self, config: Config, corpus: Corpus, vocabulary: Vocabulary, split: str, longest: float
    ) -> LabelledText:
        """Return the labeled sentences of a split. In train, omit blank and long sentences.

        Args:
          longest: the maximal number of tokens that the model reads.
        """
        label_ids, skipped, sentences = _label_ids(vocabulary), Counter[str](), []
        inputs, target_lines = corpus.lines(split)
        lines = zip(self._sentences(vocabulary, inputs), target_lines, strict=True)
        for line_number, (sentence, target) in enumerate(lines, 1):
            name = f"line {line_number} in the {split} split of {corpus.name}"
            num_labels, length = len(sentence.labels), len(sentence.tokens)
            labels = self.labels_of(target) if num_labels else []
            if len(labels) != num_labels:
                raise UserError(
                    f"{name} needs {num_labels} label(s) and has {len(labels)}; give a tagger one "
                    "label per word, and a classifier one label per sentence"
                )
            if split == "train" and (not num_labels or length > config.data.max_length):
                skipped["too_long" if num_labels else "empty_source"] += 1
                continue
            check_one_pass(name, length, longest)
            pairs = zip(sentence.labels, labels, strict=True)
            targets = [(p, label_ids[label]) for (p, _), label in pairs if label in label_ids]
            sentences.append(sentence._replace(labels=targets))
        return LabelledText.of(sentences, skipped)

    def unlabelled(self, translator: Translator, inputs: Sequence[str], first: int) -> LabelledText:
        """Make examples of sentences without labels. Errors number the sentences from `first`."""
        sentences = self._sentences(translator.vocabulary, inputs)
        for number, sentence in enumerate(sentences, first):
            check_one_pass(f"line {number}", len(sentence.tokens), translator.longest_sentence)
        return LabelledText.of(sentences, {})

    def _sentences(self, vocabulary: Vocabulary, lines: Sequence[str]) -> list[Labelled]:
        # Label 0 is a placeholder at each position that predicts a label.
        split_lines = [line.split() for line in lines]
        unique_words = sorted({*chain.from_iterable(split_lines)})
        encodings = (ids[:-1] or [vocabulary.unk_id] for ids in vocabulary.encode(unique_words))
        word_ids, sentences = dict(zip(unique_words, encodings, strict=True)), []
        for line in split_lines:
            words = [word_ids[word] for word in line]
            tokens = [BOS_ID, *chain.from_iterable(words), EOS_ID]
            sentences.append(Labelled(tokens, [(p, 0) for p in self.positions(words)]))
        return sentences


class Tagging(Classification):
    """The task of predicting one tag per word (`train.txt` and `train.tags`, or trees)."""

    model = "a tagger"
    largest_shape = EncoderTask.largest_shape

    def positions(self, words: Sequence[Sequence[int]]) -> list[int]:
        """Return the position of the first subword of each word (BERT, section 5.3)."""
        return list(accumulate(map(len, words), initial=1))[:-1]

    def labels_of(self, target: str) -> list[str]:
        """Split a target line of the corpus into tags."""
        return target.split()


class ImageClassification(Labelling):
    """The task of predicting one label per image."""

    model = "a classifier of images"
    inputs = "images"

    def largest_shape(self, config: Config) -> BatchShape:
        """Return the shape of a full batch of images, with one label per image."""
        length = config.model.num_positions
        bucket = bucket_length(length)
        shape = batch_shape(config.data, bucket, bucket)
        return shape._replace(source_length=length, target_length=1)

    def vocabulary(
        self, config: Config, corpus: Corpus, inherited: Vocabulary | None = None
    ) -> Vocabulary:
        """Make a vocabulary of the labels in the train split; `inherited` has no effect."""
        return labelled_vocabulary(None, self.label_names(corpus))

    def examples(
        self, config: Config, corpus: Corpus, vocabulary: Vocabulary, split: str, longest: float
    ) -> LabelledText:
        """Return the labeled images of a split; `longest` has no effect."""
        images, labels = corpus.lines(split)
        ids_by_label = _label_ids(vocabulary)
        label_ids = [ids_by_label.get(label, -1) for label in labels]
        return labelled.labelled_images(images, label_ids, config.model)

    def unlabelled(self, translator: Translator, inputs: Sequence[Any], first: int) -> LabelledText:
        """Make examples of uint8 images without labels; errors count images from `first`."""
        return labelled.labelled_images(inputs, [0] * len(inputs), translator.config.model, first)


class MaskedLanguageModelling(EncoderTask):
    """The task of predicting masked subwords of documents; see `MaskedText`."""

    model = "a masked language model"
    inputs = "documents"
    unit = "hidden subword"
    measures = (
        task.Measure("accuracy", "accuracy"),
        task.Measure("masked_nll", "NLL of what is hidden"),  # as in saved files
    )
    grid = task.GridMeasures(measures[0], whole_split=False)

    def largest_shape(self, config: Config) -> BatchShape:
        """Return the shape of a batch of maximal length, with masked targets."""
        return labelled.masked_shape(super().largest_shape(config), config.data.masked_share)

    def vocabulary(
        self, config: Config, corpus: Corpus, inherited: Vocabulary | None = None
    ) -> Vocabulary:
        """Return `inherited`, or make a vocabulary of the documents, with an entry `<mask>`."""
        vocabulary = inherited or tokenized.prepare_vocabulary(config.data, corpus, required=MASK)
        labelled.mask_id(vocabulary)
        return vocabulary

    def training_examples(self, config: Config, corpus: Corpus, vocabulary: Vocabulary) -> Examples:
        """Return the token sequences of train, in which each step masks different subwords."""
        text = tokenized.prepare_text(config.data, corpus, vocabulary, "train", bidirectional=True)
        return self.train_text(config, vocabulary).examples(text)

    def train_text(self, config: Config, vocabulary: Vocabulary) -> TrainText:
        """Return the rules that turn documents of shards into token sequences with masks."""
        seed = config.training.effective_seed("order_seed")
        examples = partial(MaskedText.of, data=config.data, vocabulary=vocabulary, seed=seed)
        return document_text(config.data, vocabulary, examples, bos=True)

    def examples(
        self, config: Config, corpus: Corpus, vocabulary: Vocabulary, split: str, longest: float
    ) -> MaskedText:
        """Return a split's token sequences with fixed masked subwords; `longest` has no effect."""
        text = tokenized.prepare_text(config.data, corpus, vocabulary, split, bidirectional=True)
        return MaskedText.of(text, config.data, vocabulary)

    def unlabelled(self, translator: Translator, inputs: Sequence[str], first: int) -> LabelledText:
        """Make examples of lines, with a target per `<mask>`; errors count lines from `first`."""
        vocabulary, sentences = translator.vocabulary, []
        mask_id = labelled.mask_id(vocabulary)
        for number, ids in enumerate(translator.encode(inputs), first):
            tokens = [BOS_ID, *labelled.with_masks(vocabulary, mask_id, ids)]
            check_one_pass(f"line {number}", len(tokens), translator.longest_sentence)
            labels = [(position, 0) for position, token in enumerate(tokens) if token == mask_id]
            sentences.append(Labelled(tokens, labels))
        return LabelledText.of(sentences, {})

    def scored(self, request: task.Scoring) -> task.Scored:
        """Score the predictions of masked subwords of a split, without example outputs."""
        translator, corpus, split = request[:3]
        config, vocabulary = translator.config, translator.vocabulary
        examples = self.examples(config, corpus, vocabulary, split, translator.longest_sentence)
        correct = np.concatenate([p.labels == p.targets for p in predictions(translator, examples)])
        scores = MaskedScores(100 * float(correct.mean()), len(correct), request.loss().nll)
        return task.Scored(scores, [], [], [])

    def lines(
        self, translator: Translator, inputs: Sequence[str], first: int = 1, with_prob: bool = False
    ) -> list[str]:
        """Replace every `<mask>` by the most probable subword; errors count lines from `first`."""
        examples = self.unlabelled(translator, inputs, first)
        mask, token_rows = labelled.mask_id(translator.vocabulary), examples.sentences
        for row, (_, labels, _) in zip(token_rows, predictions(translator, examples), strict=True):
            row[row == mask] = np.where(labels == EOS_ID, mask, labels)  # </s> would cut the text
        return translator.vocabulary.decode([row[1:].tolist() for row in token_rows])


CLASSIFICATION: task.Task = Classification()
"""The task of sentence classification."""
TAGGING: task.Task = Tagging()
"""The task of tagging words."""
IMAGES: task.Task = ImageClassification()
"""The task of image classification."""
MASKED: task.Task = MaskedLanguageModelling()
"""The task of masked language modeling."""


def _label_ids(vocabulary: Vocabulary) -> dict[str, int]:
    [names] = vocabulary.target_pieces([range(len(vocabulary))])
    return {name: label_id for label_id, name in enumerate(names)}


def _without_labels(corpus: Corpus) -> Corpus:
    train = corpus.parts["train"]
    text = splits.Split(
        lambda: splits.digest("sentences", train.fingerprint()),
        lambda: (([""] * len(lines), lines) for lines, _ in train.read()),
    )
    return dataclasses.replace(corpus, parts={**corpus.parts, "train": text}, components=())


def predictions(translator: Translator, examples: Examples) -> list[Prediction]:
    """Predict the most probable label for every target of each example."""
    translator.check_process()
    results = [Prediction(*np.zeros((3, 0), np.int32))] * len(examples)
    if not len(examples.target_tokens):
        return results
    program = partial(_most_probable, translator.model, translator.params)
    with devices.within_memory(decoding=True):
        for placement, targets, outputs in computed_batches(translator, examples, program):
            arrays = targets.tokens, *(np.reshape(x, targets.tokens.shape) for x in outputs)
            for example_index, row, segment in zip(*placement, strict=True):
                is_target = targets.segments[row] == segment
                results[example_index] = Prediction(*(x[row][is_target] for x in arrays))
    return results


@partial(interceptors.InterceptedJit, static_argnums=0)
def _most_probable(
    model: decoding_model.ScoringModel, params: parameters.Parameters, batch: Batch
) -> tuple[Int32[Array, "passes rows t"], Float32[Array, "passes rows t"]]:

    def one_pass(rows: Batch) -> tuple[Array, Array]:
        logits = model.logits(params, rows).astype(jnp.float32)
        label_ids = logits.argmax(-1).astype(jnp.int32)
        return label_ids, jnp.exp(logits.max(-1) - jax.nn.logsumexp(logits, -1))

    return jax.lax.map(one_pass, batch)
