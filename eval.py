"""Use a trained model from a clone that is not installed: the program `t2t-jax`, by another name.

python eval.py --help                                  # the map of all commands
python eval.py evaluate --workdir runs/quickstart      # t2t-jax evaluate
echo "No devices found" | python eval.py translate --workdir runs/quickstart
"""

from collections.abc import Sequence

from t2t_jax.system.program import run


def main(arguments: Sequence[str]) -> int:
    """Run the command that the command line names, and return the exit code."""
    from t2t_jax.__main__ import main

    return main(arguments, "eval.py")


if __name__ == "__main__":
    run(main)
