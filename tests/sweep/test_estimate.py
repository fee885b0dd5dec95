"""The estimates of a grid: their arithmetic with planted times, and how they are shown."""

import io
import json
import os
import signal

import pytest
from rich.console import Console

from t2t_jax.ahead_of_time.report import StepMemory, StepReport
from t2t_jax.config import Config
from t2t_jax.config.file import Grid, product
from t2t_jax.data.rows import BatchShape
from t2t_jax.errors import UserError
from t2t_jax.sweep import estimate, listing
from t2t_jax.sweep.cell import Cell, cells
from t2t_jax.sweep.estimate import Estimate, Timing, estimated, flops_of_step, timings_of
from t2t_jax.sweep.launchers import Outcome
from t2t_jax.sweep.rules import GridRules, planned_grid

BASE = Config().replace({"training.num_train_steps": 100})
GRID = Grid({f"w{n}": BASE.replace({"model.d_ff": 512 * n}) for n in (1, 2, 3)}, {})
FLOPS = [flops_of_step(config) for config in GRID.variants.values()]


def test_a_line_through_the_smallest_and_the_largest_row_gives_those_between(tmp_path):
    """d_ff is 1, 2 and 3 times 512, so the operations of the middle row are halfway."""
    timings = [Timing(FLOPS[0], once=10.0, step=0.1), Timing(FLOPS[2], once=30.0, step=0.5)]
    found = estimated(cells(GRID, tmp_path, 1), timings, "planted")
    assert found.of_cells == pytest.approx(
        {"w1/seed0": 20.0, "w2/seed0": 20 + 100 * 0.3, "w3/seed0": 80.0}
    )
    assert found.left == pytest.approx([20.0, 50.0, 80.0])


def test_a_row_outside_the_measured_ones_takes_neither_nothing_nor_less(tmp_path):
    """A line that falls is noise, and one that would pass zero is cut off."""
    falling = [Timing(FLOPS[0], 10.0, 0.3), Timing(FLOPS[1], 20.0, 0.1)]
    found = estimated(cells(GRID, tmp_path, 1), falling, "planted").of_cells
    assert found["w3/seed0"] == pytest.approx(30.0 + 100 * 0.2)
    steep = [Timing(FLOPS[1], 1.0, 0.1), Timing(FLOPS[2], 1.0, 10.0)]
    found = estimated(cells(GRID, tmp_path, 1), steep, "planted").of_cells
    assert found["w1/seed0"] == pytest.approx(1.0 + 100 * 0.1 * FLOPS[0] / FLOPS[1])


def test_a_single_row_gives_the_rate_of_operations(tmp_path):
    found = estimated(cells(GRID, tmp_path, 1), [Timing(FLOPS[0], 5.0, 0.2)], "planted").of_cells
    assert found["w3/seed0"] == pytest.approx(5.0 + 100 * 0.2 * FLOPS[2] / FLOPS[0])


def test_what_other_seeds_find_compiled_counts_once(tmp_path):
    timing = Timing(FLOPS[0], once=50.0, step=0.1, compiled=30.0)
    grid = Grid({"a": GRID.variants["w1"]}, {})
    rate = grid.variants["a"].replace({"training.learning_rate_factor": 2.0})
    grid.variants["b"] = rate  # whose search is the same program
    found = estimated(cells(grid, tmp_path, 2), [timing], "planted")
    assert found.left == pytest.approx([60.0, 30.0, 30.0, 30.0])


@pytest.mark.parametrize(("jobs", "seconds"), [(1, 20.0), (2, 11.0), (3, 8.0), (9, 8.0), (None, 8)])
def test_cells_that_run_at_once_are_laid_out_in_their_order(jobs, seconds):
    """With two at once, 3 + 8 and 5 + 4: the cell of 4 seconds waits for the first 5 to end."""
    assert Estimate({}, [3.0, 5.0, 8.0, 4.0], "").seconds(jobs) == seconds
    assert Estimate({}, [], "").seconds(jobs) == 0


