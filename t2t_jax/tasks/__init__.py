"""The tasks that models are trained for, with their vocabularies, examples, scores and reports.

A task is a row of the table `config.tasks.TASKS`, and an object with all members of
`tasks.task.Task`: the `TASK` of the module of this package that has the row's name, or the object
that the row names. The scheme of a corpus, the part of its name before the colon,
decides on its task, unless `data.task` of the config names one.
"""

from t2t_jax.config.tasks import TASKS, task_name
from t2t_jax.data.corpus_name import components_of
from t2t_jax.errors import UserError
from t2t_jax.plugins import load
from t2t_jax.tasks.task import Task as Task


def task_of(corpus: str, task: str = "auto") -> Task:
    """Return the task of a corpus, whose module is imported on the first call.

    Args:
      corpus: the corpus's name, as in `data.corpus` of a config and `Corpus.name`.
      task: the name of the task or "auto", as in `data.task` of a config and `Corpus.task`.
    """
    name, *others = sorted({task_name(one.name, task) for one in components_of(corpus)})
    if others:
        raise UserError(
            f"corpus {corpus} mixes corpora for {name} and {' and '.join(others)}, and a model has "
            "one task; train a model for each"
        )
    return load(TASKS[name].task or f"{__name__}.{name}:TASK")
