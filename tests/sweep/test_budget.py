"""The budgets of cells and variants, against sums made by hand."""

from pathlib import Path

import pytest

from t2t_jax.config import Config
from t2t_jax.config.file import Grid
from t2t_jax.run.job import goodput
from t2t_jax.sweep.cell import cells
from t2t_jax.sweep.gathering import DONE, CellReport, mean_budgets
from t2t_jax.sweep.tables import Budget
from tests.sweep.test_comparison import result

WORK = {"flops": 1e9, "source_tokens": 90.0, "target_tokens": 100.0}


def job(first, last, begun, step_seconds, work=WORK):
    """Return the account of a job on two devices that took a minute to start."""
    return {
        **{"begun": begun, "written": begun + 60 + step_seconds, "devices": 2},
        **{"first_step": first, "step": last, "ended": None, "exit_code": None, **work},
        **{"seconds": {"start": 60.0, "steps": step_seconds}, "at": []},
    }


def report(*jobs, steps=600, seed=0, variant="base"):
    grid = Grid({variant: Config().replace({"training.seed": seed})}, {})
    [cell] = cells(grid, Path("grid"), 1)
    done = result(5.0, 20.0, seed=seed) | {"steps": steps}
    return CellReport(cell, DONE, result=done, goodput=goodput(jobs))


def test_repeated_steps_count_in_the_hours_of_everything_only():
    """The first job is killed at step 400, and the second resumes an hour later from step 300."""
    budget = report(job(0, 400, 0.0, 800.0), job(300, 600, 4460.0, 600.0)).budget
    assert budget.training_flops == pytest.approx(600 * 1e9)
    assert budget.source_tokens_trained == pytest.approx(600 * 90)
    assert budget.target_tokens_trained == pytest.approx(600 * 100)
    assert budget.step_device_hours == pytest.approx(2 * (600 + 600) / 3600)
    assert budget.device_hours == pytest.approx(2 * (60 + 800 + 60 + 600) / 3600)


def test_figures_that_a_job_did_not_record_are_unknown():
    old = {"source_tokens": 90.0, "target_tokens": 100.0}
    budget = report(job(0, 300, 0.0, 600.0, old), job(300, 600, 900.0, 600.0)).budget
    assert budget.training_flops is None
    assert budget.target_tokens_trained == pytest.approx(60_000)


def test_a_lost_account_leaves_no_figure_too_small():
    assert report(job(300, 600, 0.0, 600.0)).budget == Budget()


def test_a_variant_has_the_mean_budget_of_the_seeds_in_its_row():
    short = report(job(0, 400, 0.0, 800.0), steps=400, seed=1)
    long, other = report(job(0, 600, 0.0, 1200.0)), report(job(0, 600, 0.0, 9e9), variant="other")
    results = {"base": [long.result, short.result], "lost": [result(5.0, 20.0)]}
    means = mean_budgets(results, [long, short, other])
    assert means["base"].training_flops == pytest.approx(500 * 1e9)
    assert means["base"].device_hours == pytest.approx(2 * (60 + 1000) / 3600)
    assert means["lost"] == Budget()
    tuned = mean_budgets({"row": [other.result | {"tuned_to": "other"}]}, [long, short, other])
    assert tuned["row"] == other.budget
