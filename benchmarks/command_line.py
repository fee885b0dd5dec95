"""The command line of the benchmarks, and the facts that their figures depend on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import Annotated, Any, TypeVar

import tyro
from measuring import machine

from t2t_jax.commands.flags import CommandLine, parse_flags, with_family
from t2t_jax.config import Config, differences, format_differences
from t2t_jax.config.file import load_config
from t2t_jax.errors import UserError


@dataclass(frozen=True)
class Benchmark:
    """The flags of every benchmark, which include the flags of `t2t-jax train`."""

    config: str = "configs/base.py"
    """Config file: configs/base.py, or configs/grid.py:NAME."""
    repeats: int = 5
    """Times that everything is measured, each in turn with all others."""
    json: bool = False
    """Print one JSON object for each column of the table."""
    fields: Annotated[Config, tyro.conf.arg(name=""), tyro.conf.FlagConversionOff] = field(
        default_factory=Config
    )


_Command = TypeVar("_Command", bound=Benchmark)


def command(
    kind: type[_Command],
    arguments: Sequence[str],
    change: Callable[[Config], Config] = lambda config: config,
) -> _Command:
    """Parse the command line of a benchmark; `change` is applied to the config before the flags.

    Raises:
      UserError: a flag or its value is refused.
    """

    def defaults(line: CommandLine) -> _Command:
        config = change(load_config(line.value_of("--config") or kind.config))
        return kind(fields=with_family(config, line))

    asked = parse_flags(kind, arguments, kind.__name__.lower(), defaults)
    if asked.repeats < 1:
        raise UserError(f"repeats={asked.repeats} is not positive")
    if "auto" in (asked.fields.model.compute_dtype, asked.fields.parallel.tokens_per_device):
        from t2t_jax.parallel.mesh import make_mesh
        from t2t_jax.training.settling import settled

        asked = replace(asked, fields=settled(asked.fields, make_mesh(asked.fields.parallel)))
    return asked


def rows_and_tokens(shape: str, flag: str = "--shapes") -> tuple[int, int]:
    """Parse the shape of a batch, the value of `flag`: "32x64" is 32 rows of 64 tokens.

    Raises:
      UserError: the text is no such shape.
    """
    rows, _, length = shape.partition("x")
    if not (rows.isdecimal() and length.isdecimal() and int(rows) and int(length)):
        raise UserError(f"{flag} {shape} is not rows x tokens; write it as 32x64")
    return int(rows), int(length)


def setting(asked: Benchmark) -> dict[str, Any]:
    """Return the facts that the figures of all columns depend on."""
    return machine() | {
        "config": asked.config,
        "changes": format_differences(differences(load_config(asked.config), asked.fields))
        or "none",
        "repeats": asked.repeats,
        "jax": version("jax"),
    }


def device_setting(asked: Benchmark) -> dict[str, Any]:
    """Return the facts of `setting`, and the devices and dtype of a benchmark that runs JAX."""
    import jax

    return setting(asked) | {
        "devices": f"{jax.device_count()} x {jax.devices()[0].device_kind}",
        "compute_dtype": asked.fields.model.compute_dtype,
    }
