"""What the rest of the program has to know of a task, and the records in which a task answers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, runtime_checkable

from t2t_jax import paper
from t2t_jax.config import Config, DataConfig, DecodingConfig
from t2t_jax.data.batching import batch_shape, length_ladder
from t2t_jax.data.corpus import Corpus
from t2t_jax.data.rows import BatchShape, Examples
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.system.records import Record

if TYPE_CHECKING:
    from t2t_jax.decoding.translator import Translator


@runtime_checkable
class TaskScores(Protocol):
    """The scores of a corpus: a dataclass of plain values, whose fields `scores.jsonl` keeps.

    `str` of it is one line for the log, with what defines the scores.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def best(self) -> float:
        """The score by which the best checkpoint is chosen; higher is better."""


class CorpusLoss(NamedTuple):
    """Losses of a split, in nats per target subword."""

    smoothed: float
    """The label-smoothed loss, which training minimises."""
    nll: float
    """The negative log-likelihood."""
    tokens: int
    """How many target subwords both losses are means over, ends of sentences included."""


class Scored(NamedTuple):
    """What a model wrote for the sentences of a split, scored and ready to be shown."""

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
    """The scores on dev that the variants of a grid are compared by."""

    score: Measure
    """The score that decides whether a variant differs."""
    beside: Measure | None = None
    """A score that is shown beside it."""
    bootstrap: bool = False
    """Whether the score is BLEU, of which the sentences of a split say how far chance goes."""
    whole_split: bool = True
    """Whether hypotheses and references are those of the whole split, and no samples of it."""


class Compared(NamedTuple):
    """Something that the paper states, beside what a run has."""

    deviates: bool
    """Whether the run is not as the paper states."""
    name: str
    """What is compared."""
    section: str
    """The section of the paper that states it."""
    published: str
    """The paper's value, as it is shown."""
    ours: str
    """The run's value, as it is shown; empty if it is not known."""


@dataclass(frozen=True)
class PublishedExperiment:
    """The experiment of the paper that a run is set beside in its report."""

    name: str
    """Its name in `paper.EXPERIMENTS`, which has its settings."""
    model: str
    """Its model's name in `paper.TRAINING`, for which the paper has the cost of training; a name
    that is not in there if the paper has none."""
    section: str | None
    """The section that states its settings; None if each is where `paper.CONSTANTS` has it."""
    test_sets: Mapping[str, str]
    """What the paper scores on, by split: dev and test."""
    test_sets_section: str
    """The section that names these test sets."""
    comparable: frozenset[str]
    """The names under which sets are reported that count as the paper's. Empty if the corpus is not
    the paper's at all, so that no set of it is a deviation of its own."""
    changes_on_dev: Mapping[str, Any]
    """Settings, by attribute of `Config`, that the paper changes where it scores on dev alone."""
    unchecked: Mapping[str, str]
    """Constants of the paper of which a config does not tell whether the run has them: by name, the
    sentence that says so."""
    figures: list[str]
    """Sentences on what the paper reports, and in which measure."""

    @property
    def settings(self) -> dict[str, Any]:
        """The paper's settings in this experiment, by attribute of `Config`."""
        return paper.BASE_SETTINGS | paper.EXPERIMENTS[self.name]


def beside_base_model(config: Config, corpus_has: str, paper_has_not: str) -> PublishedExperiment:
    """What a run is set beside that does something which the paper does not: its base model.

    Args:
      config: the config of the run.
      corpus_has: what the corpus is or has, in a predicate.
      paper_has_not: what the paper does not do, in a predicate.
    """
    return PublishedExperiment(
        name="base, English-German",
        model="base",
        section=None,
        test_sets={},
        test_sets_section="6",
        comparable=frozenset(),
        changes_on_dev={},
        unchecked={"data": f"{config.data.corpus} {corpus_has}."},
        figures=[f"The paper {paper_has_not}; its base model is shown beside the run."],
    )


def longest_rows(data: DataConfig, *, has_sources: bool = True) -> BatchShape:
    """The shape of a batch of text whose rows have the largest `data.max_length`.

    Args:
      data: the section on data.
      has_sources: whether there are sources, which are as long as targets.
    """
    longest = length_ladder(data.max_length)[-1]
    return batch_shape(data, longest * has_sources, longest)


