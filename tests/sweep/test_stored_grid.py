"""What a grid's directory keeps of its grid, and which other grids it refuses."""

import csv
import fcntl
import io
import json

import pytest
from rich.console import Console

from t2t_jax.commands.sweep import sweep_command
from t2t_jax.config import Config, to_dict
from t2t_jax.config.file import Grid, load_grid
from t2t_jax.errors import UserError
from t2t_jax.sweep import stored_grid
from t2t_jax.sweep.cell import cells
from t2t_jax.sweep.grid import collect, run_grid
from t2t_jax.sweep.rules import GridRules, plan_grid
from t2t_jax.sweep.stored_grid import (
    added_later,
    check_same_grid,
    plan_note,
    read_record,
    record_grid,
    record_scoring,
    rename_row,
    scorings,
)
from tests.sweep.conftest import QUIET
from tests.sweep.test_cell import write_result

BASE = Config()
WIDE = BASE.replace({"model.d_ff": 64})


def started(workdir, *names):
    for name in names:
        (workdir / name).mkdir()


def test_a_directory_knows_its_grid_by_the_file_that_made_it(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("from t2t_jax import Config\nVARIANTS = {'base': Config()}\n")
    workdir = tmp_path / "runs"
    record_grid(load_grid(str(file)), workdir)
    assert (workdir / "grid.py").read_text() == file.read_text()
    assert sweep_command([str(workdir)], "t2t-jax sweep")._grid() == load_grid(str(file))
    with pytest.raises(UserError, match=r"has no grid\.py that describes its grid"):
        sweep_command([str(tmp_path)], "t2t-jax sweep")._grid()


def test_another_grid_is_refused_with_what_differs(tmp_path):
    record_grid(Grid({"base": BASE, "wide": WIDE}, {}), tmp_path)
    without = Grid({"wide": WIDE}, {})
    changed = Grid({"base": BASE, "wide": BASE}, {})
    for grid in (without, changed):
        check_same_grid(grid, tmp_path)  # nothing is started
    started(tmp_path, "base", "wide")
    longer = WIDE.replace({"training.num_train_steps": 200_000})
    check_same_grid(Grid({"new": BASE, "wide": longer, "base": BASE}, {}), tmp_path)
    with pytest.raises(UserError, match=r"rows that this one lacks \(base\); keep them"):
        check_same_grid(without, tmp_path)
    with pytest.raises(UserError, match=r"in which wide differs \(model\.d_ff 64 -> 2048\)"):
        check_same_grid(changed, tmp_path)
    (tmp_path / "wide").rename(tmp_path / "wide.old")
    check_same_grid(changed, tmp_path)


def test_a_longer_grid_keeps_the_table_of_the_shorter_one(tmp_path):
    for name in ("table.md", "seeds.csv"):
        (tmp_path / name).write_text("of 30 steps")
    for steps in (30, 30, 60, 60):
        config = BASE.replace({"training.num_train_steps": steps})
        record_grid(Grid({"base": config}, {}), tmp_path)
        assert (tmp_path / "table-30-steps.md").exists() == (steps == 60)
        (tmp_path / "table.md").write_text(f"of {steps} steps")
    for name in ("table-30-steps.md", "seeds-30-steps.csv"):
        assert (tmp_path / name).read_text() == "of 30 steps"


@pytest.fixture
def trained(tmp_path):
    """A grid of two rows, of which `wide` has two seeds with the perplexities 5 and 5.06."""
    grid = Grid({"base": BASE, "wide": WIDE}, {})
    record_grid(grid, tmp_path)
    for cell, perplexity in zip(cells(grid, tmp_path, 2), (6.0, 5.0, 6.0, 5.06), strict=True):
        write_result(cell, perplexity=perplexity)
    return tmp_path


def test_a_report_lists_trained_rows_that_the_config_file_lacks(trained):
    outcome = collect(Grid({"base": BASE, "broad": WIDE}, {}), trained, 2, QUIET)
    assert [row.variant for row in outcome.rows] == ["base"]
    note = "- Not in the config file: wide (2 seeds, perplexity 5.03).\n"
    assert note in (trained / "table.md").read_text("utf-8")
    seeds = [*csv.DictReader(io.StringIO((trained / "seeds.csv").read_text("utf-8")))]
    assert [(row["variant"], row["perplexity"]) for row in seeds if row["state"] == "left out"] == [
        ("wide", "5.0"),
        ("wide", "5.06"),
    ]


def test_a_report_without_a_row_of_the_config_file_keeps_the_tables(trained):
    (trained / "table.csv").write_text("before")
    with pytest.raises(UserError, match=r"which has base, wide instead; .*--rename OLD=NEW"):
        collect(Grid({"broad": WIDE}, {}), trained, 2, QUIET)
    assert (trained / "table.csv").read_text() == "before"


def test_a_renamed_row_keeps_its_results(trained, capsys):
    assert sweep_command([str(trained), "--rename=wide=d_ff=64"], "t2t-jax sweep").run() == 0
    assert "renamed wide to d_ff=64; change the name in the config file" in capsys.readouterr().out
    grid = Grid({"base": BASE, "d_ff=64": WIDE}, {})
    check_same_grid(grid, trained)
    outcome = collect(grid, trained, 2, QUIET)
    assert [(row.variant, row.num_seeds) for row in outcome.rows] == [("base", 2), ("d_ff=64", 2)]
    assert "Not in the config file" not in (trained / "table.md").read_text("utf-8")
    assert rename_row(trained, "d_ff=64=wide") == ("d_ff=64", "wide")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("wode=broad", r"'wode=broad' is not OLD=NEW with a row of .*; did you mean wide"),
        ("wide", "'wide' is not OLD=NEW with a row of"),
        ("wide=base", "'base' is taken, or cannot name a directory"),
        ("wide=a/b", "'a/b' is taken, or cannot name a directory"),
        ("wide=moved", "'moved' is taken"),
    ],
)
def test_a_row_is_renamed_to_a_new_name_only(trained, names, message):
    (trained / "moved").mkdir()
    with pytest.raises(UserError, match=message):
        rename_row(trained, names)


