"""A profile of a compiled program: the time of its operations, by parts of the model."""

import gzip
import json
import re
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from workload import jax

_PRODUCT = r"(ynn_fusion|dot|gemm|custom-call)"  # as the compilers of CPUs and GPUs name them

# The first pattern that occurs in `name of the operation | where it comes from` says the part.
_PARTS = {
    "products of feed-forward": _PRODUCT + r".*\|.*feed_forward/",
    "products of the logits": r"(btd,vd->btv|btv,vd->btd|btd,btv->dv|vd,bkd->vbk|step/dot_general)",
    "top-k": r"top_k",
    "products of projections": _PRODUCT + r".*\|.*attention.*[/_](query|key|value|output)/",
    "attention itself": r"\|.*(self|cross)_attention[./]",
    "rest of the layers": r"\|.*/(layers|encoder|decoder)\b",
    "softmax and loss": r"\|.*(losses|logsumexp|reduce_(max|sum)|/exp|/sub)",
    "optimizer, search and others": r"\|.*\w",
    "copies and fills": r"",
}


def shares(program: str, call: Callable[[], object]) -> dict[str, float]:
    """The share of each part of a model in the time of all operations of a program.

    The profiler's times of all operations are added up, whichever thread they ran on. An operation
    that the compiler fused from several counts where its last one belongs.

    Args:
      program: the text of the compiled program.
      call: runs it once, to its end.
    """
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