def _account(cell, first, step, **seconds):
    directory = cell.workdir / "jobs"
    directory.mkdir(parents=True, exist_ok=True)
    account = {"begun": 0.0, "written": 1.0, "first_step": first, "step": step, "devices": 1}
    account |= {"seconds": seconds, "at": [], "ended": None, "exit_code": None}
    (directory / f"{1 + len([*directory.iterdir()])}.json").write_text(json.dumps(account))


def test_the_accounts_of_cells_that_have_run_give_their_times(tmp_path, monkeypatch):
    one, two, three = cells(GRID, tmp_path, 1)
    _account(one, 0, 60, start=5.0, compilation=20.0, steps=6.0, data=1.0, evaluation=2.0)
    _account(one, 60, 100, start=4.0, compilation=19.0, steps=4.0, checkpoints=7.0)
    _account(two, 0, 50, start=5.0, compilation=20.0, steps=10.0)
    _account(three, 0, 3, start=5.0, compilation=20.0, steps=10.0)
    started = [Timing(FLOPS[0], 25.0, 0.2), Timing(FLOPS[1], 25.0, 0.2)]
    assert timings_of([one, two, three]) == started
    results = {"w1": {"seconds": 11.0, "perplexity": 5.0}}
    monkeypatch.setattr(Cell, "result", lambda cell: results.get(cell.variant))
    assert timings_of([one, two, three]) == [Timing(FLOPS[0], 25.0 + 11.0, 0.2)]
    log = '{"step": 50, "of": "train", "time": 0.0, "loss": 1.0}\n'
    for seconds in (8.0, 2.0, 3.0):
        log += f'{{"step": 50, "of": "dev", "time": 0.0, "seconds": {seconds}}}\n'
    (two.workdir / "log.jsonl").write_text(log)
    assert estimated([one, two], started, "").left == pytest.approx([25.0 + 50 * 0.2])
    results.clear()
    assert timings_of([two]) == [Timing(FLOPS[1], 31.0, 4.0 / 50, compiled=6.0)]


def _printed(tmp_path, jobs=2, workdir=None, seeds=2, rules=GridRules()):  # noqa: B008
    text = io.StringIO()
    planned = planned_grid(GRID, workdir or tmp_path, [*GRID.variants], seeds, rules)
    listing.print_estimates(planned, workdir, jobs, Console(file=text, width=120))
    return text.getvalue()


def test_a_listing_has_the_memory_and_the_time_of_each_row_and_the_time_of_all(
    tmp_path, monkeypatch
):
    timings = [Timing(FLOPS[0], 3600.0, 0.0), Timing(FLOPS[2], 10810.0, 0.0)]
    monkeypatch.setattr(listing, "timings_here", lambda *_: timings)
    shown = _printed(tmp_path).splitlines()
    assert shown[0].split() == ["3", "variants,", "2", "seed(s)"]
    assert shown[1].split()[-3:] == ["steps", "memory", "time"]
    rows = [line.split() for line in shown[2:5]]
    assert [row[-2:] for row in rows] == [["60", "min"], ["2", "h"], ["3", "h"]]
    assert [row[-3] for row in rows] == ["GiB"] * 3
    assert float(rows[0][-4]) < float(rows[1][-4]) < float(rows[2][-4])
    left = "6 of 6 cells are left: about 7.01 h with --jobs 2, 12 h of cells in all (by 2 short"
    assert left in shown[-1]


def test_the_time_of_a_tuned_row_is_that_of_its_values_until_their_rungs(tmp_path, monkeypatch):
    monkeypatch.setattr(listing, "timings_here", lambda *_: [Timing(FLOPS[0], 0.0, 36.0)])
    same = GRID.variants["w1"].replace(
        {"training.num_train_steps": 400, "checkpoint.every_steps": 100}
    )
    grid = Grid({"w1": same, "gelu": same.replace({"model.feed_forward": "gelu"})}, {})
    monkeypatch.setitem(globals(), "GRID", grid)
    tune = {"training.learning_rate_factor": [0.25, 0.5, 1, 2]}
    # Of four values, two go on from step 100 to 200 and one to 400, whichever these are: 800 steps
    # of 36 seconds.
    shown = _printed(tmp_path, 1, seeds=1, rules=GridRules("rungs=3,keep=0.5,asha", tune))
    rows = [line.split()[-2:] for line in shown.splitlines()[2:4]]
    assert rows == [["8", "h"]] * 2
    assert "8 of 8 cells are left: about 16 h" in shown
    assert not [*tmp_path.iterdir()]


