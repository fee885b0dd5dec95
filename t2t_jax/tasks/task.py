"""The interface of a task to the rest of the program, and the records that its methods return."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, field
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float64, Int64

from t2t_jax import paper
from t2t_jax.config import Config, DataConfig, DecodingConfig
from t2t_jax.data.corpus import Corpus
from t2t_jax.data.layout import batch_shape, length_ladder
from t2t_jax.data.rows import BatchShape, Examples
from t2t_jax.data.splits import Chunk
from t2t_jax.data.tokenized import TrainText, prepare_vocabulary
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.system.records import Record

if TYPE_CHECKING:
    from t2t_jax.decoding.translator import Translator


@runtime_checkable
class TaskScores(Protocol):
    """The scores of a corpus: a dataclass of plain values, whose fields `scores.jsonl` keeps.

    Its `str` is one line for the log, with the definition of the scores.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[object]]]

    @property
    def best(self) -> float:
        """Return the score that chooses the best checkpoint; higher is better."""


class CorpusLoss(NamedTuple):
    """Losses of a split, in nats per target subword."""

    smoothed: float
    """The label-smoothed loss, which training minimises."""
    nll: float
    """The negative log-likelihood."""
    tokens: int
    """Number of target subwords that both losses are means over, ends of sentences included."""
    sentence_nll: Float64[np.ndarray, " sentences"] | None = None
    """The negative log-likelihood of each target, summed over its subwords, in the order of the
    split; None if the examples of the task are not the sentences of the split."""
    sentence_tokens: Int64[np.ndarray, " sentences"] | None = None
    """Number of target subwords that each of `sentence_nll` is a sum over."""


class Scoring(NamedTuple):
    """A model and the sentences on which it is to be scored."""

    translator: "Translator"
    corpus: Corpus
    split: str
    """The name of the split that has the sentences."""
    loss: Callable[[], CorpusLoss]
    """A function that returns the losses over `Task.examples` of the split."""
    num_sentences: int | None
    """How many sentences to score, from the first on; None means all."""
    seed: int
    """The seed of sampling."""
    decoding: DecodingConfig
    """The settings of the search."""

    @property
    def lines(self) -> Chunk:
        """Return the inputs and the targets that are to be scored, as the corpus has them."""
        inputs, targets = self.corpus.lines(self.split)
        return inputs[: self.num_sentences], targets[: self.num_sentences]


class Scored(NamedTuple):
    """A model's answers to the sentences of a split, with their scores, ready to be shown."""

    scores: TaskScores
    """The scores of all sentences together."""
    sources: list[str]
    """The sentences that were decoded, as the corpus has them."""
    hypotheses: list[str]
    """The model's answer to each sentence, as a user reads it."""
    references: list[str]
    """The right answer to each sentence, in the same form."""


class Measure(NamedTuple):
    """A score that the report on a run has a column for."""

    field: str
    """The score's field in the records of `scores.jsonl`."""
    name: str
    """The score's name in the report."""
    signature_field: str | None = None
    """The field with the definition of the score, which the report prints; None for no such field.
    """


class GridMeasures(NamedTuple):
    """The scores on dev by which the variants of a grid are compared."""

    score: Measure
    """The score that decides whether a variant differs."""
    beside: Measure | None = None
    """Another score, which is only shown; None for no such score."""
    bootstrap: bool = False
    """Whether the score is BLEU, whose chance differences are estimated by resampling sentences."""
    whole_split: bool = True
    """Whether hypotheses and references are those of the whole split, and not samples of it."""


class Compared(NamedTuple):
    """The comparison of a statement of the paper with the same property of a run."""

    deviates: bool
    """Whether the run differs from the statement of the paper."""
    name: str
    """The name of the property that is compared."""
    section: str
    """The section of the paper with the statement."""
    published: str
    """The paper's value, as it is shown."""
    ours: str
    """The run's value, as it is shown; empty if it is not known."""


