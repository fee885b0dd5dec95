"""Score a trained model, or translate with it.

python eval.py bleu --workdir runs/base --average 5
python eval.py bleu --workdir runs/base --split dev --beam-size 1 --json
python eval.py translate --workdir runs/base --input test.en --output test.de
echo "A dog runs." | python eval.py translate --workdir runs/base --num-best 4
"""

from collections.abc import Sequence

from t2t_jax.command_line import run
from t2t_jax.commands.choice import eval_command


def main(arguments: Sequence[str]) -> int:
    """Do what the command line says; returns the exit code."""
    return eval_command(arguments).run()


if __name__ == "__main__":
    run(main)
