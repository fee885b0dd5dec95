"""What run directories hold, to be compared."""

import json
from pathlib import Path
from subprocess import Popen
from typing import Any

import jax
import numpy as np
import pytest

from t2t_jax.run.loading import load
from t2t_jax.training.checkpoint_files import steps_in

_SPEEDS = "target_tokens_per_second", "data_wait", "step_seconds"
CLOCK = ("time", "seconds", *_SPEEDS, "host_memory_bytes", "device_memory_bytes")
"""Figures of the log that depend on the clock and on memory."""


def wait_for_step(program: Popen[str], step: int) -> str:
    """Read what a training prints up to the line of a step, and return it."""
    printed = ""
    for line in program.stdout or ():
        printed += line
        if line.startswith(f"step {step:,}  loss"):
            return printed
    pytest.fail(f"the run ended before step {step}: {printed}")


def records_of(workdir: Path, of: str) -> list[dict[str, Any]]:
    """Return the records of one kind in the log of a run."""
    lines = (workdir / "log.jsonl").read_text(encoding="utf-8").splitlines()
    return [record for line in lines if (record := json.loads(line))["of"] == of]


def checksums(workdir: Path) -> Any:
    """Return the checksums of all arrays of the newest state, the optimizer's among them."""
    newest = workdir / "checkpoints" / str(steps_in(workdir / "checkpoints")[-1])
    return json.loads((newest / "origin" / "metadata").read_text())["sums"]


def timeless_log(workdir: Path) -> list[str]:
    """Return the sorted records of a run's log without the figures of the clock and of memory.

    A checkpoint is recorded once it is on the disk, which may be after later steps.
    """
    records = [json.loads(line) for line in (workdir / "log.jsonl").read_text().splitlines()]
    timeless = [{name: r[name] for name in r if name not in CLOCK} for r in records]
    return sorted(map(json.dumps, timeless))


def account(workdir: Path) -> dict[str, Any]:
    """Return all that a run promises to be the same: parameters, the log, and the best."""
    newest, best = load(workdir, average=1), load(workdir, step="best")
    return {
        "log": timeless_log(workdir),
        "steps": [newest.steps, best.steps],
        "checkpoints": steps_in(workdir / "checkpoints"),
        "parameters": _bytes((newest.params, best.params)),
    }


def bits(run: Path, **choice: Any) -> list[bytes]:
    """Return the bytes of each array of a run's parameters, as chosen for `load`."""
    return _bytes(load(run, **choice).params)


def _bytes(tree: Any) -> list[bytes]:
    return [np.asarray(x).tobytes() for x in jax.tree.leaves(tree)]
