"""What became of the cells of a grid, by what their directories hold."""

import csv

import pytest
from rich.console import Console

from t2t_jax.config import Config
from t2t_jax.config.file import Grid
from t2t_jax.errors import UserError
from t2t_jax.sweep.cell import cells
from t2t_jax.sweep.cell_report import cell_reports
from t2t_jax.sweep.directory import is_grid, read_grid_directory
from t2t_jax.sweep.grid import collect
from tests.sweep.grids import BASE, VARIANTS, write_cell, write_grid

FOUND = {
    "base/seed0": ("done", ""),
    "base/seed1": ("done", ""),
    "A-h1/seed0": ("done", ""),
    "A-h1/seed1": ("failed", "ValueError: NaN"),
    "hostile/seed0": ("unfinished", "step 40 of 40, 15 Jan 2027 08:00 UTC"),
    "late/seed5": ("unfinished", "stopped by SIGTERM"),
    "lost/seed0": ("failed", "error: corpus directory x does not exist"),
}


@pytest.fixture
def grid(tmp_path):
    write_grid(tmp_path / "grid")
    return tmp_path / "grid"


def found(reports):
    return {one.cell.name: (one.state, one.reason) for one in reports}


def test_a_directory_tells_what_became_of_each_cell(grid):
    told = read_grid_directory(grid)
    assert found(told.reports) == FOUND
    assert {one.hours for one in told.reports if one.cell.variant != "lost"} == {1.0}
    assert told.grid.variants == dict(sorted(VARIANTS.items()))
    assert is_grid(grid)
    assert not is_grid(grid / "base" / "seed0")
    assert not is_grid(grid / "base")
    assert not is_grid(grid / "nothing")


def test_seeds_csv_has_every_measure_of_every_cell_in_the_order_of_the_grid(grid):
    whole = Grid({**VARIANTS, "lost": BASE.replace({"model.d_ff": 8})}, {})
    collect(whole, grid, 2, Console(quiet=True))
    rows = list(csv.DictReader((grid / "seeds.csv").read_text().splitlines()))
    assert [f"{row['variant']}/seed{row['seed']}" for row in rows][:5] == [
        *("base/seed0", "A-h1/seed0", "hostile/seed0", "late/seed5", "lost/seed0")
    ]
    by_name = {f"{row['variant']}/seed{row['seed']}": row for row in rows}
    assert by_name.keys() >= FOUND.keys()
    for name, row in by_name.items():
        assert (row["state"], row["reason"]) == FOUND.get(name, ("waiting", ""))
    second = by_name["base/seed1"]
    assert (second["perplexity"], second["bleu"], second["hours"]) == ("5.2", "20.0", "1.0")
    assert (second["steps"], second["bleu_signature"]) == ("40", "nrefs:1")
    assert by_name["A-h1/seed0"]["differs_in"] == "num_heads=1"
    assert by_name["lost/seed0"]["perplexity"] == ""
    # A reader of the directory has the same order, and so the same first variant.
    assert list(read_grid_directory(grid).grid.variants) == list(VARIANTS)
    (grid / "seeds.csv").write_text("damaged")
    assert list(read_grid_directory(grid).grid.variants) == sorted(VARIANTS)


def test_a_result_does_not_depend_on_the_log_of_its_run(grid, capsys):
    run = grid / "base" / "seed0"
    (run / "log.jsonl").write_bytes(b"\xff\n{}\n")
    (run / "jobs" / "1.json").write_bytes(b"{")
    (cell, *_) = cells(Grid({"base": BASE}, {}), grid, 1)
    assert found(cell_reports([cell])) == {"base/seed0": ("done", "")}
    assert "log.jsonl line 1 is left out" in capsys.readouterr().err


def test_cells_of_another_or_an_unknown_config_are_left_out(grid):
    write_cell(grid, "late", 6, 5.0)
    other = BASE.replace({"model.d_ff": 8, "training.seed": 6})
    (grid / "late" / "seed6" / "result.json").write_text(
        (grid / "base" / "seed0" / "result.json").read_text()
    )
    (grid / "late" / "seed6" / "config.json").write_text(other.to_json())
    (grid / "hostile" / "seed0" / "config.json").write_text("{")
    told = read_grid_directory(grid)
    state = found(told.reports)
    assert state["late/seed6"][0] == state["hostile/seed0"][0] == "left out"
    assert "was trained with another config" in state["late/seed6"][1]
    assert "config is damaged" in state["hostile/seed0"][1]
    assert "hostile" not in told.grid.variants


def test_a_job_of_slurm_tells_why_it_failed(tmp_path):
    (cell,) = cells(Grid({"base": Config()}, {}), tmp_path, 1)
    cell.workdir.parent.mkdir()
    (tmp_path / "submitit").mkdir()
    cell.workdir.with_suffix(".job").write_text("12\n")
    assert found(cell_reports([cell])) == {"base/seed0": ("waiting", "")}
    errors = tmp_path / "submitit" / "12_0_log.err"
    errors.write_text("error: no room\nINFO:submitit:Job completed successfully\n")
    assert found(cell_reports([cell])) == {"base/seed0": ("failed", "error: no room")}
    cell.workdir.with_suffix(".job").write_text("../12\n")
    assert found(cell_reports([cell]))["base/seed0"][0] == "left out"


def test_a_directory_without_a_readable_run_is_refused(tmp_path):
    (tmp_path / "lost").mkdir()
    (tmp_path / "lost" / "seed0.log").write_text("error: no corpus\n")
    with pytest.raises(UserError, match=r"no cell with a config .*; lost/seed0: error: no corpus"):
        read_grid_directory(tmp_path)


def test_cells_that_paused_or_diverged_say_so(grid):
    config = BASE.to_json()
    for name, record in (
        ("hostile/seed0", '"perplexity": 7.5'),
        ("late/seed5", '"perplexity": null, "diverged": "the loss is not finite"'),
    ):
        (grid / name / "rung-40.json").write_text(f'{{"config": {config}, {record}}}')
    told = found(read_grid_directory(grid).reports)
    assert told["hostile/seed0"] == ("paused", "step 40 of 40, with a perplexity of 7.50")
    assert told["late/seed5"] == ("diverged", "the loss is not finite")
    (grid / "late" / "seed5" / "rung-40.json").write_text("{")
    assert found(read_grid_directory(grid).reports)["late/seed5"][0] == "left out"
