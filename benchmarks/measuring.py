"""The functions that the benchmarks share: timing in turns, a peak to compare with, and output."""

import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from t2t_jax.system.host import instruction_sets, processor_name
from t2t_jax.system.records import as_line

_Key = TypeVar("_Key", bound=Hashable)


def machine() -> dict[str, Any]:
    """Return the facts of the host that the figures of every benchmark depend on."""
    return {
        "processor": processor_name(),
        "instruction_sets": " ".join(instruction_sets()),
        "cpu_cores": os.cpu_count(),
    }


def compile_afresh() -> None:
    """Turn the cache of compiled programs off, so that the time of compiling can be measured."""
    import jax

    jax.config.update("jax_enable_compilation_cache", False)


def compiled(
    function: Any, *arguments: Any, options: Mapping[str, bool | int] | None = None
) -> tuple[Any, dict[str, float]]:
    """Compile a jitted function for some arguments, and return it with its seconds and bytes.

    The bytes are those of one device: arguments, results and temporaries, with arrays that share
    their memory counted once.

    Args:
      function: the jitted function.
      arguments: its arguments.
      options: options of the compiler that take the place of the function's own.
    """
    start = time.perf_counter()
    program = function.lower(*arguments).compile(dict(options) if options else None)
    seconds = time.perf_counter() - start
    memory = program.memory_analysis()
    size = memory.argument_size_in_bytes + memory.temp_size_in_bytes
    size += memory.output_size_in_bytes - memory.alias_size_in_bytes
    return program, {"compile_seconds": seconds, "program_bytes": size}


def in_turns(
    calls: Mapping[_Key, Callable[[], object]], repeats: int, *, made_before: bool = False
) -> dict[_Key, list[float]]:
    """Measure the seconds of each call, in rounds, after each call was made once untimed.

    The calls take turns, so that other work of the machine slows all of them alike.

    Args:
      calls: the calls, by any key.
      repeats: number of rounds.
      made_before: whether each call was made already, so that no untimed call is needed.
    """
    seconds: dict[_Key, list[float]] = {key: [] for key in calls}
    for measured in (*[False] * (not made_before), *[True] * repeats):
        for key, call in calls.items():
            start = time.perf_counter()
            call()
            if measured:
                seconds[key].append(time.perf_counter() - start)
    return seconds


def spread(seconds: Sequence[float], name: str = "seconds") -> dict[str, float]:
    """Return the least, the median and the largest of some seconds."""
    return {
        f"{name}_min": min(seconds),
        f"{name}_median": statistics.median(seconds),
        f"{name}_max": max(seconds),
    }


def matrix_product(
    mesh: Any, dtype: str, *, precision: str | None = None
) -> tuple[Callable[[], object], float]:
    """Return a large matrix product over all devices of a mesh, and its operations (FLOPs).

    Its operands are normal random numbers: on zeros and ones, GPUs need less power and are faster.

    Args:
      mesh: the devices.
      dtype: the dtype of the operands.
      precision: the precision of products in float32; see `jax.default_matmul_precision`. None is
        the default of the devices, which is TF32 on NVIDIA GPUs.
    """
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    size = 2048 if mesh.devices.flat[0].platform == "cpu" else 8192
    rows = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    whole = NamedSharding(mesh, PartitionSpec())

    def normal(seed: int, height: int, place: NamedSharding) -> jax.Array:
        make = partial(jax.random.normal, shape=(height, size), dtype=dtype)
        return jax.jit(make, out_shardings=place)(jax.random.key(seed))

    a, b = normal(0, size * mesh.size, rows), normal(1, size, whole)
    multiply = jax.jit(partial(jnp.matmul, precision=precision), out_shardings=rows)
    return lambda: multiply(a, b).block_until_ready(), 2.0 * a.size * size


def process_bytes() -> int:
    """Return the most memory that this process has had so far, in bytes."""
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else 1024 * size


def show(common: Mapping[str, Any], columns: Sequence[Mapping[str, Any]], as_json: bool) -> None:
    """Print figures: a table with a column for each case, or a line of JSON for each."""
    if as_json:
        for column in columns:
            print(as_line({**common, **column}), flush=True)
        return
    for name, value in common.items():
        print(f"{name:<32}{cell(value)}")
    print()
    for name in dict.fromkeys(name for column in columns for name in column):
        cells = [cell(column[name]) if name in column else "" for column in columns]
        print(f"{name:<32}" + "".join(f"{cell:>16}" for cell in cells))


def cell(value: object) -> str:
    """Format a figure as tables show it."""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
