"""Which command a command line asks for: of `t2t-jax`, and of `eval.py`, which has some of them."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, Protocol, Union, runtime_checkable

import tyro

from t2t_jax.commands.accuracy import AccuracyCommand
from t2t_jax.commands.bleu import BleuCommand
from t2t_jax.commands.calibrate import CalibrateCommand
from t2t_jax.commands.compare import CompareCommand
from t2t_jax.commands.compare_trees import CompareTreesCommand
from t2t_jax.commands.data import data_command
from t2t_jax.commands.explore import ExploreCommand
from t2t_jax.commands.export import ExportCommand
from t2t_jax.commands.figures import FiguresCommand
from t2t_jax.commands.flags import check_flags, names, parse_flags, peek, stored_config, takes_run
from t2t_jax.commands.generate import GenerateCommand
from t2t_jax.commands.groups import COMMANDS
from t2t_jax.commands.heads import HeadsCommand
from t2t_jax.commands.import_ import ImportCommand
from t2t_jax.commands.model_flags import DecodingFlags
from t2t_jax.commands.parse import ParseCommand
from t2t_jax.commands.parseval import ParsevalCommand
from t2t_jax.commands.perplexity import PerplexityCommand
from t2t_jax.commands.predict import PredictCommand
from t2t_jax.commands.report import ReportCommand
from t2t_jax.commands.score import ScoreCommand
from t2t_jax.commands.serve import ServeCommand
from t2t_jax.commands.sweep import sweep_command
from t2t_jax.commands.train import train_command
from t2t_jax.commands.translate import TranslateCommand
from t2t_jax.commands.watch import WatchCommand
from t2t_jax.config import Config, DecodingConfig
from t2t_jax.errors import UserError, did_you_mean


@runtime_checkable
class Command(Protocol):
    """What a command line asks for: one of the commands, with the values of its flags."""

    def run(self) -> int:
        """Do what was asked for; returns the exit code."""


EVAL_COMMANDS: Mapping[str, type[Command]] = MappingProxyType(
    {
        "bleu": BleuCommand,
        "translate": TranslateCommand,
        "score": ScoreCommand,
        "report": ReportCommand,
        "parse": ParseCommand,
        "parseval": ParsevalCommand,
        "perplexity": PerplexityCommand,
        "accuracy": AccuracyCommand,
        "compare": CompareCommand,
        "compare-trees": CompareTreesCommand,
        "watch": WatchCommand,
    }
)
"""The commands of `eval.py`: each is the dataclass of its flags."""


def entry_command(arguments: Sequence[str], program: str = "t2t-jax") -> Command | None:
    """What a command line of `t2t-jax` asks for; None is the map of all commands.

    Args:
      arguments: the command line, without the program's name.
      program: the name that help and errors call the program by.

    Raises:
      UserError: there is no such command, or a flag or its value is refused.
    """
    name, *flags = arguments or ["--help"]
    if name in ("-h", "--help"):
        return None
    known = [command for group in COMMANDS.values() for command in group]
    if name.startswith("-"):
        raise UserError(
            f"{program} takes a command before its flags, as in {program} bleu --workdir "
            f"runs/base; see {program} --help"
        )
    if name not in known:
        hint = did_you_mean(name, known, f"see {program} --help")
        raise UserError(f"{program} has no command {name!r}; {hint}")
    others: dict[str, Callable[..., Command]] = {
        "data": data_command,
        "train": train_command,
        "sweep": sweep_command,
        "calibrate": partial(_plain_command, CalibrateCommand),
        "explore": partial(_plain_command, ExploreCommand),
        "export": partial(_plain_command, ExportCommand),
        "figures": partial(_plain_command, FiguresCommand),
        "generate": partial(_plain_command, GenerateCommand),
        "heads": partial(_plain_command, HeadsCommand),
        "import": partial(_plain_command, ImportCommand),
        "predict": partial(_plain_command, PredictCommand),
        "serve": partial(_plain_command, ServeCommand),
    }
    if name in others:
        return others[name](flags, f"{program} {name}")
    return _eval_command(arguments, program)


def _plain_command(kind: type[Command], flags: Sequence[str], program: str) -> Command:
    """The command of a kind that a command line describes."""
    check_flags(flags, names(kind), takes_run=takes_run(kind))
    command: Command = parse_flags(kind, flags, prog=program)
    return command


def describe_commands(program: str = "t2t-jax") -> str:
    """The map of all commands, as `t2t-jax --help` prints it."""
    lines = [f"usage: {program} COMMAND [--flag value ...]"]
    for group, commands in COMMANDS.items():
        lines += ["", f"{group}:"]
        lines += [f"  {name:<15}{about}" for name, about in commands.items()]
    return "\n".join(
        [
            *lines,
            "",
            "example:",
            f"  {program} train --config configs/quickstart.py --workdir runs/quickstart",
            "",
            f"The flags of a command: {program} COMMAND --help",
            f"The version:            {program} --version",
        ]
    )


def eval_command(arguments: Sequence[str]) -> Command:
    """What a command line of `eval.py` asks for.

    Decoding settings that no flag names are those of the run.

    Raises:
      UserError: a flag or its value is refused.
    """
    name = next(iter(arguments), "")
    if name not in (*EVAL_COMMANDS, "-h", "--help"):
        given = f", not {name!r}" if name else ", as in bleu --workdir runs/base; see --help"
        raise UserError(f"eval.py takes a command first ({', '.join(EVAL_COMMANDS)}){given}")
    return _eval_command(arguments, "eval.py")


def _eval_command(arguments: Sequence[str], program: str) -> Command:
    """What a command line asks for that begins with one of `EVAL_COMMANDS`, or asks for help."""
    if arguments[0] in EVAL_COMMANDS:
        kind = EVAL_COMMANDS[arguments[0]]
        check_flags(arguments, names(kind), takes_run=takes_run(kind))
    _, workdir = peek(arguments)
    decoding = (stored_config(workdir) or Config()).decoding
    commands: Any = Union[  # noqa: UP007  (made of values, which | cannot join)
        tuple(
            Annotated[
                kind,
                tyro.conf.subcommand(name, default=_default(kind, decoding), prefix_name=False),
            ]
            for name, kind in EVAL_COMMANDS.items()
        )
    ]
    command: Command = parse_flags(commands, arguments, prog=program)
    return command


def _default(kind: type[Command], decoding: DecodingConfig) -> Command:
    """The values of a command's flags that a command line need not give."""
    return kind(decoding=decoding) if issubclass(kind, DecodingFlags) else kind()
