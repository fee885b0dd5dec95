"""Select the command for a command line of `t2t-jax`, `train.py` or `eval.py`."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass
from functools import partial
from typing import Protocol, TypeVar, runtime_checkable

from t2t_jax import version
from t2t_jax.commands.flag_table import with_plugins
from t2t_jax.commands.flags import CommandLine, parse_flags, stored_config
from t2t_jax.commands.groups import all_commands, command_reference, identifier
from t2t_jax.commands.model_flags import DecodingFlags
from t2t_jax.config import Config
from t2t_jax.errors import UserError, did_you_mean, quote
from t2t_jax.plugins import has_extras, load
from t2t_jax.system.opening import resolve_run

_Flags = TypeVar("_Flags")


@runtime_checkable
class Command(Protocol):
    """A parsed command, ready to run."""

    def run(self) -> int:
        """Run the command, and return the exit code."""


def entry_command(arguments: Sequence[str], program: str = "t2t-jax") -> Command | None:
    """Parse the arguments of a program into a command; None if they ask for all commands.

    Args:
      program: the name of the program in help and errors.
    """
    name, *flags = arguments or ["--help"]
    names = [name for group in all_commands().values() for name in group]
    if name in ("-h", "--help", "--help-all"):
        if not flags:
            return None
        name, *flags = *flags, name  # `--help train` is `train --help`
    if name.startswith("-"):
        raise UserError(
            f"{program} takes a command before its flags, as in {program} evaluate --workdir "
            f"runs/base; see {program} --help"
        )
    if flags and f"{name} {flags[0]}" in names:
        name, *flags = f"{name} {flags[0]}", *flags[1:]
    if name in version.REMOVED_COMMANDS:
        raise version.removed_feature(f"{program} {name}", version.REMOVED_COMMANDS[name])
    old_command = f"t2t-jax {name}"
    if old_command in version.RENAMED:
        name = version.current_name(old_command).removeprefix("t2t-jax ")
        # The warning about the command is enough.
        flags = [version.current_flag(flag, warns=False) for flag in flags]
    if name not in names:
        hint = did_you_mean(name, names, f"see {program} --help")
        remark = "" if has_extras() else " (this installation lacks t2t_jax.extras)"
        raise UserError(f"{program} has no command {quote(name)}{remark}; {hint}")
    kind, current_flags = command_class(name), [*map(version.current_flag, flags)]
    # A module may define a function to parse its command, such as `train_command`.
    parse = getattr(sys.modules[kind.__module__], f"{identifier(name)}_command", None)
    return (parse or partial(command_of, kind))(current_flags, f"{program} {name}")


def command_class(name: str) -> type:
    """Return the dataclass of a command. Its fields are the flags, including those from plugins."""
    reference = command_reference(name)
    kind: type = load(reference)
    if not is_dataclass(kind):
        raise UserError(
            f"plugin command {reference} is not a dataclass; decorate it, or uninstall the plugin"
        )
    return with_plugins(kind, name)


def command_of(kind: type[_Flags], args: Sequence[str], program: str) -> _Flags:
    """Parse the flags of a command into its dataclass.

    Raises:
      UserError: a flag or a value is wrong, or there are no flags and the dataclass has `advice`.
    """
    if not args and (advice := getattr(kind, "advice", "")):
        raise UserError(advice.format(program=program))
    make_command: Callable[..., _Flags] = kind

    def from_run(line: CommandLine) -> _Flags:
        config = stored_config(resolve_run(line.run)) if line.run else None
        return make_command(decoding=(config or Config()).decoding)

    return parse_flags(kind, args, program, from_run if issubclass(kind, DecodingFlags) else None)


def describe_commands(program: str = "t2t-jax") -> str:
    """Format the list of commands, as `t2t-jax --help` prints it."""
    lines = [f"usage: {program} COMMAND [--flag value ...]"]
    for group, commands in all_commands().items():
        lines += ["", f"{group}:"]
        lines += [f"  {name + '  ':<15}{about}" for name, about in commands.items()]
    examples = ("train --config configs/quickstart.py runs/quickstart", "evaluate runs/quickstart")
    lines += ["", "examples:", *(f"  {program} {example}" for example in examples)]
    lines += ["", f"Flags of a command: {program} COMMAND --help. Version: {program} --version."]
    return "\n".join(lines)
