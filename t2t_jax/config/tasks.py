"""The table of tasks: the facts that the program needs before it imports the module of a task.

A task consists of a row of `TASKS` and an object in a module of `t2t_jax.tasks`. Config checks,
flags, documents, corpus readers and commands read the row.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from t2t_jax.config.registry import Registry

_FROM_SCHEME = "auto"


@dataclass(frozen=True)
class TaskFacts:
    """The properties of a task, such as translation."""

    architectures: tuple[str, ...]
    """The network families (`model.architecture`) that learn the task. The usual one is first."""
    corpora: Callable[..., Any] | str
    """A function, or its import path MODULE:NAME. It takes a corpus name and the config section
    `data`, and returns a dict of each `data.splits.Split` of the corpus by name."""
    score: tuple[str, str]
    """The field in evaluation records, and the display name, of the score that selects the best
    checkpoint. Higher is better."""
    commands: tuple[str, ...]
    """The `t2t-jax` commands only for models of the task. Main commands are first."""
    schemes: tuple[str, ...] | None = None
    """The corpus schemes, such as `trees`, that select the task if `data.task` is "auto". () means
    all schemes that no other task lists. None means that `data.task` must name the task."""
    writes_text: bool = False
    """Whether models of the task generate text for a source, as in translation."""
    predicts_labels: bool = False
    """Whether the targets are labels, which share no embedding with subwords."""
    hub_task: str = "other"
    """The name of the task on the Hugging Face Hub."""
    task: Any = ""
    """The task, a `tasks.task.Task`, or its import path MODULE:NAME. "" means `TASK` in the module
    of `t2t_jax.tasks` with the task's name."""


class _Tasks(Registry[TaskFacts]):
    @property
    def names(self) -> tuple[str, ...]:
        """Return the built-in values of `data.task`: "auto", and tasks that it never chooses."""
        return (_FROM_SCHEME, *(name for name, row in self.items() if row.schemes is None))


_ENCODERS = "t2t_jax.extras.encoders"


def _predicting_labels(network: str, corpora: str, hub_task: str, task: str) -> TaskFacts:
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
    "task",
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
        ("masked_nll", "-NLL of what is hidden"),  # as in the grid.json of earlier versions
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
    """Return the name of the task of a corpus, as in `TASKS`.

    Args:
      corpus: the corpus name, as in `data.corpus`; the first corpus of a mixture decides.
      task: the field `data.task`; only "auto" lets the corpus decide.
    """
    if task != _FROM_SCHEME:
        return task
    scheme = corpus.partition(":")[0]
    default = next(name for name, row in TASKS.items() if row.schemes == ())
    return next((name for name, row in TASKS.items() if scheme in (row.schemes or ())), default)
