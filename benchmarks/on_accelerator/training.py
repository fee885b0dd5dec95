"""Training steps of the paper's models: speed, share of the matrix peak, time to compile, memory.

A step has 392 x 64 random tokens of each side and no padding, in one pass. Ten steps are taken
without waiting in between, as in a training run. The peak is that of one
large product of random numbers in the same dtype, measured in turns with the step; the operations
are those of `model_flops_per_step`. The formula for memory, `training_memory`, is a lower bound.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import measuring
import workload

from on_accelerator.sizes import QUEUED, config_of, repeats, training_shape
from t2t_jax.config import Config
from t2t_jax.kernels.attention import cudnn_form
from t2t_jax.kernels.choice import kernels_of
from t2t_jax.kernels.gpu import GPU
from t2t_jax.kernels.reference import Kernels
from t2t_jax.parallel.mesh import make_mesh
from t2t_jax.training.step_memory import training_memory

_GIB = 2**30
_CASES = (
    ("base", "bfloat16", "fused"),
    ("base", "bfloat16", "products and softmax"),
    ("big", "bfloat16", "fused"),
    ("big", "bfloat16", "products and softmax"),
    ("base", "float32", "products and softmax"),
    ("big", "float32", "products and softmax"),
)


def measure(tiny: bool) -> Iterator[dict[str, Any]]:
    """Measure this part, and yield its rows."""
    if not tiny:
        measuring.compile_afresh()
    for model, dtype, attention in _CASES:
        config = config_of(model, dtype, tiny)
        kernels = kernels_of(make_mesh(config.parallel), dtype)
        row = {"table": "training steps", "model": model, "dtype": dtype, "attention": attention}
        if attention != "fused":
            kernels = replace(kernels, attention=GPU.attention)
        elif cudnn_form not in kernels.attention.forms:
            yield row | {"remark": "these devices have no fused attention"}
            continue
        try:
            yield row | _figures(config, kernels, tiny)
        except workload.jax.errors.JaxRuntimeError as error:  # mostly out of memory
            yield row | {"remark": str(error).splitlines()[0][:200]}


def _figures(config: Config, kernels: Kernels, tiny: bool) -> dict[str, Any]:
    """Measure a model's step in turns with the product that gives the peak; return the figures."""
    rows, length = training_shape(tiny)
    (step,) = workload.training_steps(config, [(rows, length)], kernels)
    mesh = make_mesh(config.parallel)
    product, product_flops = measuring.matrix_product(mesh, config.model.dtype)
    steps = partial(step.take, QUEUED)
    seconds = measuring.in_turns({"steps": steps, "peak": product}, repeats(tiny))
    taken = measuring.spread([each / QUEUED for each in seconds["steps"]])
    rate = step.figures["model_flops"] / taken["seconds_median"]
    formula = training_memory(config, config.data.vocab_size, (rows, length, length))
    return {
        **{name.replace("seconds", "milliseconds"): 1e3 * taken[name] for name in taken},
        "target_tokens_per_second": step.figures["target_tokens"] / taken["seconds_median"],
        "tflops_per_second": rate / 1e12,
        "share_of_peak": rate / (product_flops / min(seconds["peak"])),
        "compile_seconds": step.figures["compile_seconds"],
        "program_gib": step.figures["program_bytes"] / _GIB,
        "formula_gib": formula.total / _GIB,
    }