def predicted_by(task: "Task") -> str:
    """What a model of a task predicts, in the plural, by which the speed of training is told.

    Args:
      task: the task.
    """
    return "target tokens" if task.unit == "subword" else f"{task.unit}s"


@runtime_checkable
class Task(Protocol):
    """What a corpus is for. A module of `tasks` has one, as its `TASK`.

    What has to be known of it before that is in its row of `config.tasks.TASKS`.
    """

    @property
    def command(self) -> str:
        """The command that scores a model of this task."""

    @property
    def model(self) -> str:
        """What a model of this task is, with its article: "a tagger"."""

    @property
    def inputs(self) -> str:
        """What such a model is given, in the plural: sentences, documents or images."""

    @property
    def unit(self) -> str:
        """What losses and perplexities are means over, in the singular: a subword or a label."""

    @property
    def searches(self) -> bool:
        """Whether scores are of what a search found, and so depend on how it searched."""

    @property
    def grid(self) -> GridMeasures:
        """What the variants of a grid are compared by, beside perplexity."""

    @property
    def measures(self) -> tuple[Measure, ...]:
        """The scores that the report on a run shows, in the order of its columns."""

    def largest_shape(self, config: Config) -> BatchShape:
        """The shape of a batch whose rows are as long as they may be, one example in each.

        Args:
          config: the config of a run.
        """

    def vocabulary(
        self, config: Config, corpus: Corpus, given: Vocabulary | None = None
    ) -> Vocabulary:
        """The vocabulary of a new run.

        Args:
          config: the config of the run.
          corpus: what it is trained on.
          given: the vocabulary of the run that it starts from (`training.init_from`), if any.

        Raises:
          UserError: there is no train split, or no such vocabulary can be made of it.
        """

    def training_examples(self, config: Config, corpus: Corpus, vocabulary: Vocabulary) -> Examples:
        """What a model is trained on.

        Args:
          config: the config of the run.
          corpus: where the train split is.
          vocabulary: the vocabulary of the run.

        Raises:
          UserError: there is no train split, or it cannot be read.
        """

    def examples(
        self, config: Config, corpus: Corpus, vocabulary: Vocabulary, split: str, longest: float
    ) -> Examples:
        """The examples of a split over which a model's losses are taken.

        Args:
          config: the config of the model.
          corpus: where the split is.
          vocabulary: the vocabulary of the model.
          split: the split's name.
          longest: most tokens of a sentence that the model has positions for.

        Raises:
          UserError: there is no such split, or a sentence is too long for the model.
        """

    def scored(
        self,
        translator: "Translator",
        corpus: Corpus,
        split: str,
        loss: Callable[[], CorpusLoss],
        num_sentences: int | None,
        seed: int,
        decoding: DecodingConfig,
    ) -> Scored:
        """Let a model answer the sentences of a split, and score its answers.

        Args:
          translator: the model.
          corpus: where the split is.
          split: the split's name.
          loss: gives the losses over `examples`.
          num_sentences: how many sentences, from the first on; None means all.
          seed: seed of sampling.
          decoding: the settings of the decoding.

        Raises:
          UserError: there are no sentences, or the model refuses something.
        """

    def score_rows(self, record: Record) -> Iterable[tuple[str, str, str]]:
        """The rows of a table of scores: name, formatted value and definition of each.

        Args:
          record: an evaluation, as `scores.jsonl` keeps it.
        """

    def experiment(self, config: Config) -> PublishedExperiment:
        """The experiment of the paper that a run with this config is set beside."""

    def kind_of_measure(self, records: Sequence[Record]) -> Compared | None:
        """Which kind of the paper's measure was taken, where there are several; else None.

        Args:
          records: all evaluations of a run, as `scores.jsonl` keeps them.
        """


@runtime_checkable
class Predicting(Protocol):
    """What a task has beside that of `Task` whose models have the command `predict`."""

    def lines(
        self, translator: "Translator", inputs: Sequence[Any], first: int, probabilities: bool
    ) -> list[str]:
        """What a model predicts for each input, as a line of text.

        Args:
          translator: a model of the task.
          inputs: lines of text, or images.
          first: number of the first of them, which errors name.
          probabilities: whether each label stands with its probability.
        """
