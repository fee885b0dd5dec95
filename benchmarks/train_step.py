"""Measure a training step for batches of some shapes: tokens/s, MFU, memory and compile time.

    python benchmarks/train_step.py
    python benchmarks/train_step.py --config configs/big.py --shapes 64x64 --parallel.remat layer

Every field of the config is a flag. Batches hold random tokens and no padding. A shape is the
number of rows and of tokens in each, the same for source and target. Between steps the host waits.

    mfu = model_flops / seconds_median / matrix_flops_per_second

`model_flops` are those of `t2t_jax.config.cost.model_flops_per_step`: the matrix products that the
model asks for, attention's included, each derivative once, and nothing that is computed a second
time.
`matrix_flops_per_second` is the best rate of the same devices, in the same minutes, on one large
matrix product in the compute dtype: the difference of the MFU from 1 is the possible gain.

Memory: `program_bytes` is what the compiled step takes on a device, parameters and Adam's moments
included; `process_bytes` is the most that this process had, the compiler and all shapes included.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import command_line
import measuring
import workload

from t2t_jax.config.cost import num_parameters
from t2t_jax.errors import UserError
from t2t_jax.parallel.mesh import make_mesh
from t2t_jax.system.program import run


@dataclass(frozen=True)
class TrainStep(command_line.Benchmark):
    """Measure the training step of a config."""

    shapes: tuple[str, ...] = ("32x32", "16x64", "8x128")
    """Batches: rows x tokens of each side of a row."""


def main(arguments: Sequence[str]) -> int:
    """Measure what the command line asks for."""
    asked = command_line.command(TrainStep, arguments)
    config = asked.fields
    if config.parallel.backend != "jit":
        raise UserError(
            "the step is compiled by parallel.backend='jit'; add --parallel.backend jit"
        )
    shapes = [command_line.rows_and_tokens(shape) for shape in asked.shapes]
    measuring.compile_afresh()
    steps = workload.training_steps(config, shapes)
    mesh = make_mesh(config.parallel)
    product, product_flops = measuring.matrix_product(mesh, config.model.dtype)
    calls = {number: step.take for number, step in enumerate(steps)}
    seconds = measuring.in_turns({**calls, "peak": product}, asked.repeats)
    peak = product_flops / min(seconds["peak"])
    columns = [
        step.figures | measuring.spread(seconds[number]) for number, step in enumerate(steps)
    ]
    for column in columns:
        median = column["seconds_median"]
        column["target_tokens_per_second"] = column["target_tokens"] / median
        column["tokens_per_second"] = column["tokens"] / median
        column["mfu"] = column["model_flops"] / median / peak
    common = command_line.device_setting(asked) | {
        "parameters": num_parameters(config.model, config.data.vocab_size),
        "matrix_flops_per_second": peak,
        "process_bytes": measuring.process_bytes(),
    }
    measuring.show(common, columns, asked.json)
    return 0


if __name__ == "__main__":
    run(main)
