"""The comparisons of `tests/against`: how they count, and how they shrink a case.

The programs here are the functions of this module, each in a process of its own.
"""

import os
import time
from pathlib import Path

import pytest

from tests.against.part import (
    OURS,
    Difference,
    Part,
    Runner,
    classified,
    columns,
    compare_cases,
    generated_case,
    smaller_cases,
)
from tests.against.programs import NotRun, Program
from tests.against.search.part import PART as SEARCH
from tests.programs import ROOT


def double(case, folder):
    return 2 * case["number"]


def double_up_to_ten(case, folder):
    return min(20, 2 * case["number"])


def raise_an_error(case, folder):
    raise ValueError("no such number")


def count_calls(case, folder):
    Path(folder, f"{len(os.listdir(folder))}").touch()
    return len(os.listdir(folder))


def die(case, folder):
    os._exit(3)


def hang(case, folder):
    time.sleep(60)


def allocate(case, folder):
    return bytearray(1 << 32)


def part(theirs, documented=()):
    def compare(case, name, answers):
        ours, other = answers
        return None if ours == other else Difference("other number", f"{ours} and {other}")

    return Part(
        programs={OURS: __name__, "peer": __name__},
        generate=lambda rng, index: {"number": int(rng.integers(100, 1000)), "words": ["a", "b"]},
        routes=lambda case: {"peer": [(OURS, "double"), ("peer", theirs)]},
        compare=compare,
        simplest={"number": 0, "words": []},
        documented=dict.fromkeys(documented, "a sentence of the documents"),
    )


def compared(compared_part, cases=2):
    reports = []
    end = time.monotonic() + 60
    rows = compare_cases(compared_part, 1, end, cases, lambda *found: reports.append(found))
    return rows["peer"], reports


def test_equal_results_are_counted():
    row, reports = compared(part("double"))
    assert (row, reports) == ({("equal", ""): 2}, [])


def test_a_difference_is_shrunk_to_the_smallest_case_and_reported_once():
    row, [(name, case, difference)] = compared(part("double_up_to_ten"))
    assert row == {("different", "other number"): 2}
    assert (name, case) == ("peer", {"number": 11, "words": []})
    assert difference == Difference("other number", "22 and 20")


def test_a_documented_difference_is_counted_apart():
    row, reports = compared(part("double_up_to_ten", ["other number"]))
    assert (row, reports) == ({("documented", "other number"): 2}, [])


@pytest.mark.parametrize(
    ("theirs", "reason"),
    [("raise_an_error", "ValueError at test_against.py:"), ("die", "peer ended with exit code 3")],
)
def test_a_peer_without_an_answer_is_not_run(theirs, reason):
    row, reports = compared(part(theirs))
    assert (columns(row)["compared"], columns(row)["not run"], reports) == (0, 2, [])
    assert all(found.startswith(reason) for _, found in row)


def test_an_error_of_this_package_is_a_difference():
    row, _ = compared(Part(**{**vars(part("double")), "routes": _ours_fails}), cases=1)
    assert row == {("different", "ours raises an error"): 1}


def _ours_fails(case):
    return {"peer": [(OURS, "raise_an_error"), ("peer", "double")]}


def test_processes_end_at_their_limits():
    slow = Program(__name__, seconds=0.5)
    assert slow.call("hang", {}, "") == NotRun("gave no answer in 0.5 s")
    assert slow.call("double", {"number": 2}, "") == 4  # in a new process
    slow.close()
    small = Program(__name__, memory=2 << 30)
    assert small.call("allocate", {}, "") == NotRun("ended with exit code 137")
    missing = Program("tests.against.no_such_program")
    assert missing.call("double", {}, "").reason.startswith("cannot start: ModuleNotFoundError")


def test_smaller_cases_change_one_field():
    found = list(smaller_cases({"number": 5, "words": ["a", "b"]}, {"number": 1, "words": []}))
    both = {"number": 5, "words": ["a", "b"]}
    numbers = [{**both, "number": number} for number in (1, 3, 4)]
    assert found == [*numbers, *({**both, "words": words} for words in ([], ["b"], ["a"]))]


def test_the_page_of_differences_has_those_of_the_searches():
    page = " ".join((ROOT / "docs/differences.md").read_text(encoding="utf-8").split())
    assert [text for text in SEARCH.documented.values() if text not in page] == []


def test_generated_searches_are_valid():
    cases = [generated_case(SEARCH, 1, index) for index in range(50)]
    assert all(map(SEARCH.is_valid, cases))
    assert {name for case in cases for name in SEARCH.routes(case)} == {*SEARCH.programs} - {OURS}


def test_outcomes_are_classified():
    outcomes = [None, NotRun("late"), Difference("known", ""), Difference("new", "")]
    assert [classified(one, {"known": "text"}) for one in outcomes] == [
        ("equal", ""),
        ("not run", "late"),
        ("documented", "known"),
        ("different", "new"),
    ]


def test_comparisons_of_a_case_share_steps_and_a_folder():
    both = {name: [(OURS, "count_calls"), ("peer", "double")] for name in ("first", "second")}
    runner = Runner(Part(**{**vars(part("double")), "routes": lambda case: both}))
    outcomes = runner.outcomes({"number": 3})
    assert {name: outcome.detail for name, outcome in outcomes.items()} == {
        "first": "1 and 6",
        "second": "1 and 6",
    }
    assert [*runner.outcomes({"number": 3}, only="second")] == ["second"]
    runner.close()
