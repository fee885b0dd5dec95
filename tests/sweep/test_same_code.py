"""Cells of one grid that different code trained: refused, or pooled and marked."""

import csv
import io
import json
import shutil
from pathlib import Path

import pytest

from t2t_jax import Config, UserError
from t2t_jax.config.file import Grid
from t2t_jax.run import provenance as software
from t2t_jax.run.provenance import provenance
from t2t_jax.sweep.cell import cells, check_cells
from t2t_jax.sweep.grid import collect, run_grid
from tests.selection import thorough_after
from tests.sweep.conftest import QUIET, AtOnce
from tests.sweep.test_cell import write_result

NOW = provenance(Config())
FILES = {"training/schedule.py": "changed"}
OTHER_FILE = NOW | {"code": "other", "files": NOW["files"] | FILES}
OTHER_JAX = NOW | {"versions": NOW["versions"] | {"jax": "0.0.1"}}
OTHER_PYTHON = NOW | {"versions": NOW["versions"] | {"python": "3.99.0"}}
OTHER_COMMIT = NOW | {"commit": "c0ffee", "dirty": True}
REGISTERED = NOW | {"code": "own", "files": NOW["files"] | {"score 'mine'": "1"}}
REGISTERED_ANEW = NOW | {"code": "new", "files": NOW["files"] | {"score 'mine'": "2"}}
OLD = None  # a version that recorded nothing

BASE = Grid({"base": Config()}, {})
GRID = Grid({"base": Config(), "A-h1": Config().replace({"model.num_heads": 1})}, {})


def write_results(grid, workdir, of_cells):
    """Write a result for each cell, whose training and scoring had this software."""
    for cell in cells(grid, workdir, 2):
        records = of_cells.get(cell.name, [NOW])
        write_result(cell, **({} if OLD in records else {"provenance": records}))


ALIKE = [
    pytest.param({}, id="one code"),
    pytest.param({"base/seed1": [NOW, NOW]}, id="resumed and scored by the same code"),
    pytest.param({"base/seed1": [OTHER_PYTHON]}, id="another Python"),
    pytest.param({"base/seed1": [OTHER_COMMIT]}, id="another commit of the same code"),
    pytest.param({"A-h1/seed0": [REGISTERED], "A-h1/seed1": [REGISTERED]}, id="a row's function"),
    pytest.param(
        {f"{row}/seed{seed}": [OLD] for row in ("base", "A-h1") for seed in (0, 1)},
        id="all of a version that recorded nothing",
    ),
]
SCHEDULE = "training/schedule.py"
DIFFERENT = [
    pytest.param({"A-h1/seed1": [OTHER_FILE]}, ["A-h1"], SCHEDULE, id="a seed of a row"),
    pytest.param({"A-h1/seed1": [NOW, OTHER_FILE]}, ["A-h1"], SCHEDULE, id="the end of a cell"),
    pytest.param({"base/seed0": [NOW, OTHER_FILE]}, ["base"], SCHEDULE, id="the end of the base"),
    pytest.param({"A-h1/seed1": [OTHER_JAX]}, ["A-h1"], "jax ", id="another JAX"),
    pytest.param(
        {"A-h1/seed0": [REGISTERED], "A-h1/seed1": [REGISTERED_ANEW]},
        ["A-h1"],
        "score 'mine'",
        id="a registered function",
    ),
    pytest.param({"A-h1/seed1": [OLD]}, ["A-h1"], "code that was not recorded", id="a cell of 0.2"),
    pytest.param(
        {"base/seed1": [OTHER_FILE], "A-h1/seed1": [OTHER_FILE]},
        ["base", "A-h1"],
        SCHEDULE,
        id="a seed of every row",
    ),
]


@pytest.mark.parametrize("of_cells", thorough_after(3, ALIKE))
def test_cells_of_one_code_are_pooled_without_a_mark(tmp_path, of_cells):
    write_results(GRID, tmp_path, of_cells)
    outcome = collect(GRID, tmp_path, 2, QUIET)
    assert [(row.num_seeds, row.other_code) for row in outcome.rows] == [(2, ""), (2, "")]
    assert "†" not in (tmp_path / "table.md").read_text("utf-8")


@pytest.mark.parametrize(
    ("of_cells", "marked", "differs"), thorough_after(4, DIFFERENT, unpacked=True)
)
def test_cells_of_different_code_are_refused_or_marked(tmp_path, of_cells, marked, differs):
    write_results(GRID, tmp_path, of_cells)
    with pytest.raises(UserError, match="by different code than") as refused:
        collect(GRID, tmp_path, 2, QUIET)
    assert differs in str(refused.value)
    assert "--allow-mixed" in str(refused.value)
    assert (tmp_path / "seeds.csv").is_file()  # which pools nothing
    assert not (tmp_path / "table.md").exists()

    outcome = collect(GRID, tmp_path, 2, QUIET, allow_mixed=True)
    assert [row.variant for row in outcome.rows if row.other_code] == marked
    table = (tmp_path / "table.md").read_text("utf-8")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "table.csv").read_text("utf-8"))))
    for row in rows:
        is_marked = row["variant"] in marked
        assert (differs in row["other_code"]) == is_marked
        assert (f"| {row['variant']} † |" in table) == is_marked
        assert (f"- † {row['variant']}: " in table) == is_marked


def untrained(cell):
    """Fail if a cell is started."""
    raise AssertionError(cell.name)


def finish(cell):
    """Write a result of the code that is here."""
    write_result(cell, provenance=[provenance(cell.config)])


@pytest.mark.parametrize("state", ["finished", "under way"])
def test_nothing_is_trained_beside_cells_of_other_code(tmp_path, quick, state):
    first, second = cells(BASE, tmp_path, 2)
    write_results(BASE, tmp_path, {"base/seed0": [OTHER_FILE]})
    shutil.rmtree(second.workdir)
    if state == "under way":
        _leave_unfinished(first.workdir, first.config)
    options = {"seeds": 2, "console": QUIET}
    with pytest.raises(UserError, match=r"training/schedule\.py.*--allow-mixed"):
        run_grid(BASE, tmp_path, launcher=AtOnce(untrained), **options)
    outcome = run_grid(BASE, tmp_path, launcher=AtOnce(finish), allow_mixed=True, **options)
    assert outcome.rows[0].num_seeds == 2


def _leave_unfinished(workdir: Path, config: Config) -> None:
    """Make a cell one whose training has begun under other code."""
    (workdir / "result.json").unlink()
    (workdir / "config.json").write_text(config.to_json())
    record = {"software": [OTHER_FILE | {"first_step": 0}]}
    (workdir / "provenance.json").write_text(json.dumps(record))


def test_code_that_changes_during_a_sweep_is_seen_at_its_end(tmp_path, quick, monkeypatch):
    """As where someone edits the package while a grid trains."""
    files = software._package_files()

    def edit_and_finish(cell):
        if cell.config.training.seed == 1:
            monkeypatch.setattr(software, "_package_files", lambda: files | FILES)
        finish(cell)

    with pytest.raises(UserError, match=r"base/seed1 was computed by different code than"):
        run_grid(BASE, tmp_path, seeds=2, launcher=AtOnce(edit_and_finish), console=QUIET)
    check_cells(cells(BASE, tmp_path, 2), allow_mixed=True)
