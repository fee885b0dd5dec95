"""The table of commands, with the check that a command is for the model of a run."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from t2t_jax.config.tasks import TaskFacts
from t2t_jax.errors import UserError


class CommandRow(NamedTuple):
    """The row of a command in the table."""

    about: str
    """A line about the command."""
    place: str
    """The place, as MODULE:NAME in this package, of the dataclass of the command's flags, whose
    `run` runs it; or of a function of the flags and the program's name that returns one."""
    in_eval: bool = False
    """Whether `eval.py` has the command too."""


COMMANDS: Mapping[str, Mapping[str, CommandRow]] = MappingProxyType(
    {
        "data": {
            "data": CommandRow(
                "fetch a public corpus, such as WMT14, and prepare it as text", "data:data_command"
            ),
        },
        "training": {
            "train": CommandRow(
                "train a model, or go on with a run that was stopped", "train:train_command"
            ),
            "watch": CommandRow(
                "draw the curves of runs, finished or under way, in the terminal",
                "watch:WatchCommand",
                in_eval=True,
            ),
            "sweep": CommandRow(
                "train every variant of a grid, and compare them in a table", "sweep:sweep_command"
            ),
        },
        "using a trained model": {
            "translate": CommandRow(
                "translate text, line by line", "translate:TranslateCommand", in_eval=True
            ),
            "serve": CommandRow(
                "serve translations over HTTP, and a page to type into", "serve:ServeCommand"
            ),
            "parse": CommandRow(
                "parse sentences into constituency trees", "parse:ParseCommand", in_eval=True
            ),
            "generate": CommandRow(
                "continue text with a language model", "generate:GenerateCommand"
            ),
            "predict": CommandRow(
                "label text or images, or fill in hidden words", "predict:PredictCommand"
            ),
            "calibrate": CommandRow(
                "make confidences of a run estimates of its quality", "calibrate:CalibrateCommand"
            ),
        },
        "inside a model": {
            "explore": CommandRow(
                "write a page that shows a model at work on a sentence", "explore:ExploreCommand"
            ),
            "heads": CommandRow(
                "say what each attention head is worth, and what it looks at", "heads:HeadsCommand"
            ),
            "figures": CommandRow(
                "draw the paper's pictures, with the shapes of a run", "figures:FiguresCommand"
            ),
        },
        "models in and out": {
            "export": CommandRow(
                "write a model for CTranslate2, transformers or JAX alone", "export:ExportCommand"
            ),
            "import": CommandRow(
                "make a run of a model that came from elsewhere", "import_:ImportCommand"
            ),
        },
        "measuring": {
            "bleu": CommandRow(
                "score a model on a test set: BLEU, chrF, perplexity",
                "bleu:BleuCommand",
                in_eval=True,
            ),
            "parseval": CommandRow(
                "score a parser on a treebank: recall, precision, F1",
                "parseval:ParsevalCommand",
                in_eval=True,
            ),
            "perplexity": CommandRow(
                "score a language model: bits per byte, perplexity",
                "perplexity:PerplexityCommand",
                in_eval=True,
            ),
            "accuracy": CommandRow(
                "score a tagger or classifier: accuracy, F1, confusion table",
                "accuracy:AccuracyCommand",
                in_eval=True,
            ),
            "score": CommandRow(
                "say how probable a model finds given translations",
                "score:ScoreCommand",
                in_eval=True,
            ),
            "compare": CommandRow(
                "score files of translations, and test their differences",
                "compare:CompareCommand",
                in_eval=True,
            ),
            "compare-trees": CommandRow(
                "score files of trees against a treebank",
                "compare_trees:CompareTreesCommand",
                in_eval=True,
            ),
            "report": CommandRow(
                "set a run beside the paper: constants, cost, curves, scores",
                "report:ReportCommand",
                in_eval=True,
            ),
        },
    }
)
"""The commands of `t2t-jax` in groups: a command is a row of this table, and a file."""

_FOR_EVERY_MODEL = "figures", "export"


def check_command(command: str, runs: Iterable[Path]) -> None:
    """Refuse a run with a model that a command is not for, and name a command that is.

    Raises:
      UserError: a directory is no run, or its model is of another kind.
    """
    from t2t_jax.tasks import task_of
    from t2t_jax.workdir import read_config

    for run in runs:
        data = read_config(run).data
        if command not in data.facts.commands:
            what = task_of(data.corpus, data.task).model
            raise wrong_command(command, f"{run} is {what}", data.facts)


def wrong_command(command: str, what_it_is: str, facts: TaskFacts) -> UserError:
    """Return the error for a command that is not for the models of a task.

    The error names a command of the same group that is for these models, or for every model.

    Args:
      command: the command that was asked for.
      what_it_is: a clause that says what kind of a model the run has.
      facts: the facts of the task of that model.
    """
    [group] = (commands for commands in COMMANDS.values() if command in commands)
    fits = next(name for name in (*facts.commands, *_FOR_EVERY_MODEL) if name in group)
    return UserError(
        f"{what_it_is}, and t2t-jax {command} is not for such a model; use t2t-jax {fits}"
    )
