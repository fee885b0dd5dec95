"""The table of tasks: what the program has to know of each before its module is imported.

A task is a row of `TASKS` and the module of `t2t_jax.tasks` that has the row's name. Checks of the
config, flags, documents, readers of corpora and commands ask the row; nothing else knows a task by
its name.
"""

from dataclasses import dataclass

from t2t_jax.config.registry import Rows

_FROM_SCHEME = "auto"


@dataclass(frozen=True)
class TaskFacts:
    """The facts of a task."""

    architectures: tuple[str, ...]
    """The values of `model.architecture` whose networks learn it, the usual one first."""
    corpora: str
    """The place, as MODULE:NAME, of the function that finds the splits of its corpora: of the name
    of a corpus and the section `data` of the config, it returns each `data.splits.Split` by name.
    """
    score: tuple[str, str]
    """The score that chooses the best checkpoint: its field in the record of an evaluation, and its
    name for a reader; the higher, the better."""
    commands: tuple[str, ...]
    """The commands of `t2t-jax` for its models, beside those for all; the main ones first."""
    schemes: tuple[str, ...] | None = None
    """The schemes of corpora, such as `trees`, that are for this task where `data.task` is "auto";
    () stands for all that no other task has. None is a task that `data.task` names."""
    writes_text: bool = False
    """Whether its models search for a text that answers a source, as translations do."""
    predicts_labels: bool = False
    """Whether its targets are labels, which share no matrix with subwords."""
    reads_images: bool = False
    """Whether its sources are images."""


class _Tasks(Rows[TaskFacts]):
    """The rows of all tasks."""

    @property
    def names(self) -> tuple[str, ...]:
        """The values of `data.task`."""
        return (_FROM_SCHEME, *(name for name, row in self.items() if row.schemes is None))


_OF_LABELS = ("predict", "accuracy", "explore")

TASKS = _Tasks(
    translation=TaskFacts(
        ("encoder_decoder", "decoder_only"),
        "t2t_jax.data.corpus:pair_splits",
        ("bleu", "BLEU"),
        ("translate", "serve", "calibrate", "bleu", "score", "explore", "heads"),
        schemes=(),
        writes_text=True,
    ),
    parsing=TaskFacts(
        ("encoder_decoder", "decoder_only"),
        "t2t_jax.data.corpus:tree_splits",
        ("f1", "F1"),
        ("parse", "translate", "parseval", "score", "explore", "heads"),
        schemes=("trees",),
        writes_text=True,
    ),
    language_modelling=TaskFacts(
        ("decoder_only",),
        "t2t_jax.data.corpus:document_splits",
        ("bits_per_byte", "-bits per byte"),
        ("generate", "perplexity"),
    ),
    masked_language_modelling=TaskFacts(
        ("encoder_only",),
        "t2t_jax.data.corpus:document_splits",
        ("masked_nll", "-NLL of what is hidden"),
        ("predict", "perplexity", "explore"),
    ),
    classification=TaskFacts(
        ("encoder_only",),
        "t2t_jax.data.corpus:label_splits",
        ("accuracy", "accuracy"),
        _OF_LABELS,
        predicts_labels=True,
    ),
    tagging=TaskFacts(
        ("encoder_only",),
        "t2t_jax.data.corpus:tag_splits",
        ("accuracy", "accuracy"),
        _OF_LABELS,
        predicts_labels=True,
    ),
    image_classification=TaskFacts(
        ("encoder_only",),
        "t2t_jax.data.images:image_splits",
        ("accuracy", "accuracy"),
        _OF_LABELS,
        predicts_labels=True,
        reads_images=True,
    ),
)
"""The tasks by the names of their modules."""


def task_name(corpus: str, task: str) -> str:
    """Return the name of the task of a corpus, by which `TASKS` and `t2t_jax.tasks` have it.

    Args:
      corpus: the name of one corpus, as `data.corpus` has it; of a mixture the first one decides.
      task: what the corpus is read for, as `data.task` has it.
    """
    if task != _FROM_SCHEME:
        return task
    scheme = corpus.partition(":")[0]
    others = next(name for name, row in TASKS.items() if row.schemes == ())
    return next((name for name, row in TASKS.items() if scheme in (row.schemes or ())), others)
