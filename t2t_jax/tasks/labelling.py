"""The common part of the tasks whose models predict labels of words, sentences or images."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, groupby
from operator import itemgetter
from typing import Any, ClassVar, NamedTuple

from t2t_jax.config import Config
from t2t_jax.data.corpus import Corpus
from t2t_jax.data.rows import Examples
from t2t_jax.data.vocabularies.labelled import LabelledVocabulary
from t2t_jax.decoding.predictions import predictions
from t2t_jax.decoding.translator import Translator
from t2t_jax.errors import UserError
from t2t_jax.system.records import Record
from t2t_jax.tasks.measures.labels import f1_of_labels, label_scores
from t2t_jax.tasks.task import (
    GridMeasures,
    Measure,
    PublishedExperiment,
    Scored,
    Scoring,
    Task,
    beside_base_model,
)

_NUM_SHOWN = 6  # labels that another was taken for, in a table of scores


class Label(NamedTuple):
    """A label that a model predicts."""

    name: str
    """The name of the label."""
    probability: float
    """The probability of the label under the model."""


class Labelling(Task):
    """The part of a `Task` that is common to labels of words, sentences and images."""

    inputs = "sentences"
    unit = "label"
    searches = False
    measures = (Measure("accuracy", "accuracy"), Measure("macro_f1", "macro F1"))
    grid = GridMeasures(*measures)
    what: ClassVar[str]
    """The name of the things that are labelled, in the plural."""

    @abstractmethod
    def unlabelled(
        self,
        config: Config,
        vocabulary: LabelledVocabulary,
        inputs: Sequence[Any],
        numbers: Iterable[int],
    ) -> Examples:
        """Return examples for inputs without known labels, which a model can predict.

        Args:
          inputs: sentences or images, none of which is blank.
          numbers: the number of each input, by which errors name it.
        """

    def predicted(
        self, translator: Translator, inputs: Sequence[Any], first: int = 1
    ) -> list[list[Label]]:
        """Predict the labels of each input; a blank sentence has none."""
        vocabulary = translator.vocabulary
        assert isinstance(vocabulary, LabelledVocabulary)
        kept = [n for n, one in enumerate(inputs) if not isinstance(one, str) or one.strip()]
        chosen, numbers = [inputs[n] for n in kept], [first + n for n in kept]
        examples = self.unlabelled(translator.config, vocabulary, chosen, numbers)
        found: list[list[Label]] = [[] for _ in inputs]
        for n, (labels, probabilities, _) in zip(
            kept, predictions(translator, examples), strict=True
        ):
            names = (vocabulary.labels[label] for label in labels)
            found[n] = list(map(Label, names, probabilities.tolist()))
        return found

    def lines(
        self, translator: Translator, inputs: Sequence[Any], first: int, probabilities: bool
    ) -> list[str]:
        """Predict the labels of each input, as a line of text; see `Predicting.lines`."""
        shown = "{0.name}:{0.probability:.4f}" if probabilities else "{0.name}"
        found = self.predicted(translator, inputs, first)
        return [" ".join(map(shown.format, labels)) for labels in found]

    def scored(self, asked: Scoring) -> Scored:
        """Label the inputs of a split, and compare the labels with those of the corpus."""
        inputs, targets = asked.lines
        labels = [[label.name for label in one] for one in self.predicted(asked.translator, inputs)]
        gold = [
            self.labels_of(target) if one else []
            for target, one in zip(targets, labels, strict=True)
        ]
        scores = label_scores(list(chain(*gold)), list(chain(*labels)))
        shown = [one if isinstance(one, str) else f"image {n}" for n, one in enumerate(inputs, 1)]
        return Scored(scores, shown, [" ".join(one) for one in labels], targets)

    def labels_of(self, target: str) -> list[str]:
        """Return the labels of a line of the corpus."""
        return [target.strip()] if target.strip() else []

    def score_rows(self, record: Record) -> Iterable[tuple[str, str, str]]:
        """Yield rows of accuracy, macro F1, and the F1 and predictions of each label."""
        number = f"percent of {record['num_labels']:,} labels of {self.what}"
        yield "accuracy", f"{record['accuracy']:.2f}", number
        yield "macro F1", f"{record['macro_f1']:.2f}", "percent, mean of the F1 of each label"
        f1 = f1_of_labels(record["confusion"])
        for gold, group in groupby(record["confusion"], key=itemgetter(0)):
            taken = [f"{predicted} {number:,}" for _, predicted, number in group]
            more = f" and {len(taken) - _NUM_SHOWN} others" * (len(taken) > _NUM_SHOWN)
            yield gold, f"{f1[gold]:.2f}", f"F1; predicted: {', '.join(taken[:_NUM_SHOWN])}{more}"

    def experiment(self, config: Config) -> PublishedExperiment:
        """Return the base model on English-German, as the paper predicts no labels."""
        return beside_base_model(config, "has labels", "predicts no labels")


def labels_in(corpus: Corpus, of_line: Callable[[str], list[str]]) -> list[str]:
    """List the labels of the train split in alphabetical order.

    Raises:
      UserError: the split has no labels.
    """
    found: set[str] = set()
    for _, targets in corpus.pairs("train"):
        found.update(chain.from_iterable(map(of_line, targets)))
    found.discard("")
    if not found:
        raise UserError(f"the train split of {corpus.name} has no labels")
    return sorted(found)


def nothing_to_score(corpus: Corpus, split: str) -> UserError:
    """Make the error for a split none of whose labels occurs in the train split."""
    return UserError(
        f"the {split} split of {corpus.name} has no label that its train split has, so there is "
        "nothing to score; check its labels, or remove it"
    )
