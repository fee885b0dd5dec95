"""Train a Transformer.

python train.py --config configs/base.py --workdir runs/base
python train.py --config configs/base.py --workdir runs/wide --model.d-ff 4096
python train.py --workdir runs/base          # go on with a run that was stopped
python train.py --config configs/big.py --compile-only           # does it fit this machine?
python train.py --config configs/big.py --compile-only v5e:4x4   # or 16 TPUs, with none attached?
python train.py --help                       # every field of the config is a flag
"""

from collections.abc import Sequence

from t2t_jax.system.program import run


def main(arguments: Sequence[str]) -> int:
    """Train as the command line says, or tell what that would take; returns the exit code."""
    from t2t_jax.commands.train import train_command

    return train_command(arguments).run()


if __name__ == "__main__":
    run(main)
