"""The times of a program's kernels, beside their least times by the roofline."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from profiling import Profile, joined

from t2t_jax.extras.compile_only.hlo import Program
from t2t_jax.extras.compile_only.kernels import Kernel, kernels, label_of, least_seconds, roofline
from t2t_jax.parallel.hardware import Hardware

ELSEWHERE = "not in the program"
"""The kind of operations that devices ran and no instruction of the program names."""
IDLE = "no kernel ran"
"""The kind of the time between kernels."""
TOTAL = "all, from the start of the first kernel to the end of the last"
"""The kind of all kernels together."""
UNWATCHED = "all, by the clock of the host and without the profiler"
"""The kind of a whole call that was not profiled."""
UNKNOWN = "not known: no peaks of this device"
"""The text in place of a least time that is not known."""


def beside_the_bound(
    program: Program, measured: Profile, seconds: float, hardware: Hardware | None
) -> list[dict[str, Any]]:
    """Return a row for each kind of kernels, the slowest first, and rows that sum them up.

    Kinds are labels, such as `feed_forward: dot_general, backward`. Figures are those of one
    device. Kernels that ran at the same time each count in full. The bound of all kernels together
    has only those transfers to other devices that cannot be hidden behind other kernels.

    Args:
      program: the text of the program that ran, parsed.
      measured: the profile of a call that ran it once.
      seconds: the seconds of a call without the profiler.
      hardware: the peaks of a device; None where they are not known, and there is no bound.
    """
    found = kernels(program)
    kinds: dict[str, list[Kernel]] = {}
    for kernel in found:
        kinds.setdefault(kernel.label, []).append(kernel)
    times, runs = Counter[str](), Counter[str]()
    for operation, instruction in joined(program, measured):
        label = label_of(program, instruction) if instruction else ELSEWHERE
        times[label] += operation.seconds / measured.num_devices
        runs[label] += 1 / measured.num_devices
    slowest = sorted({*kinds, *times} - {ELSEWHERE}, key=lambda label: (-times[label], label))
    rows: list[dict[str, Any]] = []
    for label in [*slowest, ELSEWHERE]:
        own, least = kinds.get(label, []), None
        if hardware is not None:
            least = sum(each.count * least_seconds(each, hardware) for each in own)
        rows.append(_row(label, own, runs[label]) | _compared(times[label], least))
    rows.append({"kind": IDLE, "measured_milliseconds": 1e3 * measured.idle_seconds})
    least = roofline(found, hardware).seconds if hardware is not None else None
    rows.append(_row(TOTAL, found, runs.total()) | _compared(measured.seconds, least))
    rows.append({"kind": UNWATCHED} | _compared(seconds, least))
    if least is None:
        for row in rows[-2:]:
            row["least_milliseconds"] = UNKNOWN
    return rows


def _row(label: str, own: Sequence[Kernel], runs: float) -> dict[str, Any]:
    """Return the figures of some kernels by the program's text, and their number in the profile."""
    return {
        "kind": label,
        "kernels_started": sum(each.count for each in own),
        "kernels_in_the_profile": round(runs),
        "gib": sum(each.count * each.num_bytes for each in own) / 2**30,
        "tflop": sum(each.count * each.flops for each in own) / 1e12,
    }


def _compared(seconds: float, least: float | None) -> dict[str, Any]:
    """Return the cells of a time that was measured and of its bound."""
    measured = {"measured_milliseconds": 1e3 * seconds}
    if least is None:
        return measured
    cells = {"least_milliseconds": 1e3 * least} | measured
    return cells | ({"measured / bound": seconds / least} if least else {})
