"""What a sweep finds in its directory, whatever happened to it."""

import json
import math
import os
import re
from types import SimpleNamespace

import numpy as np
import pytest
from submitit.slurm.slurm import SlurmJob

from t2t_jax import UserError, run_grid
from t2t_jax.commands.entry import entry_command
from t2t_jax.config import Config, to_dict
from t2t_jax.config.file import Grid
from t2t_jax.decoding.translator import diverged
from t2t_jax.extras.trackers.flags import SweepFlags
from t2t_jax.sweep import launchers
from t2t_jax.sweep.cell import _speed, cells, num_seeds_in, train_and_score
from t2t_jax.sweep.launchers import Cluster, Local
from t2t_jax.sweep.rules import check_distinct
from t2t_jax.tasks.task import CorpusLoss

GRID = Grid({"base": Config()}, {})
RESULT = {
    "config": to_dict(Config()),
    "corpus": "text:DIR",
    "split": "dev",
    "perplexity": 5.0,
    "bleu": 20.0,
    "bleu_signature": "nrefs:1",
    "tokenized_split_bleu": 21.0,
    "tokenized_split_bleu_signature": "Moses",
    "target_tokens": 500,
    "target_tokens_per_second": 1000.0,
    "steps": 400,
    "hypotheses": ["eins", "zwei"],
    "references": ["eins", "zwei"],
}


def write_result(cell, **fields):
    """Write a result of a cell on its split, with these fields."""
    cell.workdir.mkdir(parents=True, exist_ok=True)
    result = RESULT | {"config": to_dict(cell.config)} | fields
    cell.result_file.write_text(json.dumps(result))


@pytest.fixture
def cell(tmp_path):
    (cell,) = cells(GRID, tmp_path, 1)
    cell.workdir.mkdir(parents=True)
    return cell


def store(cell, content):
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    (cell.workdir / "result.json").write_bytes(text)


def test_a_result_is_read_as_it_was_written(cell):
    assert cell.result() is None
    store(cell, RESULT)
    assert cell.result() == RESULT


@pytest.mark.parametrize("name", RESULT)
def test_a_result_without_a_field_is_refused_by_its_name_with_the_way_out(cell, name):
    store(cell, {key: value for key, value in RESULT.items() if key != name})
    with pytest.raises(UserError, match=rf"result\.json is damaged .*`{name}`.*remove it to score"):
        cell.result()


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"{", id="cut"),
        pytest.param(b"[]", id="a list"),
        pytest.param(b"null", id="null"),
        pytest.param(b"\xff", id="not UTF-8"),
        pytest.param(b"[" * 100_000, id="nested 100,000 deep"),
        pytest.param({**RESULT, "bleu": "20"}, id="a figure as text"),
        pytest.param({**RESULT, "perplexity": None}, id="a figure that is null"),
        pytest.param({**RESULT, "perplexity": math.nan}, id="a perplexity that is NaN"),
        pytest.param({**RESULT, "bleu": math.inf}, id="a score that is infinite"),
        pytest.param({**RESULT, "config": {}}, id="a config without fields"),
        pytest.param({**RESULT, "config": {"training": 3}}, id="a section that is a number"),
        pytest.param({**RESULT, "hypotheses": [1, 2]}, id="lines that are numbers"),
        pytest.param({**RESULT, "hypotheses": ["eins"]}, id="a line too few"),
    ],
)
def test_a_damaged_result_is_refused_with_the_way_out(cell, content):
    store(cell, content)
    with pytest.raises(UserError, match=r"result\.json is damaged .*; remove it to score again"):
        cell.result()


@pytest.mark.parametrize("name", ["seed0.old", "seed", "seedy", "old-seed1", "seed1 (copy)"])
def test_a_directory_that_was_moved_away_is_not_a_seed(cell, tmp_path, name):
    store(cell, RESULT)
    moved = cell.workdir.with_name(name)
    moved.mkdir()
    (moved / "result.json").write_bytes(b"{")
    assert num_seeds_in(GRID, tmp_path) == 1
    later = {name: one.replace({"training.seed": 5}) for name, one in GRID.variants.items()}
    assert num_seeds_in(Grid(later, {}), tmp_path) == 1


