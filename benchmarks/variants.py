"""Measure the cost of a training step of network variants, in relation to the base of their grid.

    python benchmarks/variants.py
    python benchmarks/variants.py --config configs/modern.py --only rotary alibi --shape 16x64

Steps of all variants take turns, and each is compared with the base's step of the same round, by
the processor time of the process and by the clock: other work of the machine blurs the second more.
Each variant keeps its parameters and moments in memory, the base model's 0.75 GB of a vocabulary of
37,000.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import workload
from command_line import rows_and_tokens
from measuring import machine, show

from t2t_jax.commands.flags import parse_flags
from t2t_jax.config.cost import num_parameters
from t2t_jax.config.file import load_grid
from t2t_jax.errors import UserError
from t2t_jax.system.program import run


@dataclass(frozen=True)
class Variants:
    """Measure training steps of the variants of a grid."""

    config: str = "configs/modern.py"
    """Config file with VARIANTS."""
    only: tuple[str, ...] = ("gelu", "geglu", "swiglu", "rotary", "relative-bias", "modern")
    """Variants to compare with the base."""
    shape: str = "8x64"
    """The batch: rows x tokens of each side of a row."""
    repeats: int = 7
    """Steps of each variant that are measured."""
    json: bool = False
    """Print one JSON object for each variant."""


def main(arguments: Sequence[str]) -> int:
    """Measure what the command line asks for."""
    asked: Variants = parse_flags(Variants, arguments, "variants.py")
    grid = load_grid(asked.config)
    if unknown := [name for name in asked.only if name not in grid.variants]:
        raise UserError(f"{asked.config} has no variant {unknown[0]}; see it with --dry-run")
    rows, length = rows_and_tokens(asked.shape, "--shape")
    chosen = {name: grid.variants[name] for name in dict.fromkeys((grid.base, *asked.only))}
    steps = {name: workload.training(config, rows, length) for name, config in chosen.items()}
    seconds = [{name: _timed(step) for name, step in steps.items()} for _ in range(asked.repeats)]
    columns = []
    for name, config in chosen.items():
        by_processor, by_clock = (
            statistics.median(one[name][clock] / one[grid.base][clock] for one in seconds)
            for clock in range(2)
        )
        columns.append(
            {
                "variant": name,
                "parameters": num_parameters(config.model, config.data.vocab_size),
                "seconds_median": statistics.median(one[name][1] for one in seconds),
                "processor_time_over_base": by_processor,
                "clock_over_base": by_clock,
            }
        )
    common = machine() | {"config": asked.config, "shape": asked.shape, "repeats": asked.repeats}
    show(common, columns, asked.json)
    return 0


def _timed(step: Callable[[], float]) -> tuple[float, float]:
    """Measure the seconds of a step: of all threads of the process, and by the clock."""
    processor, clock = time.process_time(), time.perf_counter()
    step()
    return time.process_time() - processor, time.perf_counter() - clock


if __name__ == "__main__":
    run(main)
