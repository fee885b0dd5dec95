r"""Train a grid of configs and compare them.

python -m t2t_jax.sweep --config configs/table3.py --dry-run
python -m t2t_jax.sweep --config configs/table3.py --workdir runs/table3 --seeds 3
python -m t2t_jax.sweep --config configs/table3.py --workdir runs/table3 --only base 'A-*'
python -m t2t_jax.sweep --config configs/table3.py --workdir runs/table3 \
    --launcher slurm --slurm timeout_min=1440 slurm_partition=gpu gpus_per_node=8
python -m t2t_jax.sweep --config configs/table3.py --workdir runs/table3 --report
"""

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
