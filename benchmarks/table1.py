"""Measure the paper's Table 1: the growth of each layer type's cost with the length of a row.

    python benchmarks/table1.py
    python benchmarks/table1.py --lengths 256 512 1024 --rows 8 --model.compute-dtype bfloat16

The layers are those of `layer_types.py`, of the width, heads and dtype of the config. Every field
of it is a flag. "Backward" is the derivative with respect to the input and all parameters.

    operations   floating point operations of matrix products and convolutions, counted in the jaxpr
                 by `counting.py` with loops as often as they run. JSON also has `xla_operations`
                 and `xla_bytes`, of XLA's cost analysis, for programs without loops; where they are
                 given, both counts agree, except for operations such as the softmax
    temporaries  memory that a compiled program needs beside its arguments and results
    time         median over rounds in which all layers and lengths take turns, so that other work
                 of the machine does not bend a curve; the first call, which JSON has too, left out
    chain        the most products of which each needs the result of the one before: the sequential
                 operations that remain, however much is computed at once
    path         layers, or steps of the recurrent layer, from the first position to the last

The paper's columns are those of Table 1, the separable convolution from section 4's text. Exponents
of n are of a least squares fit of the logarithms over the longer half of the lengths. Operations
are those of the formulas as XLA computes them, also where a fused kernel is timed.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import command_line
import measuring
from counting import count
from layer_types import Layer, LayerType, layer_types
from table1_results import DIRECTIONS, Columns, add_exponents, plot, print_tables
from workload import jax

from t2t_jax.errors import UserError, check_installed
from t2t_jax.kernels.choice import kernels_of
from t2t_jax.kernels.reference import Kernels
from t2t_jax.parallel.devices import memory_of_a_device
from t2t_jax.parallel.mesh import make_mesh
from t2t_jax.system.atomic_file import write_whole
from t2t_jax.system.program import run


@dataclass(frozen=True)
class Table1(command_line.Benchmark):
    """Measure the layer types of the paper's Table 1."""

    repeats: int = 3
    """Times that everything is measured, each in turn with all others."""
    lengths: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
    """Lengths of the rows."""
    layers: tuple[str, ...] = ()
    """Measure only layers with one of these texts in their names; all by default."""
    rows: int = 1
    """Rows of a batch."""
    window: int = 32
    """Places in each direction that restricted self-attention attends to, the position's own
    included; the neighbourhood has size r = 2 window - 1."""
    kernel_width: int = 3
    """Positions that a convolution sees, an odd number."""
    max_seconds: float = 20.0
    """Seconds of the longest call; calls that would take longer, by shorter rows, are left out."""
    plot: Path = Path("table1.png")
    """File for the plot."""


def main(arguments: Sequence[str]) -> int:
    """Measure what the command line asks for."""
    asked = command_line.command(Table1, arguments)
    _check(asked)
    measuring.compile_afresh()
    model = asked.fields.model
    kernels = kernels_of(make_mesh(asked.fields.parallel), model.dtype)
    types = _chosen(asked, kernels)
    columns = _measured(asked, types)
    add_exponents(columns)
    common = command_line.device_setting(asked) | {
        **{name: getattr(asked, name) for name in ("rows", "window", "kernel_width")},
        "d_model": model.d_model,
        "num_heads": model.num_heads,
    }
    write_whole(asked.plot, plot(types, columns))
    measuring.show(common, [*columns.values()] if asked.json else (), asked.json)
    if not asked.json:
        print_tables(types, columns)
    return 0


def _check(asked: Table1) -> None:
    if not asked.lengths or min(*asked.lengths, asked.rows) < 1:
        raise UserError("--lengths and --rows have to be given, and positive")
    if asked.window < 2:
        raise UserError(f"--window {asked.window} reaches no other position; give at least 2")
    if asked.kernel_width < 3 or asked.kernel_width % 2 == 0:
        raise UserError(f"--kernel-width {asked.kernel_width} is not an odd number above 1")
    check_installed("plots", "--plot", "matplotlib")
    if not asked.plot.parent.is_dir():
        raise UserError(f"--plot {asked.plot}: there is no directory {asked.plot.parent}")


