"""Train a Transformer from a clone that is not installed: the program `t2t-jax`, by another name.

python train.py --config configs/quickstart.py --workdir runs/quickstart   # t2t-jax train
python train.py bleu --workdir runs/quickstart                             # every other command
"""

from collections.abc import Sequence

from t2t_jax.system.program import run


def main(arguments: Sequence[str]) -> int:
    """Run the command that the command line names, or train if it names none."""
    from t2t_jax.__main__ import main

    names_a_command = arguments and not arguments[0].startswith("-")
    return main(arguments if names_a_command else ["train", *arguments], "train.py")


if __name__ == "__main__":
    run(main)
