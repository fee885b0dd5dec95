"""How fast a training step is: tokens/s, MFU, memory and compile time, for batches of some shapes.

    python benchmarks/train_step.py
    python benchmarks/train_step.py --config configs/big.py --shapes 64x64 --parallel.remat layer

Every field of the config is a flag. Batches hold random tokens and no padding: so many rows, and
as many tokens in each, of source and of target alike. Between steps the host only waits.

    mfu = model_flops / seconds_median / matrix_flops_per_second

`model_flops` are those of `t2t_jax.modules.cost.model_flops_per_step`: the matrix products that the
model asks for, attention's included, each derivative once, and nothing that is computed a second
time.
`matrix_flops_per_second` is what the same devices reach in the same minutes, at their best, on one
large matrix product in the compute dtype: what is left of an MFU of 1 is what could be gained.

Memory: `program_bytes` is what the compiled step takes on a device, parameters and Adam's moments
included; `process_bytes` is the most that this process had, the compiler and all shapes included.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import measuring
import workload

from t2t_jax.config import Config
from t2t_jax.errors import UserError
from t2t_jax.modules.cost import model_flops_per_step, num_parameters
from t2t_jax.modules.models import make_model
from t2t_jax.parallel.mesh import make_mesh
from t2t_jax.system.program import run
from t2t_jax.training.step import compile_train_step, create_state


@dataclass(frozen=True)
class TrainStep(measuring.Benchmark):
    """Measure the training step of a config."""

    shapes: tuple[str, ...] = ("32x32", "16x64", "8x128")
    """Batches: rows x tokens of each side of a row."""


def main(arguments: Sequence[str]) -> int:
    """Measure what the command line asks for."""
    asked = measuring.command(TrainStep, arguments)
    config = asked.fields
    if config.parallel.backend != "jit":
        raise UserError(
            "the step is compiled by parallel.backend='jit'; add --parallel.backend jit"
        )
    shapes = [measuring.rows_and_tokens(shape) for shape in asked.shapes]
    measuring.compile_afresh()
    columns, steps = zip(*_compiled(config, shapes), strict=True)
    product, product_flops = measuring.matrix_product(
        make_mesh(config.parallel), config.model.compute_dtype
    )
    seconds = measuring.in_turns({**dict(enumerate(steps)), "peak": product}, asked.repeats)
    peak = product_flops / min(seconds["peak"])
    for number, column in enumerate(columns):
        column |= measuring.spread(seconds[number])
        median = column["seconds_median"]
        column["target_tokens_per_second"] = column["target_tokens"] / median
        column["tokens_per_second"] = column["tokens"] / median
        column["mfu"] = column["model_flops"] / median / peak
    common = measuring.device_setting(asked) | {
        "parameters": num_parameters(config.model, config.data.vocab_size),
        "matrix_flops_per_second": peak,
        "process_bytes": measuring.process_bytes(),
    }
    measuring.show(common, columns, asked.json)
    return 0


def _compiled(
    config: Config, shapes: Sequence[tuple[int, int]]
) -> list[tuple[dict[str, Any], Callable[[], object]]]:
    """For each shape, figures of its program and a function that takes a step on a shared state."""
    mesh = make_mesh(config.parallel)
    model = make_model(config, config.data.vocab_size, mesh)
    state = create_state(config, model, mesh)
    step = compile_train_step(config, model, mesh)

    def take(program: Any, batch: Any) -> float:
        nonlocal state
        state, metrics = program(state, batch)
        return float(metrics.losses.smoothed)

    steps = []
    for rows, length in shapes:
        batch = workload.full_batch(config, mesh, rows, length)
        program, cost = measuring.compiled(step, state, batch)
        tokens = rows * length
        flops = model_flops_per_step(
            config.model,
            config.data.vocab_size,
            tokens,
            tokens,
            source_length=length,
            target_length=length,
        )
        figures = {"rows": rows, "length": length, "target_tokens": tokens, "tokens": 2 * tokens}
        steps.append((figures | cost | {"model_flops": flops}, partial(take, program, batch)))
    return steps


if __name__ == "__main__":
    run(main)
