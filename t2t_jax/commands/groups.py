"""The table of commands, with the check that a command is for the model of a run."""

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from t2t_jax.config.tasks import TaskFacts
from t2t_jax.errors import UserError
from t2t_jax.plugins import plugins, rows

_CORE: Mapping[str, Mapping[str, str]] = {
    "first steps": {
        "init": "write a config, a README and a script for your corpus",
    },
    "training": {
        "train": "train a model, or resume a run",
        "config": "print a config, or the differences between two configs or runs",
        "sweep": "train the variants of a grid and compare them in a table",
    },
    "using a trained model": {
        "translate": "translate text, or parse sentences into trees, line by line",
        "generate": "continue text with a language model",
    },
    "measuring a model": {
        "evaluate": "score a model on a test set: BLEU, F1, perplexity or accuracy",
        "score": "compute the log-probability of given translations",
        "compare": "score files of translations or trees, and test the differences",
    },
}
"""The commands of the core in groups, with a line about each. The command `a-b`, or `a b` in two
words, is the class `ABCommand` of the module `a_b` of this package; see also `Plugin.commands`."""
_NAMES = [name for names in _CORE.values() for name in names]


@cache
def all_commands() -> Mapping[str, Mapping[str, str]]:
    """Map each group of commands, including plugins, to descriptions by command name."""
    groups = {group: {**descriptions} for group, descriptions in _CORE.items()}
    for name, (group, description) in rows("commands", _NAMES).items():
        groups.setdefault(group, {})[name] = description
    return groups


def command_reference(name: str) -> str:
    """Return the object reference of the dataclass of a command, as MODULE:NAME."""
    module_name = identifier(name)
    class_name = "".join(map(str.capitalize, module_name.split("_"))) + "Command"
    if name in _NAMES:
        return f"t2t_jax.commands.{module_name}:{class_name}"
    plugin = next(plugin for plugin in plugins() if name in plugin.commands)
    # A plugin in a single module has no home package.
    return f"{plugin.home}.{module_name}_command:{class_name}".removeprefix(".")


def identifier(name: str) -> str:
    """Convert the name of a command to a Python identifier."""
    return name.replace("-", "_").replace(" ", "_")


_FOR_EVERY_MODEL = "evaluate", "figures", "export"  # tasks do not list these commands


def check_command(command: str, runs: Iterable[Path]) -> None:
    """Raise a `UserError` for a run whose model the command does not support."""
    from t2t_jax.tasks import task_of
    from t2t_jax.workdir import read_config

    for run in runs:
        data_config = read_config(run).data
        if command not in (*data_config.facts.commands, *_FOR_EVERY_MODEL):
            description = task_of(data_config.corpus, data_config.task).model
            raise wrong_command(command, f"{run} is {description}", data_config.facts)


def wrong_command(command: str, subject: str, facts: TaskFacts) -> UserError:
    """Make the error for a command that does not support a model; suggest a supported command.

    Args:
      subject: a clause about the model, such as "runs/a is a parser".
      facts: the facts of the model's task.
    """
    [names_in_group] = (group for group in all_commands().values() if command in group)
    commands = (name for name in (*facts.commands, *_FOR_EVERY_MODEL) if name in names_in_group)
    suggestion = next(commands, facts.commands[0])
    return UserError(
        f"{subject}, and t2t-jax {command} is not for such a model; use t2t-jax {suggestion}"
    )
