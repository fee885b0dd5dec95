"""The time of each part of a step: a profile, beside the bound of the compiled program.

Shares are those of parts of the model in the times of all operations. The tables of kernels have a
row for each kind, which is the module and the operation as JAX names them: how many kernels the
text of the compiled program starts, how many the profile has, the bytes and the operations of
matrix products by that text, the least time by the rules of `--compile-only`, and the time
that the profiler measured. Where measured / bound is far above 1, a kernel can be faster, or its
bound says too little; where it is below 1, the bound is wrong. Where the profile has fewer kernels
than are started, it shows a call or a loop of them as one. The program is compiled without CUDA
graphs, whose kernels a profile shows without the names of operations; the last row is that of a
step without the profiler, among others that are taken without waiting in between.
"""

import statistics
from collections.abc import Iterator
from functools import partial
from typing import Any

import measuring
import workload
from bounds import beside_the_bound
from profiling import profile, shares

from on_accelerator.sizes import QUEUED, config_of, repeats, training_shape
from t2t_jax.extras.compile_only.hlo import parse_program
from t2t_jax.parallel.hardware import peaks


def measure(tiny: bool) -> Iterator[dict[str, Any]]:
    """Measure this part, and yield its rows."""
    for model in ("base",) if tiny else ("base", "big"):
        config = config_of(model, "bfloat16", tiny)
        (step,) = workload.training_steps(config, [training_shape(tiny)])
        steps = partial(step.take, QUEUED)
        seconds = statistics.median(measuring.in_turns({"": steps}, repeats(tiny))[""]) / QUEUED
        program, measured = parse_program(step.program.as_text()), profile(step.take)
        for part, share in shares(program, measured).items():
            row = {"table": f"a step of the {model} model in bfloat16", "operations": part}
            yield row | {"share_of_the_time": share}
        hardware = peaks(workload.jax.devices())
        for row in beside_the_bound(program, measured, seconds, hardware):
            yield {"table": f"kernels of a step of the {model} model, beside their bound"} | row
