"""Where the time of a training step and of a search goes, by parts of the model: a profile.

    python benchmarks/where_time_goes.py
    python benchmarks/where_time_goes.py --config configs/big.py --shape 8x128 --beam-size 1

Every field of the config is a flag. The profiler's times of all operations are added up, whichever
thread they ran on. An operation that the compiler fused from several counts where its last one
belongs.
"""

import gzip
import json
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import command_line
import measuring
import workload
from workload import jax

from t2t_jax.decoding.programs import proceed
from t2t_jax.system.program import run

# The first pattern that occurs in `name of the operation | where it comes from` says the part.
_PARTS = {
    "products of feed-forward": r"(ynn_fusion|dot).*\|.*feed_forward/",
    "products of the logits": r"(btd,vd->btv|btv,vd->btd|btd,btv->dv|vd,bkd->vbk|step/dot_general)",
    "top-k": r"top_k",
    "products of projections": r"(ynn_fusion|dot).*\|.*attention.*[/_](query|key|value|output)/",
    "attention itself": r"\|.*(self|cross)_attention[./]",
    "rest of the layers": r"\|.*/(layers|encoder|decoder)\b",
    "softmax and loss": r"\|.*(losses|logsumexp|reduce_(max|sum)|/exp|/sub)",
    "optimizer, search and others": r"\|.*\w",
    "copies and fills": r"",
}


@dataclass(frozen=True)
class Profile(command_line.Benchmark):
    """Profile a config's training step, and a search with its model."""

    shape: str = "32x32"
    """Batch of the training step: rows x tokens of each side of a row."""
    batch_size: int = 32
    """Sentences that are decoded together, with sources of 32 tokens and outputs of 48."""
    beam_size: int = 4
    """Hypotheses kept for each; 1 is greedy search."""


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
        shares = _shares(program, call)
        columns.append({"of": name} | measuring.spread(seconds) | shares)
    measuring.show(command_line.device_setting(asked), columns, asked.json)
    return 0


def _training(config: Any, rows: int, length: int) -> tuple[str, Callable[[], object]]:
    """The text of the compiled step, and a function that takes a step."""
    (step,) = workload.training_steps(config, [(rows, length)])
    return step.program.as_text(), step.take


def _search(config: Any, batch_size: int) -> tuple[str, Callable[[], object]]:
    params = workload.random_parameters(config)
    fixed, fresh = workload.search_arguments(config, params, batch_size, 32, 48)
    program = proceed.lower(*fixed, *fresh()).compile()
    return program.as_text(), lambda: jax.block_until_ready(program(*fresh())[1])


def _shares(program: str, call: Callable[[], object]) -> dict[str, float]:
    """Each part's share of the time of all operations."""
    origins = {
        name: (re.findall(r'op_name="([^"]*)"', rest) or [""])[0]
        for name, rest in re.findall(r"^\s*(?:ROOT )?%?([\w.-]+) = (.*)$", program, re.MULTILINE)
    }
    times: Counter[str] = Counter()
    for operation, duration in _operations(call):
        if not operation.startswith(
            ("while", "call")
        ):  # whose time is that of the operations within
            where = f"{operation}|{origins.get(operation, '')}"
            part = next(part for part, pattern in _PARTS.items() if re.search(pattern, where))
            times[part] += duration
    total = sum(times.values())
    return {part: times[part] / total for part in _PARTS}


def _operations(call: Callable[[], object]) -> list[tuple[str, float]]:
    """The operations of a call, each with the seconds that it took."""
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            call()
        (file,) = Path(folder).rglob("*.trace.json.gz")
        with gzip.open(file) as trace:
            events = json.load(trace)["traceEvents"]
    return [
        (event["args"]["hlo_op"], event["dur"])
        for event in events
        if "hlo_op" in event.get("args", {}) and event.get("ph") == "X"
    ]


if __name__ == "__main__":
    run(main)