@dataclass(frozen=True)
class PublishedExperiment:
    """The experiment of the paper with which the report on a run compares the run."""

    name: str
    """The experiment's name in `paper.EXPERIMENTS`, which has its settings."""
    model: str
    """The model's name in `paper.TRAINING`, which has the cost of training; another name if the
    paper states no cost."""
    figures: list[str]
    """Sentences on the figures that the paper reports, and their measures."""
    section: str | None = None
    """The section with the settings and the test sets; None if each setting has its own section in
    `paper.CONSTANTS`, and test sets are in section 6."""
    test_sets: Mapping[str, str] = field(default_factory=dict)
    """The paper's test sets by split: dev and test."""
    comparable: frozenset[str] = frozenset()
    """The reported names of test sets that count as the paper's. Empty if the corpus is not the
    paper's, so that its test sets are no deviations of their own."""
    changes_on_dev: Mapping[str, object] = field(default_factory=dict)
    """Settings, by attribute of `Config`, that the paper changes where it scores on dev alone."""
    unchecked: Mapping[str, str] = field(default_factory=dict)
    """Sentences, by the name of a constant of the paper, which say that a config does not tell
    whether the run has that constant."""

    @property
    def settings(self) -> dict[str, object]:
        """Return the paper's settings in this experiment, by attribute of `Config`."""
        return paper.BASE_SETTINGS | paper.EXPERIMENTS[self.name]


def beside_base_model(config: Config, corpus_has: str, paper_has_not: str) -> PublishedExperiment:
    """Return the paper's base model for comparison with a run of a task that the paper lacks.

    Args:
      corpus_has: a predicate on the corpus, such as "has labels".
      paper_has_not: a predicate on the paper, such as "predicts no labels".
    """
    return PublishedExperiment(
        name="base, English-German",
        model="base",
        unchecked={"data": f"{config.data.corpus} {corpus_has}."},
        figures=[f"The paper {paper_has_not}; its base model is shown beside the run."],
    )


def longest_rows(data: DataConfig, *, has_sources: bool = True) -> BatchShape:
    """Return the shape of a batch of text whose rows have the largest `data.max_length`.

    Args:
      has_sources: whether there are sources, which are as long as targets.
    """
    longest = length_ladder(data.max_length)[-1]
    return batch_shape(data, longest * has_sources, longest)


def predicted_by(task: "Task") -> str:
    """Return the name, in the plural, of the units in which the speed of training is reported."""
    return "target tokens" if task.unit == "subword" else f"{task.unit}s"


@runtime_checkable
class Task(Protocol):
    """A task that models are trained for, which a module of `tasks` has as its `TASK`.

    A class that inherits from it has the methods that are written out here.

    The facts that are needed before the module is imported are in `config.tasks.TASKS`.
    """

    model: ClassVar[str]
    """A noun for a model of this task, with its article: "a tagger"."""
    inputs: ClassVar[str]
    """The name of a model's inputs: sentences, documents or images."""
    unit: ClassVar[str]
    """The unit that losses and perplexities are means over, such as "subword"."""
    searches: ClassVar[bool]
    """Whether scores are of outputs of a search, and so depend on its settings."""
    grid: ClassVar[GridMeasures]
    """The scores, beside perplexity, by which the variants of a grid are compared."""
    measures: ClassVar[tuple[Measure, ...]]
    """The scores that the report on a run shows, in the order of its columns."""
    across_scripts: ClassVar[bool] = False
    """Whether a subword of the vocabulary may have both letters and punctuation. By default, words
    and the punctuation after them are separate subwords."""

    def largest_shape(self, config: Config) -> BatchShape:
        """Return the shape of a batch with rows of the largest length, one example in each."""
        return longest_rows(config.data)

    def vocabulary(
        self, config: Config, corpus: Corpus, given: Vocabulary | None = None
    ) -> Vocabulary:
        """Make the vocabulary of a new run: one for sources and targets (section 5.1).

        Args:
          given: the vocabulary of the run that this one starts from (`training.init_from`), if any.
        """
        if given is not None:
            return given
        return prepare_vocabulary(config.data, corpus, across_scripts=self.across_scripts)

    def training_examples(self, config: Config, corpus: Corpus, vocabulary: Vocabulary) -> Examples:
        """Return the examples that a model is trained on."""

    def train_text(self, config: Config, vocabulary: Vocabulary) -> TrainText | None:
        """Return how the text of shards becomes examples; None if the task reads no shards."""
        return None

    def examples(
        self, config: Config, corpus: Corpus, vocabulary: Vocabulary, split: str, longest: float
    ) -> Examples:
        """Return the examples of a split over which a model's losses are taken.

        Args:
          longest: the most tokens of a sentence that the model has positions for.
        """

    def scored(self, asked: Scoring) -> Scored:
        """Let a model answer the sentences of a split, and score its answers."""

    def score_rows(self, record: Record) -> Iterable[tuple[str, str, str]]:
        """Yield the rows of a table of scores: name, formatted value and definition of each."""

    def experiment(self, config: Config) -> PublishedExperiment:
        """Return the experiment of the paper with which a run with this config is compared."""

    def kind_of_measure(self, records: Sequence[Record]) -> Compared | None:
        """Compare the kind of a run's measure with the paper's; None if there is one kind."""
        return None
