"""Profile a training step and a search: the shares of the parts of the model in their time.

    python benchmarks/where_time_goes.py
    python benchmarks/where_time_goes.py --config configs/big.py --shape 8x128 --beam-size 1

Every field of the config is a flag. The profiler's times of all operations are added up, whichever
thread they ran on. An operation that the compiler fused from several counts for the part of the
last of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import command_line
import measuring
import workload
from profiling import profile, shares
from workload import jax

from t2t_jax.decoding.programs import proceed
from t2t_jax.extras.compile_only.hlo import parse_program
from t2t_jax.system.program import run


@dataclass(frozen=True)
class Profile(command_line.Benchmark):
    """Profile a config's training step, and a search with its model."""

    shape: str = "32x32"
    """Batch of the training step: rows x tokens of each side of a row."""
    batch_size: int = 32
    """Sentences that are decoded together, with sources of 32 tokens and outputs of 48."""
    beam_size: int = 4
    """Hypotheses kept for each sentence; 1 is greedy search."""


def main(arguments: Sequence[str]) -> int:
    """Profile what the command line asks for."""
    asked = command_line.command(Profile, arguments)
    config = asked.fields.replace({"decoding.beam_size": asked.beam_size})
    rows, length = command_line.rows_and_tokens(asked.shape, "--shape")
    columns = []
    for name, (program, call) in {
        f"training {asked.shape}": _training(config, rows, length),
        f"search {asked.batch_size}, beam {asked.beam_size}": _search(config, asked.batch_size),
    }.items():
        seconds = measuring.in_turns({name: call}, asked.repeats)[name]
        parts = shares(parse_program(program), profile(call))
        columns.append({"of": name} | measuring.spread(seconds) | parts)
    measuring.show(command_line.device_setting(asked), columns, asked.json)
    return 0


def _training(config: Any, rows: int, length: int) -> tuple[str, Callable[[], object]]:
    """Return the text of the compiled step, and a function that takes a step."""
    (step,) = workload.training_steps(config, [(rows, length)])
    return step.program.as_text(), step.take


def _search(config: Any, batch_size: int) -> tuple[str, Callable[[], object]]:
    params = workload.random_parameters(config)
    fixed, fresh = workload.search_arguments(config, params, batch_size, 32, 48)
    program = proceed.lower(*fixed, *fresh()).compile()
    return program.as_text(), lambda: jax.block_until_ready(program(*fresh())[1])


if __name__ == "__main__":
    run(main)