def test_rows_of_one_config_under_one_seed_are_refused(tmp_path):
    rows = {f"seed={seed}": Config().replace({"training.seed": seed}) for seed in (0, 1)}
    with pytest.raises(UserError, match="seed=0 with seed 1 and seed=1 with seed 1 are the same"):
        run_grid(rows, tmp_path, seeds=2)
    with pytest.raises(UserError, match="base with seed 0 and copy with seed 0 are the same"):
        run_grid({"base": Config(), "copy": Config()}, tmp_path)
    assert not [*tmp_path.iterdir()]
    check_distinct(rows, num_seeds=1)  # a row for each seed
    seeds = {"training.init_seed": 0, "training.order_seed": 0, "training.dropout_seed": 0}
    fixed = {"fixed": Config().replace(seeds)}
    with pytest.raises(UserError, match="fixed with seed 0 and fixed with seed 1 are the same"):
        check_distinct(fixed, num_seeds=2)
    with pytest.raises(UserError, match="base with seed 0 and fixed with seed 5 are the same"):
        check_distinct(
            {"base": Config(), "fixed": fixed["fixed"].replace({"training.seed": 5})}, num_seeds=1
        )
    check_distinct({"base": Config(), "wide": Config().replace({"model.d_ff": 4096})}, num_seeds=2)


PATIENCE = "training.stop_after_evaluations_without_gain"


def _trained_to(step, monkeypatch, **figures):
    """Let the training of a cell, and the scoring of what it left, be done at once."""
    losses = CorpusLoss(0.7, 0.5, 7, np.array([1.2345678, 2.0]), np.array([3, 4]))
    lines = SimpleNamespace(
        hypotheses=RESULT["hypotheses"], references=RESULT["references"], loss=losses
    )
    record = {**RESULT, "checkpoints": [step], **figures}
    del record["config"]
    for name, what in {
        "trainer.train": SimpleNamespace(exit_code=0),
        "loading.load": SimpleNamespace(steps=(step,)),
        "evaluation.evaluate": lines,
        "evaluation.score_record": record,
    }.items():
        monkeypatch.setattr(f"t2t_jax.run.{name}", lambda *_, what=what, **__: what)


def test_a_cell_whose_training_ended_early_is_finished_until_more_is_asked_for(
    cell, tmp_path, monkeypatch
):
    _trained_to(400, monkeypatch)
    patient = cell.config.replace({PATIENCE: 3})
    (cell.workdir / "config.json").write_text(patient.to_json())
    (cell.workdir / "vocabulary.model").write_bytes(b"pieces")
    (finished,) = cells(Grid({"base": patient}, {}), tmp_path, 1)
    assert train_and_score(finished) == 0
    result = finished.result()
    assert result["checkpoints"] == [400]
    assert result["sentence_nll"] == [1.23457, 2.0]
    assert result["sentence_tokens"] == [3, 4]
    assert cell.result() is None


@pytest.mark.parametrize(("field", "figure"), [("perplexity", math.nan), ("loss", math.inf)])
def test_a_cell_whose_evaluation_is_not_finite_has_diverged(cell, monkeypatch, field, figure):
    last = cell.config.training.num_train_steps
    _trained_to(last, monkeypatch, **{field: figure})
    assert train_and_score(cell) == 0
    assert cell.result() is None
    assert cell.scores(cell.result()) == {last: math.inf}
    assert cell.rungs()[last]["diverged"] == f"not a finite number on dev: {field}"


@pytest.mark.parametrize("stage", ["trainer.train", "evaluation.evaluate"])
def test_a_cell_without_finite_probabilities_has_diverged(cell, monkeypatch, stage):
    """The evaluations of the training, and the last one, refuse a line of dev."""
    last = cell.config.training.num_train_steps
    _trained_to(last, monkeypatch)

    def refuse(*_, **__):
        raise diverged(2)

    monkeypatch.setattr(f"t2t_jax.run.{stage}", refuse)
    assert train_and_score(cell) == 0
    assert "no finite probabilities for line 2" in cell.rungs()[last]["diverged"]


def test_a_log_without_speeds_gives_no_speed():
    assert math.isnan(_speed([{"of": "train", "step": 1}]))
    figures = [{"of": "train", "target_tokens_per_second": rate} for rate in (1.0, None, 3.0)]
    assert _speed(figures) == 2.0


