"""Score a trained model, translate or parse with it, or set it beside the paper.

python eval.py bleu --workdir runs/base
python eval.py bleu --workdir runs/base --split dev --beam-size 1 --json
python eval.py translate --workdir runs/base --input test.en --output test.de
echo "A dog runs." | python eval.py translate --workdir runs/base runs/other --num-best 4
python eval.py score --workdir runs/base --source test.en --target test.de
python eval.py compare --references test.de --hypotheses one.de other.de
python eval.py report --workdir runs/base
python eval.py parse --workdir runs/parser < sentences
python eval.py parseval --workdir runs/parser --split dev
python eval.py compare-trees --gold test.mrg --predicted parsed.mrg
"""

from collections.abc import Sequence

from t2t_jax.system.program import run


def main(arguments: Sequence[str]) -> int:
    """Do what the command line says, and return the exit code."""
    from t2t_jax.commands.entry import eval_command

    return eval_command(arguments).run()


if __name__ == "__main__":
    run(main)