def _chosen(asked: Table1, kernels: Kernels) -> list[LayerType]:
    """Return the layer types that the command line asks for."""
    types = layer_types(asked.fields.model, kernels, asked.window, asked.kernel_width)
    texts = asked.layers or ("",)
    for text in texts:
        if not any(text in layer.name for layer in types):
            names = ", ".join(layer.name for layer in types)
            raise UserError(f"--layers {text!r} is in the name of no layer: {names}")
    return [layer for layer in types if any(text in layer.name for text in texts)]


def _measured(asked: Table1, types: Sequence[LayerType]) -> Columns:
    """Measure all layers and lengths in common rounds, and return the figures."""
    columns: Columns = {}
    calls: dict[tuple[str, str, int], Callable[[], None]] = {}
    longest: dict[tuple[str, str], dict[str, Any]] = {}  # that was run so far
    for length in sorted({*asked.lengths}):
        for layer, direction, operands in _cases(asked, types, length):
            key = layer.name, direction, length
            figures, program = _compiled(layer, operands)
            column = dict(zip(("layer", "direction", "length"), key, strict=True)) | figures
            column["path_length"] = layer.path_length(length)
            columns[key] = column
            refused = _refused(asked, column, longest.get(key[:2]))
            if refused:
                column["refused"] = refused
                continue
            calls[key] = partial(_run, program, operands)
            start = time.perf_counter()
            calls[key]()
            column["first_seconds"] = time.perf_counter() - start
            longest[key[:2]] = column
    for key, seconds in measuring.in_turns(calls, asked.repeats, made_before=True).items():
        columns[key] |= measuring.spread(seconds)
    return columns


def _cases(
    asked: Table1, types: Sequence[LayerType], length: int
) -> Iterator[tuple[LayerType, str, tuple[Any, ...]]]:
    """Yield each layer and direction, with parameters, input and, for derivatives, a cotangent."""
    model = asked.fields.model
    shape = asked.rows, length, model.d_model
    x, cotangent = (
        jax.random.normal(jax.random.key(seed), shape, model.dtype) for seed in range(2)
    )
    forward, both = DIRECTIONS
    for layer in types:
        yield layer, forward, (layer.params, x)
        yield layer, both, (layer.params, x, cotangent)


def _compiled(
    layer: LayerType, operands: tuple[Any, ...]
) -> tuple[dict[str, Any], Callable[..., Any]]:
    """Compile a layer, with its derivative if there is a third operand; return its figures too."""
    functions = [layer.formula, layer.apply]
    if len(operands) == 3:
        functions = [*map(_with_derivative, functions)]
    counts = count(functions[0], *operands)
    lowered = jax.jit(functions[1]).lower(*operands)
    program = lowered.compile()
    memory = program.memory_analysis()
    figures = {
        "operations": counts.operations,
        "product_bytes": counts.num_bytes,
        "chain": counts.chain,
        "temporary_bytes": memory.temp_size_in_bytes,
        "program_bytes": memory.temp_size_in_bytes
        + memory.argument_size_in_bytes
        + memory.output_size_in_bytes,
    }
    if not counts.has_loops:
        figures["xla_operations"] = (lowered.cost_analysis() or {}).get("flops")
        figures["xla_bytes"] = (program.cost_analysis() or {}).get("bytes accessed")
    return figures, program


def _with_derivative(layer: Layer) -> Callable[..., Any]:
    def both(params: Any, x: Any, cotangent: Any) -> Any:
        y, derivative = jax.vjp(layer, params, x)
        return y, derivative(cotangent)

    return both


def _refused(
    asked: Table1, column: Mapping[str, Any], shorter: Mapping[str, Any] | None
) -> str | None:
    """Return why a program is not run, or None if it is.

    Args:
      asked: the command line.
      column: figures of the program.
      shorter: figures of the same layer for the longest row that it was run for so far.
    """
    there_is = memory_of_a_device(make_mesh(asked.fields.parallel))
    if there_is is not None and column["program_bytes"] > there_is:
        needs = column["program_bytes"] / 2**30
        return f"it needs {needs:.1f} GiB of memory, and there are {there_is / 2**30:.1f}"
    if shorter is not None:
        expected = shorter["first_seconds"] * column["operations"] / shorter["operations"]
        if expected > asked.max_seconds:
            return f"it would take about {expected:.3g} s; --max-seconds is {asked.max_seconds:g}"
    return None


def _run(program: Callable[..., Any], operands: Sequence[Any]) -> None:
    jax.block_until_ready(program(*operands))


if __name__ == "__main__":
    run(main)