def test_the_memory_of_a_row_for_more_devices_than_there_are_is_not_known():
    assert listing._least_memory(BASE.replace({"parallel.fsdp": 64}), 1) == "?"


def test_differences_that_the_names_of_rows_have_are_not_listed_again():
    def heads(variants):
        table = listing.listing(Grid(variants, {}), [*variants], 1, {})
        return [column.header for column in table.columns]

    named = product(BASE, {"model.d_ff": [8, 16], "model.num_heads": [4, 8]})
    assert heads(named) == ["variant", "parameters", "steps"]
    assert heads({"a": BASE, "b": named["d_ff=8,num_heads=4"]})[:2] == ["variant", "differs in"]


def test_without_a_corpus_the_rows_are_listed_and_the_reason_is_given(tmp_path, monkeypatch):
    def lacking(*_):
        raise UserError("there is no corpus")

    monkeypatch.setattr(listing, "timings_here", lacking)
    shown = _printed(tmp_path)
    assert "w3" in shown
    assert shown.endswith("times are not estimated: there is no corpus\n")
    assert "not estimated: no cell has run on the cluster yet" in _printed(tmp_path, None)


class Job:
    """A job that has ended, or goes on until it is stopped."""

    def __init__(self, outcome):
        self.outcome, self.ended = outcome, []

    def poll(self):
        return self.outcome

    def stop(self):
        self.ended.append("stopped")

    def wait(self):
        self.ended.append("waited")


def _run(jobs, number=0):
    """Run trials by these jobs, at the first of which a signal comes."""

    class Stub:
        def launch(self, cell):
            if number:
                os.kill(os.getpid(), number)
            return jobs[cell.variant]

    estimate._run_trials([Cell(name, BASE, None) for name in jobs], Stub())


def test_a_trial_that_fails_gives_its_reason_and_stops_the_other():
    jobs = {"w1": Job(None), "w3": Job(Outcome(2, "error: no room"))}
    with pytest.raises(UserError, match="a trial of w3 failed: error: no room"):
        _run(jobs)
    assert [job.ended for job in jobs.values()] == [["stopped", "stopped", "waited"], []]


def test_a_signal_stops_the_trials_and_is_the_exit_code():
    jobs = {"w1": Job(None), "w3": Job(None)}
    with pytest.raises(SystemExit) as end:
        _run(jobs, signal.SIGTERM)
    assert end.value.code == 143
    assert [job.ended for job in jobs.values()] == [["stopped", "stopped", "waited"], []]


def test_rows_that_differ_in_rates_alone_are_compiled_once(monkeypatch):
    compiled = []

    def compile_ahead(config, devices):
        compiled.append(config)
        memory = StepMemory(config.model.d_ff << 20, 0, 0)
        shape = BatchShape(1, 2, 2)
        fields = {"devices": "8 x H100", "mesh_shape": {}, "num_parameters": 1, "passes": 1}
        return StepReport(
            **fields,
            shape=shape,
            compile_seconds=1.0,
            flops=1.0,
            hardware=None,
            memory=memory,
            available_bytes=1 << 30,
        )

    monkeypatch.setattr("t2t_jax.ahead_of_time.compile.compile_ahead", compile_ahead)
    monkeypatch.setattr("t2t_jax.ahead_of_time.topologies.devices_of", lambda name: name)
    faster = {"training.learning_rate_factor": 2.0, "training.num_train_steps": 9}
    other = BASE.replace({"model.dropout_rate": 0.0})
    grid = Grid({"a": BASE, "b": BASE.replace(faster), "c": other}, {})
    text = io.StringIO()
    console = Console(file=text, width=120)
    assert not listing.compiled_rows(grid, [*grid.variants], "h100:8", console)
    assert compiled == [BASE, other]
    assert text.getvalue().count("2.00 GiB    NO ") == 3
