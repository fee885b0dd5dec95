"""Train a grid of configs and compare them: `t2t-jax sweep`, as `python -m t2t_jax.sweep`."""

from collections.abc import Sequence

from t2t_jax.system.program import run


def main(arguments: Sequence[str]) -> int:
    """Run the sweep of a command line, and return the exit code."""
    from t2t_jax.commands.entry import command_of
    from t2t_jax.commands.sweep import SweepCommand

    code: int = command_of(SweepCommand, arguments, "python -m t2t_jax.sweep").run()
    return code


if __name__ == "__main__":
    run(main)
