"""The test split of a grid: what is scored on it at the end, when, and how often."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from t2t_jax import Config, UserError
from t2t_jax.config.file import Grid
from t2t_jax.run.provenance import provenance
from t2t_jax.sweep import stored_grid
from t2t_jax.sweep.cell import cells, train_and_score
from t2t_jax.sweep.grid import collect, run_grid
from t2t_jax.sweep.launchers import Outcome
from t2t_jax.sweep.rules import GridRules
from t2t_jax.workdir import read_scores
from tests.sweep.conftest import QUIET, AtOnce
from tests.sweep.test_cell import write_result
from tests.sweep.test_sweep import tiny_tagger

BASE = Config().replace({"training.num_train_steps": 90, "checkpoint.every_steps": 2})
GRID = Grid({"base": BASE, "wide": BASE.replace({"model.d_ff": 64})}, {})


class Scripted(AtOnce):
    """A launcher whose cells have these perplexities at once: on dev, and one less on test."""

    def __init__(self, perplexities=None, failing=()):
        self.perplexities, self.failing, self.launched = perplexities or {}, failing, []

    def launch(self, cell):
        self.launched.append((cell.name, cell.split))
        if (cell.name, cell.split) in self.failing:
            return self
        fields = {"split": cell.split, "steps": 90, "provenance": [provenance(cell.config)]}
        fields["perplexity"] = self.perplexities.get(cell.name, 5.0) - (cell.split == "test")
        write_result(cell, **fields)
        if cell.last_step != 90:
            cell.result_file.rename(cell.workdir / f"rung-{cell.last_step}.json")
            (cell.workdir / "config.json").write_text(cell.config.to_json())
        return self

    def poll(self):
        return Outcome(0 if self.launched[-1] not in self.failing else 2, "")


@pytest.fixture(autouse=True)
def today(quick, monkeypatch):
    monkeypatch.setattr(stored_grid, "_today", lambda: "2026-11-28")


def swept(workdir, launcher, grid=GRID, **options):
    return run_grid(grid, workdir, launcher=launcher, console=QUIET, **options)


def perplexities(outcome):
    return {row.variant: row.perplexity.mean for row in outcome.rows}


def test_all_cells_are_trained_before_any_is_scored_on_test(tmp_path):
    launcher = Scripted({"base/seed0": 7.0, "wide/seed0": 6.0})
    outcome = swept(tmp_path, launcher, split="test")
    cells_of_grid = ["base/seed0", "wide/seed0"]
    assert launcher.launched == [(n, s) for s in ("dev", "test") for n in cells_of_grid]
    assert perplexities(outcome) == {"base": 6.0, "wide": 5.0}
    said = (tmp_path / "table.md").read_text()
    assert "DIR test" in said
    assert "dev chose nothing by rule; test reports, scored once (2026-11-28)." in said
    assert "DIR,test," in (tmp_path / "seeds.csv").read_text().replace("text:", "")

    on_dev = collect(GRID, tmp_path, 1, QUIET)
    assert perplexities(on_dev) == {"base": 7.0, "wide": 6.0}
    assert "dev chose nothing by rule; dev reports." in (tmp_path / "table.md").read_text()
    assert perplexities(collect(GRID, tmp_path, 1, QUIET, split="test")) == perplexities(outcome)


def test_scores_of_dev_in_the_file_of_test_are_left_out(tmp_path):
    swept(tmp_path, Scripted(), split="test")
    seed = tmp_path / "base" / "seed0"
    (seed / "result-test.json").write_bytes((seed / "result.json").read_bytes())
    outcome = collect(GRID, tmp_path, 1, QUIET, split="test")
    assert list(outcome.results) == ["wide"]
    assert "its scores are on dev, not on test" in (tmp_path / "seeds.csv").read_text()
    with pytest.raises(UserError, match="--base base has no result on test"):
        collect(GRID._replace(compared_with="base"), tmp_path, 1, QUIET, split="test")


def test_a_grid_with_an_unfinished_cell_is_not_scored_on_test(tmp_path):
    launcher = Scripted(failing=[("wide/seed0", "dev")])
    outcome = swept(tmp_path, launcher, split="test")
    assert outcome.unfinished == ("wide/seed0",)
    assert {split for _, split in launcher.launched} == {"dev"}
    with pytest.raises(UserError, match=r"has scores on test; sweep with --split test"):
        collect(GRID, tmp_path, 1, QUIET, split="test")


def test_a_second_scoring_is_refused_before_training_unless_again(tmp_path):
    swept(tmp_path, Scripted(), split="test")
    launcher = Scripted()
    swept(tmp_path, launcher, split="test")  # nothing is new
    with pytest.raises(UserError, match=r"on test on 2026-11-28, and these cells .*: base/seed1, "):
        swept(tmp_path, launcher, split="test", seeds=2)
    assert launcher.launched == []
    swept(tmp_path, launcher, split="test", seeds=2, again=True)
    assert launcher.launched[2:] == [("base/seed1", "test"), ("wide/seed1", "test")]
    assert "test reports, scored 2 times (2026-11-28, 2026-11-28)" in (
        (tmp_path / "table.md").read_text()
    )


def test_a_cell_with_a_new_model_counts_as_changed(tmp_path):
    swept(tmp_path, Scripted(), split="test")
    Scripted({"wide/seed0": 4.0}).launch(cells(GRID, tmp_path, 1)[1])  # as if trained again
    with pytest.raises(UserError, match="new or changed since: wide/seed0"):
        swept(tmp_path, Scripted(), split="test")
    outcome = swept(tmp_path, Scripted({"wide/seed0": 4.0}), split="test", again=True)
    assert perplexities(outcome) == {"base": 4.0, "wide": 3.0}


def test_an_interrupted_scoring_is_resumed(tmp_path):
    failing = Scripted(failing=[("wide/seed0", "test")])
    outcome = swept(tmp_path, failing, split="test")
    assert (perplexities(outcome), outcome.unfinished) == ({"base": 4.0}, ("wide/seed0",))
    assert "Not scored on test: wide/seed0." in (tmp_path / "table.md").read_text()
    launcher = Scripted()
    swept(tmp_path, launcher, split="test")
    assert launcher.launched == [("wide/seed0", "test")]
    assert "scored once" in (tmp_path / "table.md").read_text()


def test_tuned_values_are_chosen_on_dev_and_only_these_are_scored_on_test(tmp_path):
    grid = Grid({"base": BASE}, {})
    names = ["base,dropout_rate=0.1/seed0", "base,dropout_rate=0.3/seed0"]
    launcher = Scripted(dict(zip(names, (5.0, 4.0), strict=True)))
    rules = GridRules(tune={"model.dropout_rate": [0.1, 0.3]})
    outcome = swept(tmp_path, launcher, grid, rules=rules, split="test")
    assert launcher.launched == [(names[0], "dev"), (names[1], "dev"), (names[1], "test")]
    assert perplexities(outcome) == {"base": 3.0}
    assert "dev chose tuned values; test reports" in (tmp_path / "table.md").read_text()


def test_finalists_are_marked_unless_scored_on_test(tmp_path):
    names = ["base", "v1", "v2"]
    grid = Grid({n: BASE.replace({"model.d_ff": 64 + i}) for i, n in enumerate(names)}, {})
    launcher = Scripted({"base/seed0": 5.0, "v1/seed0": 4.0, "v2/seed0": 6.0})
    swept(tmp_path, launcher, grid, rules=GridRules("rungs=2"))
    said = (tmp_path / "table.md").read_text()
    assert "dev chose finalists; dev reports" in said
    assert "After selection: v1." in said
    swept(tmp_path, launcher, grid, split="test")
    assert launcher.launched[-2:] == [("base/seed0", "test"), ("v1/seed0", "test")]
    assert "After selection" not in (tmp_path / "table.md").read_text()


def test_a_corpus_without_a_test_split_is_refused_before_training(tmp_path, tiny_run):
    grid = Grid({"base": BASE.replace({"data.corpus": f"text:{tiny_run.folder / 'corpus'}"})}, {})
    launcher = Scripted()
    with pytest.raises(UserError, match=r"has no test split; add one or omit --split"):
        swept(tmp_path, launcher, grid, split="test")
    assert launcher.launched == []


def test_a_trained_cell_is_scored_on_test_without_training(tmp_path):
    config = tiny_tagger(tmp_path, train=8, dev=4, test=2)
    (cell,) = cells(Grid({"base": config}, {}), tmp_path / "grid", 1)
    assert train_and_score(cell) == 0
    log = (cell.workdir / "log.jsonl").read_bytes()
    on_test = replace(cell, split="test")
    assert train_and_score(on_test) == 0
    assert (cell.workdir / "log.jsonl").read_bytes() == log
    assert [len(one.result()["references"]) for one in (cell, on_test)] == [4, 2]
    assert [one["split"] for one in read_scores(cell.workdir)] == ["dev", "test"]


@pytest.mark.thorough
def test_a_grid_is_scored_on_test_by_its_processes(tmp_path):
    base = tiny_tagger(tmp_path, train=8, dev=4, test=2)
    grid = Grid({"base": base, "wide": base.replace({"model.d_ff": 16})}, {})
    text = io.StringIO()
    outcome = run_grid(grid, tmp_path / "grid", split="test", console=Console(file=text))
    assert [len(one["references"]) for own in outcome.results.values() for one in own] == [2, 2]
    assert [row.variant for row in outcome.rows] == ["base", "wide"]
