"""The table of commands, with the check that a command is for the model of a run."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from t2t_jax.config.tasks import TaskFacts
from t2t_jax.errors import UserError

COMMANDS: Mapping[str, Mapping[str, str]] = {
    "first steps": {
        "init": "write a config, a README and a script for an own corpus",
        "data": "fetch a public corpus, such as WMT14, and prepare it as text",
        "data prepare": "tokenise a corpus in shards, before trainings read it",
    },
    "training": {
        "train": "train a model, or go on with a run that was stopped",
        "config": "print a config, or in what two configs or runs differ",
        "launch": "train on several hosts: Slurm, Kubernetes, TPUs, ssh",
        "watch": "draw the curves of runs, finished or under way, in the terminal",
        "goodput": "say what the time of a run went to, over all its restarts",
        "track": "send the log of a run to W&B, MLflow or trackio",
        "sweep": "train every variant of a grid, and compare them in a table",
    },
    "using a trained model": {
        "translate": "translate text, line by line",
        "serve": "serve translations over HTTP, and a page to type into",
        "parse": "parse sentences into constituency trees",
        "generate": "continue text with a language model",
        "predict": "label text or images, or fill in hidden words",
    },
    "inside a model": {
        "explore": "write a page that shows a model at work on a sentence",
        "heads": "say what each attention head is worth, and what it looks at",
        "figures": "draw the paper's pictures, with the shapes of a run",
    },
    "models in and out": {
        "export": "write a model for CTranslate2, transformers or JAX alone",
        "publish": "put a run where others open it by its name: the hub, a bucket",
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
"""The commands of `t2t-jax` in groups, with a line about each. The command `a-b`, or `a b` in two
words, is the class `ABCommand` of the module `a_b` of this package, whose fields are its flags and
whose `run` runs it; or the function `a_b_command` makes it of the flags and of the program's
name."""

_FOR_EVERY_MODEL = "figures", "export"


def check_command(command: str, runs: Iterable[Path]) -> None:
    """Refuse what is no run, or has a model that a command is not for; name one that is."""
    from t2t_jax.tasks import task_of
    from t2t_jax.workdir import read_config

    for run in runs:
        data = read_config(run).data
        if command not in data.facts.commands:
            what = task_of(data.corpus, data.task).model
            raise wrong_command(command, f"{run} is {what}", data.facts)


def wrong_command(command: str, what_it_is: str, facts: TaskFacts) -> UserError:
    """Return the error for a command that is not for the models of a task.

    It says in a clause what the model is, and names a command of the same group that is for such
    models, or for every model.
    """
    [group] = (commands for commands in COMMANDS.values() if command in commands)
    known = (name for name in (*facts.commands, *_FOR_EVERY_MODEL) if name in group)
    fits = next(known, facts.commands[0])
    return UserError(
        f"{what_it_is}, and t2t-jax {command} is not for such a model; use t2t-jax {fits}"
    )
