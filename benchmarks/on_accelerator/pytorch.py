"""A training step of `torch.nn.Transformer`, compiled, beside ours: the same work, in turns.

Both compute in bfloat16 (PyTorch by autocast, with its fused attention and its fused Adam).
`systems/pytorch.py` lists the differences of their work.
"""

import contextlib
import statistics
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from systems.available import available_systems
from systems.protocol import Training, Worker

from on_accelerator.sizes import QUEUED, config_of, repeats, training_shape

_NAMES = {"t2t_jax bfloat16", "PyTorch bfloat16, compiled"}


def measure(tiny: bool) -> Iterator[dict[str, Any]]:
    """Measure this part, and yield its rows."""
    import workload

    found, left_out = available_systems("train")
    systems = [system for system in found if system.name in _NAMES]
    for line in left_out:
        if any(line.startswith(name) for name in _NAMES):
            yield {"table": "training steps in bfloat16", "system": line}
    rows, length = training_shape(tiny)
    # Each process takes what it needs of the device's memory, and no more.
    share = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    for model in ("base",) if tiny else ("base", "big"):
        config = config_of(model, "bfloat16", tiny)
        sides = (
            workload.random_tokens(rows, length, config.data.vocab_size, seed).tolist()
            for seed in range(2)
        )
        work = Training(config.to_json(), *sides, steps=QUEUED)
        with contextlib.ExitStack() as stack:
            workers = [
                stack.enter_context(Worker(replace(one, environment={**one.environment, **share})))
                for one in systems
            ]
            first = [worker.prepare(work)[1] for worker in workers]
            rounds = [[worker.measure() for worker in workers] for _ in range(repeats(tiny) // 2)]
        ours = next(number for number, one in enumerate(systems) if one.is_ours)
        for number, system in enumerate(systems):
            seconds = statistics.median(one[number] for one in rounds) / QUEUED
            yield {
                "table": "training steps in bfloat16",
                "model": model,
                "system": f"{system.name} ({system.versions})",
                "milliseconds": 1e3 * seconds,
                "target_tokens_per_second": rows * length / seconds,
                "times_the_milliseconds_of_ours": statistics.median(
                    one[number] / one[ours] for one in rounds
                ),
                "seconds_until_the_first_step": first[number],
            }
