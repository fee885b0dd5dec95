"""The results of the systems, printed as a table or as lines of JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from measuring import machine, spread
from rich.console import Console
from rich.table import Table

from systems.available import System
from t2t_jax.system.records import as_line


@dataclass
class Result:
    """The figures of a system for one piece of work."""

    system: System
    amount: int
    """The amount of work, for example in tokens."""
    first_seconds: float
    """The seconds until the first result, compilation included; they are not in `seconds`."""
    seconds: list[float] = field(default_factory=list)
    """The seconds that the work took, in each round."""
    equal: float | None = None
    """The share of the system's output that equals ours in float32."""

    @property
    def rates(self) -> list[float]:
        """Return the amount of work a second, in each round."""
        return [self.amount / seconds for seconds in self.seconds]


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Return how many times as fast ours is as theirs, in each round."""
    return [mine / other for mine, other in zip(ours, theirs, strict=True)]


def share_equal(ours: Sequence[object], theirs: Sequence[object]) -> float:
    """Return the share of places at which both have equal items."""
    return sum(a == b for a, b in zip(ours, theirs, strict=True)) / len(ours)


def show(case: Mapping[str, Any], unit: str, results: Sequence[Result], as_json: bool) -> None:
    """Print the results of one case, with the facts of the machine; the first is ours in float32.

    Args:
      case: the work that was measured.
      unit: the unit of the amount of work, such as `lines`.
      results: the results of the systems.
      as_json: whether to print one JSON object a line instead of a table.
    """
    if as_json:
        for result in results:
            figures = _figures(unit, result, results)
            print(as_line({**machine(), **case, **figures}), flush=True)
    else:
        what = ", ".join(f"{name} {value}" for name, value in case.items())
        print(f"\n{what}: min, median, max of {len(results[0].seconds)} rounds")
        print(", ".join(f"{name} {value}" for name, value in machine().items()))
        Console(highlight=False, width=130).print(_table(unit, results))


def counterpart(result: Result, results: Sequence[Result]) -> Result:
    """Return the result of ours to compare with: that of the same precision, if it takes part.

    Otherwise, and for t2t_jax itself in any precision, it is the first: ours in float32.
    """
    theirs = result.system
    for ours in results:
        if ours.system.is_ours and ours.system.precision == theirs.precision and not theirs.is_ours:
            return ours
    return results[0]


def _figures(unit: str, result: Result, results: Sequence[Result]) -> dict[str, Any]:
    ours = counterpart(result, results)
    return {
        "system": result.system.name,
        "precision": result.system.precision,
        "versions": result.system.versions,
        "first_seconds": result.first_seconds,
        **spread(result.seconds),
        **spread(result.rates, f"{unit}_per_second"),
        "ours_precision": ours.system.precision,
        **spread(ratios(ours.rates, result.rates), "ours_over_theirs"),
        **spread(ratios(results[0].rates, result.rates), "ours_float32_over_theirs"),
        "equal_to_ours": result.equal,
    }


def _table(unit: str, results: Sequence[Result]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("system", no_wrap=True)
    for head in (f"{unit}/s", "ours/theirs", "ours in", "first after", "as ours"):
        table.add_column(head.replace("_", " "), justify="right", no_wrap=True)
    for result in results:
        figures = _figures(unit, result, results)
        rates, speedups = (
            [figures[f"{name}_{which}"] for which in ("min", "median", "max")]
            for name in (f"{unit}_per_second", "ours_over_theirs")
        )
        table.add_row(
            result.system.name,
            "".join(f"{rate:>9,.0f}" for rate in rates),
            "" if result is results[0] else "".join(f"{speedup:>8.2f}" for speedup in speedups),
            "" if result is results[0] else figures["ours_precision"],
            f"{result.first_seconds:.1f} s",
            "" if result.equal is None else f"{result.equal:.1%}",
        )
    return table
