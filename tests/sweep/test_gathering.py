"""What became of the cells of a grid, by what their directories hold."""

import csv
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from t2t_jax.config import Config, to_dict
from t2t_jax.config.file import Grid
from t2t_jax.sweep.cell import cells
from t2t_jax.sweep.gathering import report_on, write_seeds
from t2t_jax.sweep.grid import collect
from t2t_jax.sweep.stored_grid import read_record, record_grid
from tests.sweep.conftest import QUIET
from tests.sweep.test_cell import RESULT, write_result

BASE = Config().replace({"training.num_train_steps": 40})
VARIANTS = {
    "base": BASE,
    "A-h1": BASE.replace({"model.num_heads": 1}),
    "running": BASE.replace({"data.corpus": "text:corpus", "model.d_ff": 64}),
    "late": BASE.replace({"training.seed": 5}),
}
SECONDS = {"start": 30.0, "steps": 3540.0, "evaluation": 30.0}
FOUND = {
    "base/seed0": ("done", ""),
    "base/seed1": ("done", ""),
    "A-h1/seed0": ("done", ""),
    "A-h1/seed1": ("failed", "ValueError: NaN"),
    "running/seed0": ("unfinished", "step 40 of 40, 15 Jan 2027 08:00 UTC"),
    "late/seed5": ("unfinished", "stopped by SIGTERM"),
    "lost/seed0": ("failed", "error: corpus directory x does not exist"),
}
WHOLE = Grid({**VARIANTS, "lost": BASE.replace({"model.d_ff": 8})}, {})


def write_grid(grid: Path) -> None:
    """Write a grid: base and A-h1 with two seeds, and others that have no result.

    A second seed of A-h1 has failed in training, running is under way, late was stopped, and of
    lost there is only what its process printed.
    """
    write_cell(grid, "base", 0, 5.0)
    write_cell(grid, "base", 1, 5.2)
    write_cell(grid, "A-h1", 0, 6.0)
    write_cell(grid, "A-h1", 1, None, ended="ValueError: NaN", code=None)
    write_cell(grid, "running", 0, None)
    write_cell(grid, "late", 5, None, ended="stopped by SIGTERM", code=143)
    (grid / "lost").mkdir()
    (grid / "lost" / "seed0.log").write_text("begin\nerror: corpus directory x does not exist\n\n")


