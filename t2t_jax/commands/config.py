"""The command that prints a config, or in what two configs differ."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar, cast

import tyro

from t2t_jax.commands.flag_table import MAY_STAND_ALONE, ConfigFields
from t2t_jax.commands.flags import CommandLine, parse_flags, stored_config, with_family
from t2t_jax.commands.streams import check_heard
from t2t_jax.config import Config, differences
from t2t_jax.config.file import load_config
from t2t_jax.system.opening import opened

_Command = TypeVar("_Command")


@dataclass(frozen=True)
class ConfigCommand:
    """Print a config as JSON, with the fields that flags change, or in what two configs differ."""

    examples: ClassVar = (
        "base",
        "runs/mine --diff",
        "configs/big.py --diff configs/base.py",
        "configs/base.py --model.d-ff 4096 --diff runs/mine",
    )
    workdir: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="CONFIG")] = tyro.MISSING
    """Config file, as configs/base.py or configs/grid.py:NAME; the name of one that comes with the
    package, as base; or the directory of a run, whose config it is."""
    diff: Annotated[str | None, MAY_STAND_ALONE] = None
    """Config to compare with, named in the same ways: each field with another value is printed,
    with the value there -> the value here. Without a value, it is the paper's base model, which is
    every default."""
    fields: ConfigFields = field(default_factory=Config)

    def run(self) -> int:
        """Print the config or the differences, and return the exit code."""
        check_heard()
        if self.diff is None:
            print(self.fields.to_json(), end="")
            return 0
        changed = differences(config_named(self.diff) if self.diff else Config(), self.fields)
        for path, (old, new) in changed.items():
            print(f"{path} {old!r} -> {new!r}")
        if not changed:
            print("no field differs")
        return 0


def command_of_config(kind: type[_Command], arguments: Sequence[str], program: str) -> _Command:
    """Return a command whose first argument names the config that its `fields` begins with."""

    def defaults(line: CommandLine) -> _Command:
        fields = with_family(config_named(line.run) if line.run else Config(), line)
        return cast(Any, kind)(fields=fields)

    return parse_flags(kind, arguments, program, defaults)


config_command = partial(command_of_config, ConfigCommand)
"""The function that returns the command that a command line asks for; see `entry_command`."""


def config_named(name: str) -> Config:
    """Return the config of a file, of the package's file of a name, or of a run."""
    return stored_config(opened(name)) or load_config(name)
