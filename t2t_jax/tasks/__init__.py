"""The tasks that models are trained for, with their vocabularies, examples, scores and reports.

A task is a module of this package whose `TASK` has all members of `tasks.task.Task`, and a row of
the table `config.tasks.TASKS`. The scheme of a corpus, the part of its name before the colon,
decides on its task, unless `data.task` of the config names one.
"""

import importlib

from t2t_jax.config.tasks import task_name
from t2t_jax.data.corpus_name import components_of
from t2t_jax.errors import UserError
from t2t_jax.tasks.task import Task as Task


def task_of(corpus: str, task: str = "auto") -> Task:
    """Return the task of a corpus, whose module is imported on the first call.

    Args:
      corpus: the corpus's name, as in `data.corpus` of a config and `Corpus.name`.
      task: the name of the task or "auto", as in `data.task` of a config and `Corpus.task`.

    Raises:
      UserError: the corpus is a mixture of corpora for different tasks.
    """
    name, *others = sorted({task_name(one.name, task) for one in components_of(corpus)})
    if others:
        raise UserError(
            f"corpus {corpus} mixes corpora for {name} and {' and '.join(others)}, and a model has "
            "one task; train a model for each"
        )
    found: Task = importlib.import_module(f"{__name__}.{name}").TASK
    return found