@pytest.fixture
def grid_file(tmp_path):
    path = tmp_path / "grid.py"
    path.write_text("from t2t_jax import Config\nVARIANTS = {'base': Config()}\n")
    return str(path)


@pytest.mark.parametrize(
    ("workdir", "message"),
    [
        ("grid.py", "grid.py is not a writable directory; choose another"),
        ("grid.py/runs", "grid.py is not a writable directory; choose another"),
        (os.fsdecode(b"run\xe9"), "is not UTF-8"),
    ],
    ids=["a file", "below a file", "a name that is not UTF-8"],
)
def test_a_directory_that_cannot_be_a_sweeps_is_refused(grid_file, tmp_path, workdir, message):
    for flags in ([], ["--report"]):
        place = ["--config", grid_file, "--workdir", f"{tmp_path}/{workdir}"]
        with pytest.raises(UserError, match=re.escape(message)):
            entry_command(["sweep", *place, *flags]).run()


@pytest.mark.parametrize("content", [b"soon", b"12 13", b"../../1", b"\xff", b"1\n2"])
def test_a_damaged_job_file_is_refused_and_nothing_is_submitted(cell, tmp_path, content):
    launcher = Cluster(tmp_path, ["timeout_min=5"], kind="local")
    cell.workdir.with_suffix(".job").write_bytes(content)
    with pytest.raises(UserError, match=r"seed0\.job is damaged: .* remove the file to submit"):
        launcher.launch(cell)


def test_an_empty_job_file_is_as_good_as_none(cell):
    cell.workdir.with_suffix(".job").write_bytes(b"\n")
    assert launchers._job_id(cell.workdir.with_suffix(".job")) == ""


def test_trackers_of_a_sweep_reach_its_cells(cell, monkeypatch):
    text = "error: 'wand:demo' does not name a tracker, such as wandb:PROJECT; did you mean wandb?"
    job = Local(1, [SweepFlags(("wand:demo",)).as_text()]).launch(cell)
    job.wait()
    assert job.poll() == (2, text)
    monkeypatch.setattr(launchers, "train_and_score", lambda cell, flags: flags[0])
    monkeypatch.setattr("t2t_jax.system.program.prepare_process", lambda: None)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    config, workdir = cell.config.to_json(), str(cell.workdir)
    found = launchers._run_cell(config, workdir, {}, ["trackio:demo"], 1, "dev")
    assert found == ("trackio:demo", "")


def test_a_job_makes_its_config_on_the_node_where_files_register_names(cell, tmp_path, monkeypatch):
    jobs, cluster = [], launchers.Cluster(tmp_path, ["timeout_min=1"], "local")
    executor = SimpleNamespace(submit=lambda *job: jobs.append(job) or SimpleNamespace(job_id="1"))
    monkeypatch.setattr(cluster, "_executor", executor)
    cluster.launch(cell)
    assert not any("Config(" in repr(part) for part in jobs[0])


def test_a_sweep_refuses_a_tracker_before_it_starts_a_cell(tmp_path):
    flags = ["--config=configs/table3.py", f"--workdir={tmp_path / 'grid'}", "--track=wandb"]
    with pytest.raises(UserError, match="'wandb' names no project"):
        entry_command(["sweep", *flags]).run()
    assert not (tmp_path / "grid").exists()


def test_without_accounts_the_queue_is_asked_and_its_silence_is_told_once(
    tmp_path, monkeypatch, capsys
):
    silent = tmp_path / "silent"
    for name, script in (
        ("sacct", "exit 1"),
        (
            "squeue",
            f'[ ! -e {silent} ] || {{ echo "no controller" >&2; exit 1; }}; cat {tmp_path}/q',
        ),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "q").write_text("12|RUNNING|n1\n7|PENDING|\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(SlurmJob, "watcher", SlurmJob.watcher)
    launchers._watch_queue()

    def state():
        SlurmJob.watcher.update()
        return SlurmJob.watcher.get_state("12", mode="cache")

    assert state() == "RUNNING"
    silent.touch()
    assert [state() for _ in range(3)] == ["RUNNING"] * 3
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert told.startswith("warning: squeue does not answer (no controller); until it does")
    silent.unlink()
    (tmp_path / "q").write_text("")
    assert state() == "GONE"
    assert SlurmJob.watcher.is_done("12")
    assert capsys.readouterr().err == ""
