"""The budget of a cell's training: FLOPs, tokens and device hours."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from t2t_jax.run.goodput import BETWEEN, Goodput
from t2t_jax.run.progress import STEPS
from t2t_jax.sweep.comparison import cell_name
from t2t_jax.system.records import Record

if TYPE_CHECKING:
    from t2t_jax.sweep.cell_report import CellReport


class Budget(NamedTuple):
    """The budget of a training; None for figures that its jobs did not record.

    FLOPs and tokens count the steps that led to the result. Steps that a later job repeated count
    in hours only.
    """

    training_flops: float | None = None
    """The FLOPs of the matmuls, forward and backward, without padding."""
    source_tokens_trained: float | None = None
    """The source subwords of all steps, without padding."""
    target_tokens_trained: float | None = None
    """The target subwords of all steps, without padding."""
    step_device_hours: float | None = None
    """The device hours of the steps, without anything else."""
    device_hours: float | None = None
    """The device hours of all jobs: start, compilation, steps, evaluations and checkpoints, but not
    the time between two jobs."""


def budget_of(report: "CellReport") -> Budget:
    """Return the budget of a cell's training so far.

    Args:
      report: the state of the cell. If its jobs account for fewer steps than it has taken, for
        example because an account is damaged, all figures are None.
    """
    account = report.goodput
    if account is None or sum(job.steps for job in account.jobs) < report.steps:
        return Budget()
    hours = account.device_hours
    return Budget(
        _over_steps(account, "flops"),
        _over_steps(account, "source_tokens"),
        _over_steps(account, "target_tokens"),
        hours[STEPS],
        sum(hours.values()) - hours[BETWEEN],
    )


def _over_steps(account: Goodput, name: str) -> float | None:
    """Sum a figure per step over all steps; None if a job did not record it."""
    figures = [(job.account.get(name), job.steps) for job in account.jobs]
    products = [figure * steps for figure, steps in figures if figure is not None]
    return sum(products) if len(products) == len(figures) else None


def mean_budgets(
    results: Mapping[str, Sequence[Record]], reports: Iterable["CellReport"]
) -> dict[str, Budget]:
    """Return the mean budget of the seeds of each variant.

    The budget of a tuned variant counts the chosen values only.

    Args:
      results: the results that the table compares, by variant.
      reports: the states of all cells.
    """
    budgets = {report.cell.name: budget_of(report) for report in reports if report.result}
    means = {}
    for variant, seeds in results.items():
        of_seeds = (budgets.get(cell_name(variant, result), Budget()) for result in seeds)
        columns = zip(*of_seeds, strict=True)
        means[variant] = Budget(*(None if None in column else fmean(column) for column in columns))
    return means


def steps_of_seeds(steps: Sequence[int]) -> str:
    """Return the steps of the seeds as text: `2,400`, or `2,400 / 1,800` if they differ."""
    return " / ".join(f"{number:,}" for number in (steps if len({*steps}) > 1 else steps[:1]))
