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
    from t2t_jax.commands.flags import train_command

    command = train_command(arguments)
    # From here on JAX is imported, which --help and mistakes need not wait for.
    if command.compile_only is not None:
        from t2t_jax.ahead_of_time.compile import compile_ahead, devices_of
        from t2t_jax.ahead_of_time.report import format_report

        report = compile_ahead(command.fields, devices_of(command.compile_only))
        print(*format_report(report), sep="\n")
        return 1 if report.fits is False else 0
    from t2t_jax.parallel.processes import join

    join(command.coordinator, command.num_processes, command.process_id)
    from t2t_jax.run.trainer import train

    return train(command.fields, command.workdir)


if __name__ == "__main__":
    run(main)