def write_cell(
    grid: Path,
    variant: str,
    seed: int,
    perplexity: float | None,
    *,
    ended: str | None = None,
    code: int | None = None,
) -> None:
    """Write the files of a run, with a result if it has a perplexity."""
    run = grid / variant / f"seed{seed}"
    (run / "jobs").mkdir(parents=True)
    config = VARIANTS[variant].replace({"training.seed": seed})
    (run / "config.json").write_text(config.to_json(), encoding="utf-8")
    records = [
        {"step": step, "of": "train", "time": 1.8e9 + step, "nll": 6 / step}
        for step in range(1, 41)
    ]
    records += [{"step": 40, "of": "dev", "time": 1.8e9, "perplexity": 5.0, "bleu": 20.0}]
    (run / "log.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in records))
    job = {
        **{"begun": 1.8e9, "written": 1.8e9 + 3600, "first_step": 0, "step": 40, "devices": 1},
        **{"seconds": SECONDS, "at": [], "ended": ended, "exit_code": code},
        **{"flops": 1e9, "source_tokens": 90.0, "target_tokens": 100.0},
    }
    (run / "jobs" / "1.json").write_text(json.dumps(job))
    if perplexity is not None:
        scores = {"perplexity": perplexity, "steps": 40}
        result = {**RESULT, **scores, "config": to_dict(config)}
        (run / "result.json").write_text(json.dumps(result))


@pytest.fixture
def grid(tmp_path):
    write_grid(tmp_path / "grid")
    return tmp_path / "grid"


def found(reports):
    return {one.cell.name: (one.state, one.reason) for one in reports}


def seeds_csv(grid):
    """Return the rows of `seeds.csv` by the names of the cells, in order."""
    rows = csv.DictReader((grid / "seeds.csv").read_text().splitlines())
    return {f"{row['variant']}/seed{row['seed']}": row for row in rows}


def test_the_files_of_a_cell_tell_what_became_of_it(grid):
    reports = [*map(report_on, cells(WHOLE, grid, 2))]
    assert found(reports).items() >= FOUND.items()
    assert {one.hours for one in reports if one.state == "done"} == {1.0}


def test_seeds_csv_has_every_measure_of_every_cell_in_the_order_of_the_grid(grid):
    collect(WHOLE, grid, 2, QUIET)
    by_name = seeds_csv(grid)
    first = ["base/seed0", "A-h1/seed0", "running/seed0", "late/seed5", "lost/seed0"]
    assert [*by_name][:5] == first
    assert by_name.keys() >= FOUND.keys()
    for name, row in by_name.items():
        assert (row["state"], row["reason"]) == FOUND.get(name, ("waiting", ""))
    second = by_name["base/seed1"]
    assert (second["perplexity"], second["bleu"], second["hours"]) == ("5.2", "20.0", "1.0")
    assert (second["steps"], second["bleu_signature"]) == ("40", "nrefs:1")
    assert by_name["A-h1/seed0"]["differs_in"] == "num_heads=1"
    assert by_name["lost/seed0"]["perplexity"] == ""
    assert {row["planned"] for row in by_name.values()} == {""}  # a grid without a plan


def test_seeds_csv_tells_planned_cells_from_those_added_later(tmp_path):
    for seeds in (1, 2):
        record_grid(WHOLE, tmp_path, seeds)
    reports = [*map(report_on, cells(WHOLE, tmp_path, 2))]
    write_seeds(WHOLE, reports, {}, tmp_path, read_record(tmp_path))
    planned = {name: row["planned"] for name, row in seeds_csv(tmp_path).items()}
    assert (planned["base/seed0"], planned["base/seed1"]) == ("yes", "no")
    assert (planned["late/seed5"], planned["late/seed6"]) == ("yes", "no")


def test_seeds_csv_has_the_varied_fields_and_the_budget_of_every_cell(grid):
    collect(WHOLE, grid, 2, QUIET)
    by_name = seeds_csv(grid)
    varied = {name for name in by_name["base/seed0"] if "." in name}
    assert varied == {"data.corpus", "model.d_ff", "model.num_heads"}
    first, one_head = by_name["base/seed0"], by_name["A-h1/seed0"]
    assert (first["model.num_heads"], one_head["model.num_heads"]) == ("8", "1")
    assert by_name["lost/seed0"]["model.d_ff"] == "8"
    assert float(first["training_flops"]) == 40 * 1e9
    assert float(first["target_tokens_trained"]) == 40 * 100
    assert first["scored_target_tokens"] == "500"
    assert float(first["step_device_hours"]) == pytest.approx(3540 / 3600)
    assert float(first["device_hours"]) == pytest.approx(1)
    assert by_name["lost/seed0"]["training_flops"] == ""
    # Each of 6 layers has two matrices of d_model x d_ff and their biases, in two stacks.
    fewer = int(first["parameters"]) - int(by_name["lost/seed0"]["parameters"])
    assert fewer == 2 * 6 * (2048 - 8) * (2 * 512 + 1)
    [mean, *_] = csv.DictReader((grid / "table.csv").read_text().splitlines())
    assert float(mean["training_flops"]) == 40 * 1e9


def test_curves_csv_has_a_row_for_each_figure_of_the_logs(grid):
    collect(WHOLE, grid, 2, QUIET)
    rows = list(csv.reader((grid / "curves.csv").read_text().splitlines()))
    assert rows[0] == ["variant", "seed", "step", "split", "measure", "value"]
    assert ["A-h1", "1", "3", "train", "nll", "2.0"] in rows
    assert ["base", "0", "40", "dev", "bleu", "20.0"] in rows
    # Each of six runs has 40 records of training with one figure, and one of dev with two.
    assert len(rows) - 1 == 6 * (40 + 2)


def test_a_result_does_not_depend_on_the_log_of_its_run(grid, capsys):
    run = grid / "base" / "seed0"
    (run / "log.jsonl").write_bytes(b"\xff\n{}\n")
    (run / "jobs" / "1.json").write_bytes(b"{")
    (cell, *_) = cells(Grid({"base": BASE}, {}), grid, 1)
    assert found(map(report_on, [cell])) == {"base/seed0": ("done", "")}
    assert "log.jsonl line 1 is left out" in capsys.readouterr().err


def test_cells_of_another_config_or_with_a_damaged_result_are_left_out(grid):
    other = BASE.replace({"model.d_ff": 8})
    write_result(cells(Grid({"base": other}, {}), grid, 2)[1])
    (grid / "base" / "seed1" / "config.json").unlink()
    (grid / "A-h1" / "seed0" / "result.json").write_text("{")
    text = io.StringIO()
    collect(WHOLE, grid, 2, Console(file=text, width=500))
    assert text.getvalue().count("base/seed1 is left out: ") == 1
    note = "- Left out, as of another config or damaged: A-h1/seed0, base/seed1.\n"
    assert (grid / "table.md").read_text().endswith(note)
    reports = found(map(report_on, cells(WHOLE, grid, 2)))
    state, reason = reports["base/seed1"]
    assert (state, "was trained with another config" in reason) == ("left out", True), reason
    state, reason = reports["A-h1/seed0"]
    assert (state, "is damaged" in reason) == ("left out", True), reason
    assert reports["base/seed0"] == ("done", "")


def test_a_job_of_slurm_tells_why_it_failed(tmp_path):
    (cell,) = cells(Grid({"base": Config()}, {}), tmp_path, 1)
    cell.workdir.parent.mkdir()
    (tmp_path / "submitit").mkdir()
    cell.workdir.with_suffix(".job").write_text("12\n")
    assert found(map(report_on, [cell])) == {"base/seed0": ("waiting", "")}
    errors = tmp_path / "submitit" / "12_0_log.err"
    errors.write_text("error: no room\nINFO:submitit:Job completed successfully\n")
    assert found(map(report_on, [cell])) == {"base/seed0": ("failed", "error: no room")}
    cell.workdir.with_suffix(".job").write_text("../12\n")
    assert found(map(report_on, [cell]))["base/seed0"][0] == "left out"


def test_cells_that_paused_or_diverged_say_so(grid):
    config = BASE.to_json()
    for name, record in (
        ("running/seed0", '"perplexity": 7.5'),
        ("late/seed5", '"perplexity": null, "diverged": "the loss is not finite"'),
    ):
        (grid / name / "rung-40.json").write_text(f'{{"config": {config}, {record}}}')
    told = found(map(report_on, cells(WHOLE, grid, 1)))
    assert told["running/seed0"] == ("paused", "step 40 of 40, with a perplexity of 7.50")
    assert told["late/seed5"] == ("diverged", "the loss is not finite")
    (grid / "late" / "seed5" / "rung-40.json").write_text("{")
    assert found(map(report_on, cells(WHOLE, grid, 1)))["late/seed5"][0] == "left out"
