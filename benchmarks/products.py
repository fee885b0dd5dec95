"""Measure which of several forms of each matrix product are fast on this machine.

    python benchmarks/products.py
    python benchmarks/products.py --config configs/big.py --rows 4096 --length 128 --dtypes bfloat16

The products are x W of a feed-forward network with its gradients, the logits with theirs (g is the
gradient of the result), and attention's two: each alone, and both with the softmax between them,
by which t2t_jax chooses. Sizes are those of the config, each of whose fields is a flag. Products of
few rows, and with matrices in int8, are those of a search. Products of layers are computed within a
`lax.scan` over stacks of three, and take slices of them; the logits are computed once.

    plain                     as JAX writes it: the result has the dtype of the operands
    float32 result            afterwards rounded to that dtype, but for logits and scores; so have
                              all forms below
    in float32                operands converted to float32 before
    ... transposed in blocks  by `t2t_jax.kernels.bfloat16.transpose`; so is the result if need be
    ... given                 transposed before the clock starts: a bound, and no form to choose
    W or table by rows        in memory with a row for every output; by columns, for every input
    t2t_jax                   the form that `t2t_jax/kernels/` chooses on these devices

Figures are GFLOP/s by the median of the times. A * is at the fastest form of a product, bounds left
out. A form that XLA does not compile or run is "refused"; `--json` has the reason. Below the table
are the forms that are more than 10% faster than the choice, which then has to be checked again for
this processor or this version of jaxlib.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from math import prod
from typing import Any, Literal

import command_line
import measuring
from forms import OURS, Product, products
from workload import jax

from t2t_jax.errors import UserError
from t2t_jax.kernels import cpu, gpu, tpu
from t2t_jax.kernels.choice import fast_compute_dtype, kernels_of
from t2t_jax.kernels.int8 import Int8Matrix, quantize
from t2t_jax.kernels.reference import Kernels
from t2t_jax.parallel.mesh import make_mesh
from t2t_jax.system.program import run

_LAYERS = 3
_FASTER = 1.1
"""A form that is more than this many times as fast as the choice is printed below the table."""


@dataclass(frozen=True)
class Products(command_line.Benchmark):
    """Measure the forms of a config's matrix products."""

    rows: int = 1024
    """Positions of a training step."""
    length: int = 64
    """Positions of a sequence, which attend to each other."""
    few_rows: tuple[int, ...] = (32, 128)
    """Hypotheses of a search, of one position each."""
    dtypes: tuple[Literal["float32", "bfloat16", "int8"], ...] = ("float32", "bfloat16", "int8")
    """Dtypes of the operands; int8 is the dtype of the matrices of a search."""


def main(arguments: Sequence[str]) -> int:
    """Measure what the command line asks for."""
    asked = command_line.command(Products, arguments)
    if min(asked.rows, asked.length, *asked.few_rows) < 1:
        raise UserError("--rows, --length and --few-rows have to be positive")
    if asked.rows % asked.length:
        raise UserError(f"--rows {asked.rows} is no multiple of --length {asked.length}")
    measuring.compile_afresh()
    mesh = make_mesh(asked.fields.parallel)
    kernels = kernels_of(mesh, "bfloat16")
    columns = [
        {"product": product.name, "rows": rows, "dtype": dtype} | column
        for dtype in asked.dtypes
        for rows in dict.fromkeys((asked.rows, *asked.few_rows))
        for product in products(dtype, rows == asked.rows, kernels)
        for column in _measured(product, _sizes(asked, rows), dtype, asked.repeats)
    ]
    common = command_line.device_setting(asked) | {
        "length": asked.length,
        "preset": _name(kernels),
        "auto_compute_dtype": fast_compute_dtype(mesh),
    }
    del common["compute_dtype"]  # several dtypes are measured, whatever the config says
    measuring.show(common, columns if asked.json else (), asked.json)
    if not asked.json:
        _print_table(columns, asked.dtypes)
        print(*_judgements(common, columns), sep="\n")
    return 0


def _name(kernels: Kernels) -> str:
    """Return the name of a preset in its module."""
    presets = {**vars(cpu), **vars(gpu), **vars(tpu)}
    return next(name for name, preset in presets.items() if preset is kernels)


