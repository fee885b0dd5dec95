"""Cells of one grid whose runs chose different settings: refused, or pooled and marked."""

import json
from dataclasses import replace

import pytest

from t2t_jax.config import Config, MeshConfig, to_dict
from t2t_jax.config.file import Grid, load_config
from t2t_jax.kernels.choice import fast_compute_dtype
from t2t_jax.parallel.mesh import make_mesh
from t2t_jax.sweep.cell import cells, check_cells
from t2t_jax.sweep.grid import collect, run_grid
from t2t_jax.sweep.same_code import devices_and_dtypes, local_dtype
from t2t_jax.system.sums import digest_of
from tests.refusals import refused
from tests.sweep.conftest import QUIET, AtOnce
from tests.sweep.test_cell import write_result
from tests.sweep.test_same_code import untrained

H100, CPU = "2 × NVIDIA H100", "1 × AMD EPYC"
END, DTYPE = "training.schedule_steps", "model.compute_dtype"


def grid_of(schedule, steps, *rows, **fields):
    common = {"training.schedule": schedule, "training.num_train_steps": steps, DTYPE: "float32"}
    base = Config().replace({"training.warmup_steps": 5} | common | fields)
    widths = {"base": 64, "wide": 128}
    return Grid({row: base.replace({"model.d_ff": widths[row]}) for row in rows}, {})


def write_run(cell, settled):
    """Write the config of a cell's run, in which the open fields have values."""
    cell.workdir.mkdir(parents=True, exist_ok=True)
    (cell.workdir / "config.json").write_text(cell.config.replace(settled).to_json())


def trained(grid, workdir, seeds=1):
    """Write runs and results as of a grid that was trained to its end."""
    for cell in cells(grid, workdir, seeds):
        write_run(cell, {END: cell.config.training.schedule_end})
        write_result(cell)


@pytest.mark.parametrize("schedule", ["cosine", "linear", "wsd"])
@pytest.mark.parametrize(
    ("rows", "seeds", "mixed"),
    [(["base"], 2, "base/seed1"), (["base", "wide"], 1, "wide/seed0")],
    ids=["a new seed", "a new row"],
)
def test_a_grid_that_mixes_two_ends_of_a_schedule_is_refused_before_training(
    tmp_path, schedule, rows, seeds, mixed
):
    trained(grid_of(schedule, 30, "base"), tmp_path)
    message = (
        rf"{mixed} was computed by different settings than base/seed0: training\.schedule_steps "
        r"30 -> 60; set training\.schedule_steps=30 in the config file.*--allow-mixed"
    )
    grid, launcher = grid_of(schedule, 60, *rows), AtOnce(untrained)
    with refused(match=message):
        run_grid(grid, tmp_path, seeds=seeds, console=QUIET, launcher=launcher)


def test_a_grid_whose_cells_agree_on_the_schedule_is_accepted(tmp_path):
    def check(steps, **fields):
        check_cells(cells(grid_of(*steps, "base", "wide", **fields), tmp_path / steps[0], 2))

    for schedule in ("cosine", "inverse_sqrt"):
        trained(grid_of(schedule, 30, "base", "wide"), tmp_path / schedule, seeds=2)
        check((schedule, 60))  # all of them keep the schedule of 30 steps
        (tmp_path / schedule / "wide").rename(tmp_path / f"{schedule} moved")
    check(("inverse_sqrt", 60))  # which has no end
    check(("cosine", 60), **{END: 30})  # the new row gets the same end
    with refused(match=r"base/seed0: .*schedule_steps 30 -> 60"):
        check(("cosine", 60), **{END: 60})


def test_rows_may_differ_in_their_number_of_steps_and_their_dtype(tmp_path):
    long = grid_of("cosine", 60, "wide", **{DTYPE: "bfloat16"}).variants
    grid = Grid(grid_of("cosine", 30, "base").variants | long, {})
    trained(grid, tmp_path)
    collect(grid, tmp_path, 1, QUIET)


AUTO = grid_of("inverse_sqrt", 400, "base", "wide", **{DTYPE: "auto"})


