"""The `Task` interface, and the records that its methods take and return."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, field
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float64, Int64

from t2t_jax import paper
from t2t_jax.config import Config, DataConfig, DecodingConfig
from t2t_jax.data.corpus import Corpus
from t2t_jax.data.layout import batch_shape, bucket_lengths
from t2t_jax.data.rows import BatchShape, Examples
from t2t_jax.data.splits import Chunk
from t2t_jax.data.tokenized import TrainText, prepare_vocabulary
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.system.records import Record

if TYPE_CHECKING:
    from t2t_jax.decoding.translator import Translator


@runtime_checkable
class TaskScores(Protocol):
    """The scores of a corpus: a dataclass of plain values, whose fields go to `scores.jsonl`.

    `str(scores)` is one line for the log, with the definition of the scores.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[object]]]

    @property
    def best(self) -> float:
        """Return the score that selects the best checkpoint; higher is better."""


class CorpusLoss(NamedTuple):
    """Losses of a split, in nats per target subword."""

    smoothed: float
    """The label-smoothed loss, which training minimizes."""
    nll: float
    """The negative log-likelihood."""
    tokens: int
    """Number of target subwords in both means, including end-of-sentence tokens."""
    sentence_nll: Float64[np.ndarray, " sentences"] | None = None
    """The summed negative log-likelihood of each target, in the order of the split; None if the
    examples of the task are not the sentences of the split."""
    sentence_tokens: Int64[np.ndarray, " sentences"] | None = None
    """Number of target subwords in each sum of `sentence_nll`."""


class Scoring(NamedTuple):
    """A request to score a model on sentences of a split."""

    translator: "Translator"
    corpus: Corpus
    split: str
    """The name of the split."""
    loss: Callable[[], CorpusLoss]
    """A function that computes the losses over `Task.examples` of the split."""
    num_sentences: int | None
    """Number of sentences to score, from the start of the split; None scores all."""
    seed: int
    """The seed of sampling."""
    decoding: DecodingConfig
    """The decoding settings."""

    @property
    def lines(self) -> Chunk:
        """Return the first `num_sentences` inputs and targets of the split, as raw lines."""
        inputs, targets = self.corpus.lines(self.split)
        return inputs[: self.num_sentences], targets[: self.num_sentences]


class Scored(NamedTuple):
    """The scores of a model on a split, with its outputs in readable form."""

    scores: TaskScores
    """The scores of all sentences together."""
    sources: list[str]
    """The decoded inputs, as raw lines of the corpus."""
    hypotheses: list[str]
    """The model output for each input, as a user reads it."""
    references: list[str]
    """The reference output for each input, in the same form."""


class Measure(NamedTuple):
    """A score with a column in the report on a run."""

    field: str
    """The score's field in the records of `scores.jsonl`."""
    name: str
    """The score's name in the report."""
    signature_field: str | None = None
    """The field with the definition of the score, which the report prints, or None."""


class GridMeasures(NamedTuple):
    """The dev scores by which a sweep compares the variants of a grid."""

    score: Measure
    """The score that decides whether a variant differs."""
    secondary: Measure | None = None
    """Another score, which the table only shows, or None."""
    bootstrap: bool = False
    """True if the score is BLEU, whose significance is estimated by resampling sentences."""
    whole_split: bool = True
    """True if hypotheses and references cover the whole split, False for a sample of it."""


@dataclass(frozen=True)
class PublishedExperiment:
    """The experiment of the paper with which a report compares a run."""

    name: str
    """The key of the experiment in `paper.EXPERIMENTS`, which lists its settings."""
    model: str
    """The key of the model in `paper.TRAINING`, or another name if the paper states no cost of
    training."""
    figures: list[str]
    """Sentences that quote the scores of the paper."""
    section: str | None = None
    """The section that states the settings and the test sets. With None, `paper.CONSTANTS` names
    the section of each setting, and section 6 states the test sets."""
    test_sets: Mapping[str, str] = field(default_factory=dict)
    """The test sets of the paper, keyed by split: dev and test."""
    comparable: frozenset[str] = frozenset()
    """The names of test sets that count as the paper's; empty for another corpus, whose test sets
    the report does not list as deviations."""
    changes_on_dev: Mapping[str, object] = field(default_factory=dict)
    """Settings, keyed by attribute of `Config`, that the paper changes when it scores only dev."""
    unchecked: Mapping[str, str] = field(default_factory=dict)
    """Sentences about constants of the paper that a config does not determine, keyed by name."""

    @property
    def settings(self) -> dict[str, object]:
        """Return the settings of this experiment, keyed by attribute of `Config`."""
        return paper.BASE_SETTINGS | paper.EXPERIMENTS[self.name]


