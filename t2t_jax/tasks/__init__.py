"""What a corpus is for: how its vocabulary is learned, how a model of it is scored and reported.

A task is a module of this package whose `TASK` has all that `tasks.task.Task` names, and a row of
the table `config.tasks.TASKS`. Which task a corpus has follows from its scheme, the part of its
name before the colon, unless `data.task` of the config names one.
"""

import importlib

from t2t_jax.config.tasks import task_name
from t2t_jax.data.corpus_name import components_of
from t2t_jax.errors import UserError
from t2t_jax.tasks.task import Task as Task


def task_of(corpus: str, task: str = "auto") -> Task:
    """The task of a corpus. Its module is imported on the first call.

    Args:
      corpus: the corpus's name, as `data.corpus` of a config and `Corpus.name` have it.
      task: what the corpus is read for, as `data.task` of a config and `Corpus.task` have it.

    Raises:
      UserError: it is a mixture of corpora for different tasks.
    """
    name, *others = sorted({task_name(one.name, task) for one in components_of(corpus)})
    if others:
        raise UserError(
            f"corpus {corpus} mixes corpora for {name} and {' and '.join(others)}, and a model has "
            "one task; train a model for each"
        )
    found: Task = importlib.import_module(f"{__name__}.{name}").TASK
    return found