def test_a_row_in_training_and_a_row_under_rules_keep_their_names(trained):
    with (trained / "wide/seed0.log").open("a") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        with pytest.raises(UserError, match=r"a process trains .*wide; wait until it ends"):
            rename_row(trained, "wide=broad")
    (trained / "rules.json").write_text("{}")
    with pytest.raises(UserError, match=r"and without rules\.json, unlike "):
        rename_row(trained, "wide=broad")


def test_a_damaged_record_of_a_grid_is_named_with_the_way_out(tmp_path):
    (tmp_path / "grid.json").write_text(json.dumps({"variants": {"base": 3}}))
    with pytest.raises(UserError, match=r"grid\.json is damaged .* remove it to begin a new"):
        check_same_grid(Grid({"base": BASE}, {}), tmp_path)


def test_a_refused_sweep_changes_no_record(tmp_path):
    record_grid(Grid({"base": BASE, "wide": WIDE}, {}, source="# before\n"), tmp_path)
    started(tmp_path, "wide")
    before = {path: path.read_bytes() for path in tmp_path.glob("grid.*")}
    with pytest.raises(UserError, match="holds another grid"):
        run_grid({"base": BASE}, tmp_path, console=Console(file=io.StringIO()))
    assert {path: path.read_bytes() for path in tmp_path.glob("grid.*")} == before
    assert len(before) == 2


def test_a_directory_knows_its_seeds(tmp_path):
    def seeds(*flags):
        return sweep_command([str(tmp_path), *flags], "t2t-jax sweep")._num_seeds()

    assert seeds() == 1
    for given, known in ((3, 3), (2, 3), (4, 4)):
        record_grid(Grid({"base": BASE}, {}), tmp_path, given)
        assert seeds() == known
    assert seeds("--seeds", "2") == 2


def test_an_edited_file_is_not_written_over(tmp_path):
    record_grid(Grid({"base": BASE}, {}, source="# mine\n"), tmp_path)
    file = tmp_path / "grid.py"
    file.write_text("# edited\n")
    for source in ("# edited\n", ""):
        check_same_grid(Grid({"base": BASE}, {}, source=source), tmp_path)
    with pytest.raises(UserError, match=r"grid\.py was edited and would be lost"):
        check_same_grid(Grid({"base": BASE}, {}, source="# mine, and longer\n"), tmp_path)