def beside_base_model(config: Config, corpus_has: str, paper_has_not: str) -> PublishedExperiment:
    """Return the base model of the paper, to compare with a run of a task that the paper lacks.

    Args:
      corpus_has: follows the name of the corpus, such as "has labels".
      paper_has_not: follows "The paper", such as "predicts no labels".
    """
    return PublishedExperiment(
        name="base, English-German",
        model="base",
        unchecked={"data": f"{config.data.corpus} {corpus_has}."},
        figures=[f"The paper {paper_has_not}; its base model is shown beside the run."],
    )


def longest_rows(data: DataConfig, *, has_sources: bool = True) -> BatchShape:
    """Return the shape of a text batch with rows of the maximal length `data.max_length`."""
    longest = bucket_lengths(data.max_length)[-1]
    return batch_shape(data, longest * has_sources, longest)


def predicted_by(task: "Task") -> str:
    """Return the plural of the unit of training speed, such as "target tokens" or "images"."""
    return "target tokens" if task.unit == "subword" else f"{task.unit}s"


@runtime_checkable
class Task(Protocol):
    """The interface of a task: what a model is trained for.

    `config.tasks.TASKS` lists the properties that the program needs before it imports a task.
    """

    model: ClassVar[str]
    """A noun with its article for a model of this task, such as "a tagger"."""
    inputs: ClassVar[str]
    """The plural noun for inputs of a model: sentences, documents or images."""
    unit: ClassVar[str]
    """The unit over which losses and perplexities are means, such as "subword"."""
    searches: ClassVar[bool]
    """True if the scores need beam search, and so depend on the decoding settings."""
    grid: ClassVar[GridMeasures]
    """The scores, besides perplexity, by which a sweep compares variants."""
    measures: ClassVar[tuple[Measure, ...]]
    """The scores that the report on a run shows, in the order of its columns."""
    across_scripts: ClassVar[bool] = False
    """Whether a subword may contain both letters and punctuation."""

    def largest_shape(self, config: Config) -> BatchShape:
        """Return the shape of a batch with rows of the maximal length, one example per row."""
        return longest_rows(config.data)

    def vocabulary(
        self, config: Config, corpus: Corpus, inherited: Vocabulary | None = None
    ) -> Vocabulary:
        """Make the vocabulary of a new run (section 5.1), or return the inherited one."""
        if inherited is not None:
            return inherited
        return prepare_vocabulary(config.data, corpus, across_scripts=self.across_scripts)

    def training_examples(self, config: Config, corpus: Corpus, vocabulary: Vocabulary) -> Examples:
        """Return the tokenized examples of a corpus's train split."""

    def train_text(self, config: Config, vocabulary: Vocabulary) -> TrainText | None:
        """Return the rules that tokenize a train split in shards; None without such rules."""
        return None

    def examples(
        self, config: Config, corpus: Corpus, vocabulary: Vocabulary, split: str, longest: float
    ) -> Examples:
        """Return the examples of a split on which the loss is computed.

        Args:
          longest: the maximal number of tokens per sentence for which the model has positions.
        """

    def scored(self, request: Scoring) -> Scored:
        """Compute and score the outputs of a model for the sentences of a split."""

    def score_rows(self, record: Record) -> Iterable[tuple[str, str, str]]:
        """Yield a table row, (name, formatted value, definition), for each score in a record."""

    def experiment(self, config: Config) -> PublishedExperiment:
        """Return the experiment of the paper to compare with a run of this config."""
