"""The figures of a load: latencies, throughput, and the answers that equal offline translation."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

_PERCENTILES = 50, 95, 99


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the least of some values that `percent` of them do not exceed.

    Args:
      values: the values; without any, the result is nan.
      percent: above 0, at most 100.
    """
    ordered = sorted(values)
    return ordered[math.ceil(percent / 100 * len(ordered)) - 1] if ordered else math.nan


def open_loop_figures(
    answers: Sequence[Mapping[str, Any]],
    expected: Sequence[str],
    warm_seconds: float,
    seconds: float,
) -> dict[str, float]:
    """Compute the figures of an open loop.

    Args:
      answers: the results of `servers.load`.
      expected: the offline translation of each line.
      warm_seconds: the first seconds, whose requests are left out.
      seconds: the seconds after these, in which requests came.
    """
    end = warm_seconds + seconds
    kept = [one for one in answers if one["at"] >= warm_seconds]
    good = [one for one in answers if one["status"] == 200]
    in_time = [one for one in good if warm_seconds <= one["at"] + one["seconds"] < end]
    latencies = [1000 * one["seconds"] for one in kept if one["status"] == 200]
    return {
        "offered_per_second": len(kept) / seconds,
        "answered_per_second": len(in_time) / seconds,
        **{f"p{percent}_ms": percentile(latencies, percent) for percent in _PERCENTILES},
        "failed": len(answers) - len(good),
        **_compared(good, expected),
        "sent_late_p99_ms": percentile([1000 * one["late"] for one in kept], 99),
    }


def closed_loop_figures(
    answers: Sequence[Mapping[str, Any]], expected: Sequence[str]
) -> dict[str, float]:
    """Compute the figures of a closed loop.

    Args:
      answers: the results of `servers.load`.
      expected: the offline translation of each line.
    """
    good = [one for one in answers if one["status"] == 200]
    seconds = max(one["at"] + one["seconds"] for one in answers)
    return {
        "seconds": seconds,
        "lines_per_second": len(good) / seconds,
        "failed": len(answers) - len(good),
        **_compared(good, expected),
    }


def _compared(good: Sequence[Mapping[str, Any]], expected: Sequence[str]) -> dict[str, float]:
    other = sum(one["text"] != expected[one["line"]] for one in good)
    return {"answers": len(good), "other_than_offline": other}


def summary(runs: Sequence[Mapping[str, float]], spread: Sequence[str] = ()) -> dict[str, float]:
    """Merge the figures of several rounds: add counts, and take the medians of others.

    Args:
      runs: the figures of each round.
      spread: the names of figures whose least and largest values are returned too.
    """
    found: dict[str, float] = {}
    for name, first in runs[0].items():
        values = [run[name] for run in runs]
        if isinstance(first, int):
            found[name] = sum(values)
        elif name in spread:
            found[f"{name}_min"], found[f"{name}_max"] = min(values), max(values)
            found[f"{name}_median"] = statistics.median(values)
        else:
            found[name] = statistics.median(values)
    return found
