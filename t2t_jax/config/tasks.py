"""The table of tasks: the facts that the program needs before it imports a task's module.

A task is a row of `TASKS` and an object in a module of `t2t_jax.tasks`. Checks of the config,
flags, documents, readers of corpora and commands ask the row; nothing else knows a task by its
name.
"""

from dataclasses import dataclass

from t2t_jax.config.registry import Rows

_FROM_SCHEME = "auto"


@dataclass(frozen=True)
class TaskFacts:
    """The facts of a task."""

    architectures: tuple[str, ...]
    """The values of `model.architecture` whose networks learn the task, the usual one first."""
    corpora: str
    """The place, as MODULE:NAME, of a function of the name of a corpus and the section `data` of a
    config, which returns the splits of the corpus, each a `data.splits.Split`, by name."""
    score: tuple[str, str]
    """The score that chooses the best checkpoint, the higher the better: its field in the record of
    an evaluation, and its name for a reader."""
    commands: tuple[str, ...]
    """The commands of `t2t-jax` for models of the task, beside those for all; main ones first."""
    schemes: tuple[str, ...] | None = None
    """The schemes of corpora, such as `trees`, that are for this task where `data.task` is "auto";
    () stands for every scheme that no other task has. None means that `data.task` must name the
    task."""
    writes_text: bool = False
    """Whether models of the task search for a text that answers a source, as in translation."""
    predicts_labels: bool = False
    """Whether the targets of the task are labels, which share no matrix with subwords."""
    hub_task: str = "other"
    """The name of the task on the Hugging Face Hub."""
    task: str = ""
    """The place of the task, as MODULE:NAME; "" is the `TASK` of the module of `t2t_jax.tasks` that
    has the row's name."""


class _Tasks(Rows[TaskFacts]):
    """The rows of all tasks, by name."""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the values that `data.task` may have."""
        return (_FROM_SCHEME, *(name for name, row in self.items() if row.schemes is None))


_ENCODERS = "t2t_jax.extras.encoders"


def _predicting_labels(network: str, corpora: str, hub_task: str, task: str) -> TaskFacts:
    """Return the facts of a task whose targets are labels, which an encoder predicts."""
    return TaskFacts(
        (network,),
        corpora,
        ("accuracy", "accuracy"),
        ("predict",),
        predicts_labels=True,
        hub_task=hub_task,
        task=f"{_ENCODERS}.tasks:{task}",
    )


TASKS = _Tasks(
    "tasks",
    translation=TaskFacts(
        ("encoder_decoder", "decoder_only"),
        "t2t_jax.data.corpus:pair_splits",
        ("bleu", "BLEU"),
        ("translate", "serve", "score", "explore", "heads"),
        schemes=(),
        writes_text=True,
        hub_task="translation",
    ),
    parsing=TaskFacts(
        ("encoder_decoder", "decoder_only"),
        "t2t_jax.data.corpus:tree_splits",
        ("f1", "F1"),
        ("translate", "score", "explore", "heads"),
        schemes=("trees",),
        writes_text=True,
    ),
    language_modelling=TaskFacts(
        ("decoder_only",),
        "t2t_jax.data.corpus:document_splits",
        ("bits_per_byte", "-bits per byte"),
        ("generate",),
        hub_task="text-generation",
    ),
    masked_language_modelling=TaskFacts(
        ("encoder_only",),
        "t2t_jax.data.corpus:document_splits",
        ("masked_nll", "-NLL of what is hidden"),
        ("predict",),
        hub_task="fill-mask",
        task=f"{_ENCODERS}.tasks:MASKED",
    ),
    classification=_predicting_labels(
        "encoder_only", f"{_ENCODERS}.corpora:label_splits", "text-classification", "CLASSIFICATION"
    ),
    tagging=_predicting_labels(
        "encoder_only", f"{_ENCODERS}.corpora:tag_splits", "token-classification", "TAGGING"
    ),
    image_classification=_predicting_labels(
        "image_encoder", f"{_ENCODERS}.images:image_splits", "image-classification", "IMAGES"
    ),
)
"""The tasks by name."""


def task_name(corpus: str, task: str) -> str:
    """Return the name of the task of a corpus, as in `TASKS` and `t2t_jax.tasks`.

    Args:
      corpus: the name of one corpus, as in `data.corpus`; the first one decides for a mixture.
    """
    if task != _FROM_SCHEME:
        return task
    scheme = corpus.partition(":")[0]
    others = next(name for name, row in TASKS.items() if row.schemes == ())
    return next((name for name, row in TASKS.items() if scheme in (row.schemes or ())), others)
