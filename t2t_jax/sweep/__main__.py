"""Train a grid of configs and compare them: `t2t-jax sweep`, as `python -m t2t_jax.sweep`."""

from collections.abc import Sequence

from t2t_jax.system.program import run


def main(arguments: Sequence[str]) -> int:
    """Run the sweep of a command line, and return the exit code."""
    from t2t_jax.commands.sweep import sweep_command

    return sweep_command(arguments, "python -m t2t_jax.sweep").run()


if __name__ == "__main__":
    run(main)
