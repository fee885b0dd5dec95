"""The command `config`: print a config, or the differences between two configs."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar, cast

import tyro

from t2t_jax.commands.flag_table import MAY_STAND_ALONE, ConfigFields
from t2t_jax.commands.flags import CommandLine, parse_flags, stored_config, with_family
from t2t_jax.commands.streams import check_stdout_open
from t2t_jax.config import Config, differences
from t2t_jax.config.file import load_config
from t2t_jax.system.opening import resolve_run

_Command = TypeVar("_Command")


@dataclass(frozen=True)
class ConfigCommand:
    """Print a config as JSON, with overrides from flags, or the differences between two configs."""

    examples: ClassVar = (
        "base",
        "runs/mine --diff",
        "configs/big.py --diff configs/base.py",
        "configs/base.py --model.d-ff 4096 --diff runs/mine",
    )
    workdir: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="CONFIG")] = tyro.MISSING
    """Config file, such as configs/base.py or configs/grid.py:NAME; the name of a config in the
    package, such as base; or a run directory."""
    diff: Annotated[str | None, MAY_STAND_ALONE] = None
    """Config to compare with, named like CONFIG: print each field that differs, as its value in
    the compared config -> its value in CONFIG. Without a value, compare with the defaults, which
    are the paper's base model."""
    fields: ConfigFields = field(default_factory=Config)

    def run(self) -> int:
        """Print the config or the differences, and return the exit code."""
        check_stdout_open()
        if self.diff is None:
            print(self.fields.to_json(), end="")
            return 0
        changes = differences(config_named(self.diff) if self.diff else Config(), self.fields)
        for path, (old, new) in changes.items():
            print(f"{path} {old!r} -> {new!r}")
        if not changes:
            print("no field differs")
        return 0


def command_of_config(kind: type[_Command], arguments: Sequence[str], program: str) -> _Command:
    """Parse a config name and flags that override its fields, and return the command `kind`."""

    def defaults(line: CommandLine) -> _Command:
        fields = with_family(config_named(line.run) if line.run else Config(), line)
        return cast(Any, kind)(fields=fields)

    return parse_flags(kind, arguments, program, defaults)


config_command = partial(command_of_config, ConfigCommand)
"""Parse the command line of `t2t-jax config`; `entry_command` calls this function by its name."""


def config_named(name: str) -> Config:
    """Load a config from a run directory, a config file, or a config file of the package."""
    return stored_config(resolve_run(name)) or load_config(name)
