"""The version of the package, and the old names that it still takes, with a warning."""

from typing import NamedTuple

from t2t_jax.errors import UserError, warn

__version__ = "0.2.0"


class Renamed(NamedTuple):
    """A name that replaces another one."""

    name: str
    """The name that is to be used now."""
    since: str
    """The version that renamed it, as "0.3". This one takes the old name too, no later one does."""


RENAMED: dict[str, Renamed] = {}
"""What replaces an old name: a field of the config (`model.d_ff`), a flag of a command that is no
such field (`--workdir`), or a name of the package (`t2t_jax.load`). The row of a field stays for
good, as it is also how the configs of older runs are read."""


def current_name(name: str) -> str:
    """Return the name that replaces an old one, with a warning; any other name as it is.

    Raises:
      UserError: the version that takes the old name has gone by.
    """
    if name not in RENAMED:
        return name
    new, since = RENAMED[name]
    if __version__.split(".")[:2] != since.split(".")[:2]:
        raise UserError(f"{name} is called {new} since version {since}; use that name")
    warn(f"{name} is now called {new}, and later versions refuse the old name")
    return new


def current_flag(argument: str) -> str:
    """Return an argument of a command line with the name that replaces that of an old flag.

    Raises:
      UserError: the version that takes the old name has gone by.
    """
    flag, equals, value = argument.partition("=")
    name = flag.replace("_", "-")
    if name in RENAMED:
        return f"{current_name(name)}{equals}{value}"
    field = name.removeprefix("--").replace("-", "_")
    if name.startswith("--") and field in RENAMED:
        return f"--{current_name(field).replace('_', '-')}{equals}{value}"
    return argument


def read_name(name: str) -> str:
    """Return the name that replaces an old one in what a program wrote, without a warning."""
    return RENAMED[name].name if name in RENAMED else name
