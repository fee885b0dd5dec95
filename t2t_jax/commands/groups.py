"""The map of all commands, and which of them are for the model of a run."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from t2t_jax.errors import UserError

if TYPE_CHECKING:
    from t2t_jax.tasks.task import Task

COMMANDS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "data": {
            "data": "fetch a public corpus, such as WMT14, and prepare it as text",
        },
        "training": {
            "train": "train a model, or go on with a run that was stopped",
            "watch": "draw the curves of runs, finished or under way, in the terminal",
            "sweep": "train every variant of a grid, and compare them in a table",
        },
        "using a trained model": {
            "translate": "translate text, line by line",
            "serve": "serve translations over HTTP, and a page to type into",
            "parse": "parse sentences into constituency trees",
            "generate": "continue text with a language model",
            "predict": "label text or images, or fill in hidden words",
            "calibrate": "make confidences of a run estimates of its quality",
        },
        "inside a model": {
            "explore": "write a page that shows a model at work on a sentence",
            "heads": "say what each attention head is worth, and what it looks at",
            "figures": "draw the paper's pictures, with the shapes of a run",
        },
        "models in and out": {
            "export": "write a model for CTranslate2, transformers or JAX alone",
            "import": "make a run of a model that came from elsewhere",
        },
        "measuring": {
            "bleu": "score a model on a test set: BLEU, chrF, perplexity",
            "parseval": "score a parser on a treebank: recall, precision, F1",
            "perplexity": "score a language model: bits per byte, perplexity",
            "accuracy": "score a tagger or classifier: accuracy, F1, confusion table",
            "score": "say how probable a model finds given translations",
            "compare": "score files of translations, and test their differences",
            "compare-trees": "score files of trees against a treebank",
            "report": "set a run beside the paper: constants, cost, curves, scores",
        },
    }
)
"""The commands of `t2t-jax` in groups, with a line about each."""

_FOR_EVERY_MODEL = "figures", "export"


def check_fits(command: str, runs: Iterable[Path]) -> None:
    """Refuse a run whose model a command is not for, and name the commands that are.

    Args:
      command: the name of a command for some kinds of models.
      runs: the run directories.

    Raises:
      UserError: one is not a run directory, or its model is of another kind.
    """
    from t2t_jax.tasks import task_of
    from t2t_jax.workdir import read_config

    for run in runs:
        data = read_config(run).data
        task = task_of(data.corpus, data.task)
        if command not in task.commands:
            raise wrong_command(command, f"{run} is {task.model}", task)


def wrong_command(command: str, what_it_is: str, task: "Task") -> UserError:
    """The error of a command that is not for the models of a task.

    It names one of the same group that is, or else one of the group for every model.

    Args:
      command: the command that was asked for.
      what_it_is: a sentence that says what kind of a model it was asked for.
      task: the task of that model.
    """
    [group] = (commands for commands in COMMANDS.values() if command in commands)
    fits = next(name for name in (*task.commands, *_FOR_EVERY_MODEL) if name in group)
    return UserError(
        f"{what_it_is}, and t2t-jax {command} is not for such a model; use t2t-jax {fits}"
    )
