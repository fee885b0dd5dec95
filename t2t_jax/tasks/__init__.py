"""Tasks: what models are trained for, with vocabularies, examples, scores and reports.

The table `config.tasks.TASKS` lists all tasks. A task has the members of `tasks.task.Task`: it is
`TASK` in the module of its name, or the object that the table row names. The scheme of a corpus,
such as `tfds`, determines its task unless `data.task` is set.
"""

from t2t_jax.config.corpus_name import components_of
from t2t_jax.config.tasks import TASKS, task_name
from t2t_jax.errors import UserError
from t2t_jax.plugins import load
from t2t_jax.tasks.task import Task as Task


def task_of(corpus: str, task: str = "auto") -> Task:
    """Import and return the task of a corpus.

    Args:
      corpus: the name of the corpus, as in `data.corpus` and `Corpus.name`.
      task: the name of the task or "auto", as in `data.task` and `Corpus.task`.
    """
    names = sorted({task_name(component.name, task) for component in components_of(corpus)})
    if len(names) > 1:
        raise UserError(
            f"corpus {corpus} mixes corpora for {' and '.join(names)}, and a model has one task; "
            "train a model for each"
        )
    return load(TASKS[names[0]].task or f"{__name__}.{names[0]}:TASK")