def test_the_rows_named_first_come_first_with_all_their_seeds(tmp_path):
    rows = ("a1", "a2", "b1", "c")
    grid = Grid({name: BASE.replace({"model.d_k": i}) for i, name in enumerate(rows, 1)}, {})

    def order(*first):
        plan = plan_grid(grid, tmp_path, [*grid.variants], 2, GridRules())
        plan.first = first
        return " ".join(cell.name.replace("/seed", ":") for cell in plan.cells({}))

    assert order() == "a1:0 a2:0 b1:0 c:0 a1:1 a2:1 b1:1 c:1"
    assert order("c", "a1", "a2") == "c:0 c:1 a1:0 a1:1 a2:0 a2:1 b1:0 b1:1"
    with pytest.raises(UserError, match="no variant of the grid is called 'd'"):
        run_grid(grid, tmp_path, first=["d"])


def planned(workdir, monkeypatch, *sweeps, rename=None):
    """The note and the later cells of a directory after sweeps: (date, rows, seeds, chosen)."""
    for date, rows, seeds, chosen in sweeps:
        monkeypatch.setattr(stored_grid, "_today", lambda date=date: date)
        record_grid(Grid(dict.fromkeys(rows, BASE), {}), workdir, seeds, chosen)
        started(workdir, *(name for name in rows if not (workdir / name).exists()))
    if rename:
        rename_row(workdir, rename)
    record = read_record(workdir)
    return plan_note(record, "base"), added_later(record)


def test_a_grid_that_is_trained_in_parts_goes_by_its_plan(tmp_path, monkeypatch):
    note, later = planned(
        *(tmp_path, monkeypatch),
        ("2026-11-01", ["base", "wide"], 3, ["base"]),
        ("2026-11-02", ["base", "wide"], 2, ["wide"]),
    )
    assert note == (
        "Planned on 2026-11-01: 2 rows, 3 seed(s), comparisons with the base by Dunnett's test, "
        "primary score sacreBLEU."
    )
    assert later == set()
    assert plan_note(read_record(tmp_path), "all").endswith(
        " This table has comparisons of all pairs by Holm's method, which was not planned."
    )


def test_later_rows_and_seeds_are_recorded_with_their_dates(tmp_path, monkeypatch):
    note, later = planned(
        *(tmp_path, monkeypatch),
        ("2026-11-01", ["base", "wide"], 1, []),
        ("2026-11-02", ["base", "wide"], 3, ["wide"]),
        ("2026-11-03", ["base", "wide", "deep"], 1, []),
    )
    assert note.endswith(
        " Added later, on 2026-11-02: wide/seed1, wide/seed2. Added later, on 2026-11-03: "
        "deep/seed0."
    )
    assert plan_note(read_record(tmp_path), "base", "wide").endswith(
        " The base of this table, wide, was not planned."
    )
    assert later == {"wide/seed1", "wide/seed2", "deep/seed0"}


def test_a_renamed_row_keeps_its_place_in_plan_and_scorings(tmp_path, monkeypatch):
    first = ("2026-11-01", ["base", "wide"], 1, [])
    planned(tmp_path, monkeypatch, first)
    record_scoring(tmp_path, "test", {"wide/seed0": "a", "wider/seed0": "b"})
    second = ("2026-11-02", ["base", "wide"], 2, ["wide"])
    assert planned(tmp_path, monkeypatch, second, rename="wide=deep")[1] == {"deep/seed1"}
    (scoring,) = scorings(read_record(tmp_path), "test")
    assert scoring["cells"] == {"deep/seed0": "a", "wider/seed0": "b"}


def test_a_grid_of_an_earlier_version_has_no_plan(tmp_path, monkeypatch):
    record = {"seeds": 1, "variants": {"base": to_dict(BASE)}}
    (tmp_path / "grid.json").write_text(json.dumps(record))
    again = ("2026-11-02", ["base"], 2, [])
    assert planned(tmp_path, monkeypatch, again) == ("Plan: not recorded.", None)
    (tmp_path / "grid.json").unlink()  # which begins no plan where cells are trained
    assert planned(tmp_path, monkeypatch, again) == ("Plan: not recorded.", None)
