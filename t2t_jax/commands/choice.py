"""Which command of `eval.py` a command line asks for."""

from collections.abc import Sequence
from typing import Annotated, Any, Union

import tyro

from t2t_jax.commands.decode import Decode, Parse, Score, Translate
from t2t_jax.commands.flags import check_flags, names, parse, peek, stored_config
from t2t_jax.commands.measure import Bleu, Compare, CompareTrees, Parseval
from t2t_jax.commands.report import Report
from t2t_jax.config import Config, DecodingConfig
from t2t_jax.errors import UserError

Command = Bleu | Parseval | Translate | Parse | Score | Compare | CompareTrees | Report

COMMANDS: dict[str, type[Command]] = {
    "bleu": Bleu,
    "translate": Translate,
    "score": Score,
    "report": Report,
    "parse": Parse,
    "parseval": Parseval,
    "compare": Compare,
    "compare-trees": CompareTrees,
}
"""The commands of `eval.py`."""


def eval_command(arguments: Sequence[str]) -> Command:
    """What a command line of `eval.py` asks for.

    Decoding settings that no flag names are those of the run.

    Raises:
      UserError: a flag or its value is refused.
    """
    name = next(iter(arguments), "")
    if name in COMMANDS:
        check_flags(arguments, _flags(COMMANDS[name]))
    elif name not in ("-h", "--help"):
        given = f", not {name!r}" if name else ", as in bleu --workdir runs/base; see --help"
        raise UserError(f"eval.py takes a command first ({', '.join(COMMANDS)}){given}")
    _, workdir = peek(arguments)
    decoding = (stored_config(workdir) or Config()).decoding
    commands: Any = Union[  # noqa: UP007  (made of values, which | cannot join)
        tuple(
            Annotated[
                command,
                tyro.conf.subcommand(name, default=_default(command, decoding), prefix_name=False),
            ]
            for name, command in COMMANDS.items()
        )
    ]
    return parse(commands, arguments, prog="eval.py")


def _flags(command: type[Command]) -> list[str]:
    return [*names(command), *(names(DecodingConfig) if issubclass(command, Decode) else [])]


def _default(command: type[Command], decoding: DecodingConfig) -> Any:
    return command(decoding=decoding) if issubclass(command, Decode) else command()
