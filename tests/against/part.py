"""A part of the comparisons: how its cases are made, computed, compared and shrunk."""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from tests.against.programs import Failed, NotRun, Program

Case: TypeAlias = dict[str, Any]
"""All that a comparison depends on, as a JSON object."""
Fields: TypeAlias = Mapping[str, Sequence[Any]]
"""The values of each field of a case, the simplest one first. A more frequent one is repeated."""
Step: TypeAlias = tuple[str, str]
"""The name of a program, and a function of its module that takes a case and a folder."""

OURS = "ours"
MOST_SHRINKING_SECONDS = 120.0


class Difference(NamedTuple):
    """A difference of two programs in a case. Only kinds are compared when a case is shrunk."""

    kind: str
    detail: str


@dataclass(frozen=True)
class Part:
    """A part of the comparisons.

    Attributes:
      programs: the modules that compute, by the name of the program; names of this package start
        with `ours`.
      generate: a function that makes a case from random numbers and the number of the case.
      routes: a function from a case to the comparisons that it is for, by the name of a row of the
        table. A comparison is a list of steps, computed in their order in one folder. Comparisons
        of a case share equal steps.
      compare: a function of a case, the name of a comparison and the results of its steps.
      simplest: the simplest value of each field of a case, to which shrinking leads.
      documented: the kinds of differences that `docs/differences.md` explains, each with a text of
        that page.
      is_valid: whether a case that shrinking made makes sense.
      may_not_run: the comparisons that need a device which is not at hand everywhere.
      niceness: that of its processes. Parts with many cheap cases yield to those with dear ones.
    """

    programs: Mapping[str, str]
    generate: Callable[[np.random.Generator, int], Case]
    routes: Callable[[Case], Mapping[str, Sequence[Step]]]
    compare: Callable[[Case, str, Sequence[Any]], Difference | None]
    simplest: Mapping[str, Any]
    documented: Mapping[str, str] = field(default_factory=dict)
    is_valid: Callable[[Case], bool] = lambda case: True
    may_not_run: Collection[str] = ()
    niceness: int = 0


def drawn(rng: np.random.Generator, fields: Fields) -> Case:
    """Draw a value of each field."""
    return {name: values[rng.integers(len(values))] for name, values in fields.items()}


def simplest_case(fields: Fields) -> Case:
    """Return the simplest value of each field."""
    return {name: values[0] for name, values in fields.items()}


Outcome: TypeAlias = Difference | NotRun | None
"""The outcome of a comparison of a case; None if the programs agree."""


class Runner:
    """The programs of a part, while they run."""

    def __init__(self, part: Part) -> None:
        """Take a part; its programs start when they are first needed."""
        self.part = part
        modules, niceness = part.programs.items(), part.niceness
        self._programs = {name: Program(module, niceness=niceness) for name, module in modules}

    def close(self) -> None:
        """End all programs."""
        for program in self._programs.values():
            program.close()

    def outcomes(self, case: Case, only: str | None = None) -> dict[str, Outcome]:
        """Compute a case, and return the outcome of each of its comparisons.

        Args:
          case: the case.
          only: the name of the only comparison to compute.
        """
        with TemporaryDirectory(prefix="against_") as folder:

            @cache
            def answer(program: str, function: str) -> Any:
                return self._programs[program].call(function, case, folder)

            return {
                name: self._outcome(case, name, steps, answer)
                for name, steps in self.part.routes(case).items()
                if only in (None, name)
            }

    def _outcome(
        self, case: Case, name: str, steps: Sequence[Step], answer: Callable[[str, str], Any]
    ) -> Outcome:
        answers = []
        for program, function in steps:
            answers.append(answer(program, function))
            match answers[-1]:
                case Failed(error) if program.startswith(OURS):
                    return Difference("ours raises an error", error)
                case Failed(error):
                    return NotRun(error)
                case NotRun(reason):
                    return NotRun(f"{program} {reason}")
        return self.part.compare(case, name, answers)

    def shrunk(self, case: Case, name: str, difference: Any) -> tuple[Case, Difference]:
        """Return the smallest case found in which a comparison differs in the same kind."""
        end = time.monotonic() + MOST_SHRINKING_SECONDS
        candidates = smaller_cases(case, self.part.simplest)
        while (smaller := next(candidates, None)) and time.monotonic() < end:
            if not self.part.is_valid(smaller) or name not in self.part.routes(smaller):
                continue
            found = self.outcomes(smaller, name)[name]
            if isinstance(found, Difference) and found.kind == difference.kind:
                case, difference = smaller, found
                candidates = smaller_cases(case, self.part.simplest)
        return case, difference


def smaller_cases(case: Case, simplest: Mapping[str, Any]) -> Iterator[Case]:
    """Yield cases with one field nearer to its simplest value, the simplest ones first."""
    for name, least in simplest.items():
        value = case.get(name, least)
        if value == least:
            continue
        yield {**case, name: least}
        if isinstance(value, int) and isinstance(least, int) and abs(value - least) > 1:
            yield {**case, name: (value + least) // 2}
            yield {**case, name: value - (1 if value > least else -1)}
        elif isinstance(value, list):
            for index in range(len(value)):
                shorter = [*value[:index], *value[index + 1 :]]
                if shorter != least:
                    yield {**case, name: shorter}


Row: TypeAlias = Counter[tuple[str, str]]
"""A row of the table: how often a comparison of a part had each outcome, as `classified`."""
COLUMNS = "equal", "documented", "different", "not run"


def classified(outcome: Outcome, documented: Mapping[str, str]) -> tuple[str, str]:
    """Return the column in which an outcome counts, and its kind or the reason."""
    match outcome:
        case None:
            return "equal", ""
        case NotRun(reason):
            return "not run", reason[:100]
        case Difference(kind):
            return "documented" if kind in documented else "different", kind


def columns(row: Row) -> dict[str, int]:
    """Return the number of outcomes in each column, and that of compared cases."""
    found = {one: sum(n for (name, _), n in row.items() if name == one) for one in COLUMNS}
    return {"compared": row.total() - found["not run"], **found}


def generated_case(part: Part, seed: int, index: int) -> Case:
    """Return a case by its number, in the types of JSON."""
    case = part.generate(np.random.default_rng([seed, index]), index)
    assert case.keys() == part.simplest.keys(), case.keys() ^ part.simplest.keys()
    return case


def compare_cases(
    part: Part,
    seed: int,
    end: float,
    most_cases: int,
    report: Callable[[str, Case, Difference], None],
) -> dict[str, Row]:
    """Compare generated cases until the time is over.

    Args:
      part: the part whose cases are generated.
      seed: the seed of all cases.
      end: when to stop, by `time.monotonic`.
      most_cases: when to stop, by the number of cases.
      report: called with the name of the comparison and the shrunk case for the first difference
        of each kind.
    """
    rows: dict[str, Row] = {}
    with closing(Runner(part)) as runner:
        for index in range(most_cases):
            if time.monotonic() > end:
                break
            case = generated_case(part, seed, index)
            for name, outcome in runner.outcomes(case).items():
                found = classified(outcome, part.documented)
                row = rows.setdefault(name, Counter())
                row[found] += 1
                if found[0] == "different" and row[found] == 1:
                    report(name, *runner.shrunk(case, name, outcome))
    return rows
