"""What follows from the findings of all processes: differences, slow hosts, and failed checks."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median

from t2t_jax.run.preflight.findings import Findings

VERSIONS, FILES, CONFIG, SETTLED = "versions", "files", "config", "settled config"
WAYS_OUT = {
    VERSIONS: "install the same on all hosts",
    FILES: "give all processes the same files",
    CONFIG: "give all processes the same command line and the same config file",
    SETTLED: "the hosts have other devices or another run there: set the field by its flag",
}
"""The ways out of differences, by the kind of the facts that differ."""

_FEW, _LEAST_SECONDS = 3, 0.01
_SINGLE_FACTOR, _FACTOR, _SPREADS = 2.0, 1.2, 3.0


def numbered(processes: Iterable[int]) -> str:
    """Return the numbers of processes as text: "process 1", or "processes 0-2, 5"."""
    runs: list[list[int]] = []
    for number in sorted(processes):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts = ["-".join(map(str, dict.fromkeys((run[0], run[-1])))) for run in runs]
    is_one = len(runs) == 1 and len(runs[0]) == 1
    return f"process{'' if is_one else 'es'} {', '.join(parts)}"


def named_processes(processes: Iterable[int], hosts: Mapping[int, str]) -> str:
    """Return the numbers of processes as text, with the names of their hosts if they are few."""
    processes = list(processes)
    names = list(dict.fromkeys(hosts[one] for one in sorted(processes) if one in hosts))
    return numbered(processes) + (f" ({', '.join(names)})" if 0 < len(names) <= _FEW else "")


def differing(found: Mapping[int, Findings], hosts: Mapping[int, str]) -> Iterator[str]:
    """Yield a line for each fact that is not the same on all processes that have it."""
    values: dict[tuple[str, str], dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for process, findings in sorted(found.items()):
        for kind, facts in findings.facts.items():
            for name, value in facts.items():
                values[kind, name][value].append(process)
    for (kind, name), groups in values.items():
        if len(groups) > 1:
            parts = [
                f"{value} on {named_processes(group, hosts)}" for value, group in groups.items()
            ]
            yield f"{name} differs: {'; '.join(parts)}; {WAYS_OUT[kind]}"


def failures(
    found: Mapping[int, Findings], hosts: Mapping[int, str], lost: Sequence[int] = ()
) -> list[str]:
    """Return a line for each check that has failed, with the processes concerned; [] for none."""
    lines = []
    if lost:
        lines.append(
            f"{named_processes(lost, hosts)} gave no sign of life any more; see what it said, and "
            "whether its host still answers"
        )
    by_problem: dict[str, set[int]] = defaultdict(set)
    for process, findings in sorted(found.items()):
        for problem in findings.problems:
            by_problem[problem].add(process)
    lines += [
        f"{named_processes(those, hosts)}: {problem}" for problem, those in by_problem.items()
    ]
    return [*lines, *differing(found, hosts)]


def slowest(samples: Mapping[int, Sequence[float]], *, is_rate: bool) -> tuple[int, float] | None:
    """Return the slowest process and how many times slower it is than the others, beyond noise.

    Each process counts with its best measurement, and is compared with the median of the others.
    It is slow beyond noise if it is so by a fifth and by three times the spread within the
    processes; or twice as slow, where each has been measured only once or twice.

    Args:
      samples: the measurements of each process, in seconds or as rates.
      is_rate: whether more is better.
    """
    costs = {
        process: [1 / max(one, 1e-12) if is_rate else one for one in own]
        for process, own in samples.items()
        if own
    }
    if len(costs) < 2:
        return None
    several = [own for own in costs.values() if len(own) > 2]
    process = max(costs, key=lambda one: min(costs[one]))
    worst = min(costs.pop(process))
    usual = median(min(own) for own in costs.values())
    if not is_rate and worst - usual < _LEAST_SECONDS:
        return None
    spread = median(median(own) / min(own) - 1 for own in several) if several else 0.0
    factor = _FACTOR + _SPREADS * spread if several else _SINGLE_FACTOR
    return (process, worst / usual) if worst > factor * usual else None


def slow_hosts(found: Mapping[int, Findings], hosts: Mapping[int, str]) -> Iterator[str]:
    """Yield a line for each figure whose slowest process is slow beyond noise."""
    for is_rate in (False, True):
        by_title: dict[str, dict[int, list[float]]] = defaultdict(dict)
        for process, findings in sorted(found.items()):
            for title, own in (findings.rates if is_rate else findings.times).items():
                by_title[title][process] = own
        for title, samples in by_title.items():
            if slow := slowest(samples, is_rate=is_rate):
                process, times = slow
                who = named_processes([process], hosts)
                yield f"{title}: {who} is {times:.1f} times slower than others"
