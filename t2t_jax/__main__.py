"""The program `t2t-jax`: every command of the package, also as `python -m t2t_jax`.

t2t-jax --help                                 # the map of all commands
t2t-jax --version
t2t-jax train --config configs/quickstart.py --workdir runs/quickstart
t2t-jax translate --workdir runs/quickstart < test.en > test.de
"""

from collections.abc import Sequence
from functools import partial
from typing import NoReturn

from t2t_jax.system.program import run
from t2t_jax.version import __version__


def main(arguments: Sequence[str], program: str = "t2t-jax") -> int:
    """Run the command that the command line names, and return the exit code."""
    if arguments[:1] in (["--version"], ["-V"]):
        print(f"t2t-jax {__version__}")
        return 0
    from t2t_jax.commands.entry import describe_commands, entry_command

    command = entry_command(arguments, program)
    if command is None:
        print(describe_commands(program))
        return 0
    return command.run()


def start() -> NoReturn:
    """Run the program, as the installed script `t2t-jax` does."""
    run(main)


if __name__ == "__main__":
    run(partial(main, program="python -m t2t_jax"))
