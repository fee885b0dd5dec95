"""The report of a preflight: tables by host, slow hosts, and a line for each failed check."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rich.table import Table

from t2t_jax.run.preflight.findings import Findings
from t2t_jax.run.preflight.verdicts import VERSIONS, failures, named_processes, slow_hosts


@dataclass
class PreflightReport:
    """What the checks have found on all processes, as process 0 knows it."""

    parts: dict[str, dict[int, Findings]] = field(default_factory=dict)
    """The findings of each process by the title of the table in which they are shown."""
    hosts: dict[int, str] = field(default_factory=dict)
    """The names of the hosts by the number of their processes."""
    skipped: list[str] = field(default_factory=list)
    """The checks that were not tried, each with the reason."""
    lost: Sequence[int] = ()
    """The processes that gave no sign of life any more."""

    def add(self, title: str, found: Mapping[int, Findings]) -> None:
        """Add the findings of a check, which are shown in the table of a title."""
        table = self.parts.setdefault(title, {})
        for process, findings in found.items():
            table.setdefault(process, Findings()).join(findings)

    @property
    def found(self) -> dict[int, Findings]:
        """Return all findings of each process."""
        every: dict[int, Findings] = {}
        for table in self.parts.values():
            for process, findings in table.items():
                every.setdefault(process, Findings()).join(findings)
        return every

    @property
    def failures(self) -> list[str]:
        """Return a line for each check that has failed; [] for none."""
        return failures(self.found, self.hosts, self.lost)

    def tables(self) -> Iterator[Table]:
        """Yield the tables, each with a row for every process that answered."""
        for title, found in self.parts.items():
            table = _table(title, found, self.hosts)
            if len(table.columns) > 1:
                yield table

    def lines(self) -> Iterator[str]:
        """Yield the lines below the tables: versions, notes, slow hosts, failures, the verdict."""
        found, failed = self.found, self.failures
        versions = next(
            (one.facts[VERSIONS] for one in found.values() if VERSIONS in one.facts), {}
        )
        if there := [f"{name} {value}" for name, value in versions.items() if value != "none"]:
            yield f"versions: {', '.join(there)}"
        peaks = {title: peak for one in found.values() for title, peak in one.peaks.items()}
        if stated := [f"{t} {_amount(peak) if peak else 'not known'}" for t, peak in peaks.items()]:
            yield f"peaks: {', '.join(stated)}"
        for process, findings in found.items():
            yield from (
                f"{named_processes([process], self.hosts)}: {note}" for note in findings.notes
            )
        yield from (f"slow: {line}" for line in slow_hosts(found, self.hosts))
        yield from (f"not tried: {line}" for line in self.skipped)
        yield from (f"FAILED: {line}" for line in failed)
        count = len(failed)
        yield f"{count} check{'s' * (count > 1)} failed" if failed else "ready: all checks passed"


def _table(title: str, found: Mapping[int, Findings], hosts: Mapping[int, str]) -> Table:
    """Return a table with a row for each process and a column for everything that was found."""
    rows = {process: _cells(findings) for process, findings in sorted(found.items())}
    columns = dict.fromkeys(name for cells in rows.values() for name in cells)
    table = Table(box=None, pad_edge=False)
    table.add_column(title, overflow="fold")
    for name in columns:
        table.add_column(name, justify="right", overflow="fold")
    for process, cells in rows.items():
        own = (cells.get(name, "") for name in columns)
        table.add_row(f"{process} {hosts.get(process, '')}", *own)
    return table


def _cells(findings: Findings) -> dict[str, str]:
    """Return the texts of a process's row by the titles of their columns."""
    times = {title: _seconds(min(own)) for title, own in findings.times.items() if own}
    rates = {
        title: _amount(max(own)) + _share(max(own), findings.peaks.get(title))
        for title, own in findings.rates.items()
        if own
    }
    return {**times, **rates, **findings.texts}


def _seconds(amount: float) -> str:
    return f"{_amount(1e3 * amount)} ms" if amount < 1 else f"{amount:,.1f} s"


def _share(amount: float, peak: float | None) -> str:
    return f" ({amount / peak:.0%})" if peak else ""


def _amount(amount: float) -> str:
    return f"{amount:,.0f}" if amount >= 100 else f"{amount:.3g}"
