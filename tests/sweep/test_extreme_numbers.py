"""Numbers of the right type that no run has, in each file of a run and of a grid."""

import json
import random
from contextlib import suppress

import pytest

from t2t_jax.__main__ import main
from t2t_jax.errors import UserError
from t2t_jax.sweep.grid import collect
from t2t_jax.sweep.rules import GridRules
from tests.extras.watching.test_report import _score
from tests.extras.watching.test_watch import RECORDS, _run
from tests.sweep.conftest import QUIET
from tests.sweep.test_halving import Trained, grid_of, halve, scores_of

pytestmark = pytest.mark.thorough

EXTREME = 10**400, -1, 0, 1e308
JOB = {
    **{"begun": 1e9, "written": 1e9, "first_step": 0, "step": 400, "devices": 8, "processes": 1},
    **{"seconds": {"start": 1.0, "steps": 9.0}, "at": [{"step": 400, "steps": 9.0}]},
    **{"ended": None, "exit_code": None, "flops": 1e12, "source_tokens": 10.0, "peak": 1e12},
}


def numbers(value, *place):
    """Yield the place of each number in a value of JSON; the configs of a grid are left out."""
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    for name, part in parts if isinstance(value, dict | list) else ():
        if isinstance(part, dict | list) and name not in ("config", "variants", "provenance"):
            yield from numbers(part, *place, name)
        if type(part) in (int, float):
            yield *place, name


def altered(record, place, value):
    copied = json.loads(json.dumps(record))
    within = copied
    for name in place[:-1]:
        within = within[name]
    within[place[-1]] = value
    return copied


def check(path, *readers):
    """Read a file with each extreme number in each place, which may be a `UserError`."""
    whole = path.read_text()
    *earlier, last = whole.splitlines() if path.suffix == ".jsonl" else [whole]
    content = json.loads(last)
    for place in numbers(content):
        for value in EXTREME:
            text = json.dumps(altered(content, place, value))
            path.write_text("\n".join([*earlier, text]) + "\n")
            for read in readers:
                with suppress(UserError):
                    read()
    path.write_text(whole)


@pytest.mark.parametrize("last", RECORDS[3:5], ids=lambda record: record["of"])
def test_extreme_numbers_in_a_log_are_shown_or_refused(tmp_path, last):
    run = _run(tmp_path / "run", [*RECORDS[:3], last])
    check(run / "log.jsonl", lambda: main(["report", str(run)]), lambda: main(["watch", str(run)]))


@pytest.mark.parametrize(
    ("name", "record"),
    [
        ("jobs/1.json", JOB),
        ("scores.jsonl", _score("test", 3003, checkpoints=[100], decoding={"beam_size": 4})),
    ],
)
def test_extreme_numbers_beside_a_log_are_shown_or_refused(tmp_path, name, record):
    run = _run(tmp_path / "run")
    (run / "jobs").mkdir()
    (run / name).write_text(json.dumps(record))
    check(run / name, lambda: main(["report", str(run)]))


@pytest.mark.parametrize("name", ["rules.json", "grid.json", "base/seed0/rung-10.json"])
def test_extreme_numbers_in_a_grid_are_shown_or_refused(tmp_path, quick, name):
    grid = grid_of(4)
    launcher = Trained(scores_of(random.Random(1), grid, 1, diverging=0))
    halve(grid, tmp_path, launcher, 1, rules=GridRules("rungs=3"))
    check(tmp_path / name, lambda: collect(grid, tmp_path, 1, QUIET))


def test_extreme_numbers_in_a_result_are_shown_or_refused(tmp_path, quick):
    grid = grid_of(2)
    launcher = Trained({f"{name}/seed0": {90: 2.0} for name in grid.variants})
    halve(grid, tmp_path, launcher, 1)
    check(tmp_path / "v1/seed0/result.json", lambda: collect(grid, tmp_path, 1, QUIET))