def _sizes(asked: Products, rows: int) -> dict[str, int]:
    """Return the size of each axis of `forms`, by its letter."""
    model, length = asked.fields.model, asked.length
    sizes = {"r": rows, "i": model.d_model, "o": model.d_ff, "v": asked.fields.data.vocab_size}
    heads = {"h": model.num_heads, "d": model.key_size, "e": model.value_size}
    return sizes | heads | {"b": rows // length, "q": length, "k": length}


def _measured(
    product: Product, sizes: Mapping[str, int], dtype: str, repeats: int
) -> list[dict[str, Any]]:
    """Measure every form of a product, and return its figures."""
    layers = _LAYERS if product.is_layers else None
    flops = 2 * (layers or 1) * sum(_multiply_adds(one, sizes) for one in product.equations)
    operand = cache(partial(_operand, sizes, dtype, layers))
    calls, columns = {}, {}
    for name, form in product.forms.items():
        if dtype == "float32" and "float32" in name:
            continue  # the plain form is the same
        program = jax.jit(_over_layers(form.compute) if layers else form.compute)
        call = partial(_run, program, [operand(axes) for axes in form.operands.split(",")])
        try:
            call()
        except jax.errors.JaxRuntimeError as error:
            columns[name] = {"form": name, "refused": str(error).partition("\n")[0]}
        else:
            calls[name] = call
            columns[name] = {"form": name, "flops": flops}
    for name, seconds in measuring.in_turns(calls, repeats).items():
        column = columns[name]
        column |= measuring.spread(seconds)
        column["flops_per_second"] = flops / column["seconds_median"]
    speeds = {name: columns[name]["flops_per_second"] for name in calls if not _is_bound(name)}
    for name in calls:
        columns[name]["fastest"] = name in speeds and speeds[name] == max(speeds.values())
        if OURS in speeds:
            ratio = columns[name]["flops_per_second"] / speeds[OURS]
            columns[name]["times_as_fast_as_ours"] = ratio
    return list(columns.values())


def _multiply_adds(equation: str, sizes: Mapping[str, int]) -> int:
    return prod(sizes[axis] for axis in {*equation} & {*sizes})


def _is_bound(form: str) -> bool:
    return form.endswith(" given")


def _operand(sizes: Mapping[str, int], dtype: str, layers: int | None, axes: str) -> Any:
    """Return an operand of random numbers, or a stack of such operands for layers."""
    shape = [sizes[axis] for axis in axes]
    array = jax.random.normal(jax.random.key(0), [layers, *shape] if layers else shape)
    if dtype != "int8":
        return array.astype(dtype)
    if axes.startswith("r"):
        return array  # vectors, which are quantised within the product
    return Int8Matrix(*quantize(array, axis=axes.index("i") - len(axes)))


def _over_layers(compute: Callable[..., Any]) -> Callable[..., Any]:
    def scan(*stacks: Any) -> Any:
        return jax.lax.scan(lambda _, operands: (None, compute(*operands)), None, stacks)[1]

    return scan


def _run(program: Callable[..., Any], operands: Sequence[Any]) -> None:
    jax.block_until_ready(program(*operands))


def _print_table(columns: Iterable[Mapping[str, Any]], dtypes: Sequence[str]) -> None:
    """Print GFLOP/s: a line for each form of a product, with a figure for each dtype."""
    cells: dict[str, dict[str, dict[str, str]]] = {}
    # Their order is that of bfloat16, which has all of them.
    for column in sorted(columns, key=lambda column: column["dtype"] != "bfloat16"):
        forms = cells.setdefault(f"{column['product']}, {column['rows']:,} rows", {})
        forms.setdefault(column["form"], {})[column["dtype"]] = _cell(column)
    print(f"{'GFLOP/s':<68}" + "".join(f"{dtype:>12}" for dtype in dtypes))
    for product, forms in cells.items():
        for form in sorted(forms, key=lambda form: form == OURS):
            label = f"{form}, the choice" if form == OURS else form
            figures = "".join(f"{forms[form].get(dtype, ''):>12}" for dtype in dtypes)
            print(f"{product:<40}{label:<28}{figures}")
            product = ""


def _cell(column: Mapping[str, Any]) -> str:
    if "refused" in column:
        return "refused "
    return f"{column['flops_per_second'] / 1e9:,.1f}{'*' if column['fastest'] else ' '}"


def _judgements(common: Mapping[str, Any], columns: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    """Yield what t2t_jax chooses here, and sentences on forms that are faster or refused."""
    yield (
        f"\nThe preset of kernels is {common['preset']} here, and model.compute_dtype='auto' means "
        f"{common['auto_compute_dtype']}."
    )
    found = False
    for column in columns:
        of = f"{column['product']}, {column['rows']:,} rows, {column['dtype']}"
        form, ratio = column["form"], column.get("times_as_fast_as_ours", 0)
        if form == OURS and "refused" in column:
            found = True
            yield f"{of}: the choice of t2t_jax is refused: {column['refused']}"
        elif ratio > _FASTER and not _is_bound(form):
            found = True
            yield f"{of}: {form!r} is {ratio:.2f} times as fast as the choice of t2t_jax."
    if not found:
        yield "No form is more than 10% faster than the choice of t2t_jax."


if __name__ == "__main__":
    run(main)