def test_a_float32_cell_that_is_copied_in_is_refused_or_marked(tmp_path):
    for cell in cells(AUTO, tmp_path, 2):
        write_result(cell, settled={DTYPE: "bfloat16"}, device=H100)
    _, _, _, copied = cells(AUTO, tmp_path, 2)
    write_result(copied, settled={DTYPE: "float32"}, device=CPU)
    with refused(match=r"wide/seed1 .* settings than base/seed0: .*dtype bfloat16 -> float32"):
        collect(AUTO, tmp_path, 2, QUIET)
    base, wide = collect(AUTO, tmp_path, 2, QUIET, allow_mixed=True).rows
    assert (base.other_code, wide.other_code) == ("", "model.compute_dtype bfloat16 -> float32")
    table = (tmp_path / "table.md").read_text("utf-8")
    assert "| wide † |" in table
    assert f"base on {H100} in bfloat16; wide on {H100} in bfloat16 and {CPU} in float32." in table


@pytest.mark.parametrize("here", ["float32", "bfloat16", None])
def test_a_machine_of_another_dtype_adds_no_cells(tmp_path, monkeypatch, here):
    monkeypatch.setattr("t2t_jax.sweep.same_code.local_dtype", lambda: here)
    known = cells(AUTO, tmp_path, 2)
    check_cells(known, local=True)  # nothing has begun
    write_run(known[0], {DTYPE: "bfloat16"})
    check_cells(known)  # a cluster trains them
    if here != "float32":
        check_cells(known, local=True)
        return
    with refused(match=r"wide/seed0 .*than base/seed0: .* bfloat16 -> float32"):
        check_cells(known, local=True)
    check_cells(known, local=True, allow_mixed=True)


@pytest.mark.thorough
def test_another_process_finds_the_dtype_of_this_machine():
    assert local_dtype() == fast_compute_dtype(make_mesh(MeshConfig()))


def test_a_result_of_an_earlier_version_has_the_settings_of_its_run(tmp_path):
    cell, other, *_ = cells(AUTO, tmp_path, 1)
    write_result(cell)
    assert "settled" not in cell.result()  # and so it is compared with nothing
    write_run(cell, {DTYPE: "float32"})
    assert cell.result()["settled"] == {DTYPE: "float32"}
    write_result(other, settled={DTYPE: "bfloat16"})
    with refused("float32 -> bfloat16"):
        collect(AUTO, tmp_path, 1, QUIET)


def test_a_result_is_one_of_the_settled_config(tmp_path):
    cell, _ = cells(AUTO, tmp_path, 1)
    write_result(cell, settled={DTYPE: "float32"})
    with refused("another config (model.compute_dtype 'float32' ->"):
        replace(cell, config=cell.config.replace({DTYPE: "bfloat16"})).result()
    write_result(cell, settled={DTYPE: "float7"})
    with refused(match=r"result\.json is damaged .*float7"):
        cell.result()


def test_the_note_on_devices_names_rows_only_where_they_differ():
    old = {"config": to_dict(AUTO.variants["base"])}
    on_gpus = old | {"device": H100, "settled": {DTYPE: "bfloat16"}}
    on_cpus = old | {"device": CPU, "settled": {DTYPE: "float32"}}
    same = devices_and_dtypes({"a": [on_gpus, on_gpus], "b": [on_gpus]})
    assert same == ["Trained on 2 × NVIDIA H100 in bfloat16."]
    assert devices_and_dtypes({"a": [on_gpus], "b": [on_cpus, on_gpus], "c": [old]}) == [
        "Trained on different devices or in different dtypes: a on 2 × NVIDIA H100 in bfloat16; "
        "b on 1 × AMD EPYC in float32 and 2 × NVIDIA H100 in bfloat16."
    ]
    assert devices_and_dtypes({"a": [old]}) == devices_and_dtypes({}) == []


@pytest.mark.thorough
def test_a_trained_cosine_grid_is_not_extended_with_a_new_seed(tmp_path, tiny_run):
    def sweep(steps, seeds):
        fields = {"training.schedule": "cosine", "training.warmup_steps": 1, DTYPE: "auto"}
        tiny = load_config(str(tiny_run.folder / "tiny.py"))
        config = tiny.replace(fields | {"training.num_train_steps": steps})
        run_grid({"base": config}, tmp_path, seeds=seeds, console=QUIET)

    sweep(4, seeds=1)
    run = tmp_path / "base/seed0"
    result = json.loads((run / "result.json").read_text("utf-8"))
    dtype = fast_compute_dtype(make_mesh(MeshConfig()))
    assert result["settled"] == {DTYPE: dtype, END: 4}
    assert result["vocabulary"] == digest_of(run / "vocabulary.model")
    note = f"- Trained on {result['device']} in {dtype}."
    assert note in (tmp_path / "table.md").read_text("utf-8")
    with refused("base/seed1 was computed by different settings than base"):
        sweep(8, seeds=2)
    assert not (tmp_path / "base/seed1").exists()
