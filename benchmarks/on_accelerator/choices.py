"""The worth of each function of a preset of kernels, and of each option of the compiler.

`t2t_jax.kernels.choice` chooses the preset for the devices, and `parallel.jax_settings` the options
that training steps are compiled with. Each row has one of these choices undone: the function of
`kernels.reference.REFERENCE` in place of the preset's, or XLA's own value of the option. It is
measured in turns with the program that has all choices, both of the base model in bfloat16. `times`
is the median of the ratios of their times: above 1, the choice pays. Searches are of 64 sentences
of 32 random tokens, to 48 tokens of output.
"""

import statistics
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import measuring
import workload
from workload import jax

from on_accelerator.sizes import QUEUED, config_of, repeats, training_shape
from t2t_jax.config import Config
from t2t_jax.decoding.programs import proceed
from t2t_jax.kernels.choice import kernels_of
from t2t_jax.kernels.reference import REFERENCE, Kernels
from t2t_jax.parallel.jax_settings import compiler_options
from t2t_jax.parallel.mesh import make_mesh

_Options: TypeAlias = Mapping[str, bool | int]
_Call: TypeAlias = Callable[[], object]
_Make: TypeAlias = Callable[[Kernels, _Options], _Call]

_OF = {
    "training": ("attention", "unrolls", "losses", "linear", "layer_norm", "relu", "dropout"),
    "searches": ("cache_layout", "attention", "linear", "next_logits", "cache_dtype"),
}
"""The functions that a network calls in training and in searching, those most in doubt first."""
_DEFAULTS: dict[str, bool | int] = {
    "xla_gpu_dot_merger_threshold_mb": 32,
    "xla_gpu_enable_triton_gemm": True,
}
"""XLA's own values of options that programs on one device are compiled with."""


def measure(tiny: bool) -> Iterator[dict[str, Any]]:
    """Measure this part, and yield its rows."""
    config = config_of("base", "bfloat16", tiny)
    mesh = make_mesh(config.parallel)
    kernels = kernels_of(mesh, "bfloat16")
    step = partial(_step, config, tiny)
    yield from _compared("training steps", step, kernels, compiler_options(mesh), tiny)
    for beam_size in (1, 4):
        search = partial(_search, config.replace({"decoding.beam_size": beam_size}), tiny)
        yield from _compared(f"searches with a beam of {beam_size}", search, kernels, {}, tiny)


def _compared(
    table: str, make: _Make, chosen: Kernels, options: _Options, tiny: bool
) -> Iterator[dict[str, Any]]:
    """Measure a program with all choices in turns with each that lacks one, and yield a row."""
    with_all = make(chosen, options)
    for name, but_one in _but_one(chosen, options, _OF[table.partition(" ")[0]]):
        row = {"table": table, "without": name}
        try:
            calls = {"all": with_all, "but one": make(*but_one)}
        except jax.errors.JaxRuntimeError as error:  # mostly out of memory
            yield row | {"remark": str(error).splitlines()[0][:200]}
            continue
        seconds = measuring.in_turns(calls, repeats(tiny))
        beside = (x / y for x, y in zip(seconds["but one"], seconds["all"], strict=True))
        medians = {of: 1e3 * statistics.median(taken) for of, taken in seconds.items()}
        yield row | {
            "milliseconds with all choices": medians["all"],
            "milliseconds without": medians["but one"],
            "times": statistics.median(beside),
        }


def _step(config: Config, tiny: bool, kernels: Kernels, options: _Options) -> _Call:
    """Return a function that takes training steps."""
    [step] = workload.training_steps(config, [training_shape(tiny)], kernels, options)
    return partial(step.take, QUEUED)


def _search(config: Config, tiny: bool, kernels: Kernels, options: _Options) -> _Call:
    """Return a function that searches."""
    sizes = (4, 4, 5) if tiny else (64, 32, 48)
    params = workload.random_parameters(config)
    fixed, fresh = workload.search_arguments(config, params, *sizes, kernels)
    program, _ = measuring.compiled(proceed, *fixed, *fresh(), options=options)
    return lambda: jax.device_get(program(*fresh())[1].best.tokens)


def _but_one(
    chosen: Kernels, options: _Options, asked: Collection[str]
) -> Iterator[tuple[str, tuple[Kernels, _Options]]]:
    """Yield the kernels and the options of the compiler: all but one each, and none."""
    for field in asked:
        plain = getattr(REFERENCE, field)
        if getattr(chosen, field) is not plain:
            yield field, (replace(chosen, **{field: plain}), options)
    for name in options:
        yield f"{name}: {_DEFAULTS[name]}", (chosen, {**options, name: _DEFAULTS[name]})
    yield "any choice", (REFERENCE, {name: _DEFAULTS[name] for name in options})
