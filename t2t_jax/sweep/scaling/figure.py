"""The picture of scaling laws: parabolas of each family, best sizes, and least losses."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from t2t_jax.inspect.figures.drawing import COLORS, Figure, canvas
from t2t_jax.run.report.page import power
from t2t_jax.sweep.scaling.cells import observations
from t2t_jax.sweep.scaling.frontier import interval
from t2t_jax.sweep.scaling.isoflop import budgets
from t2t_jax.sweep.scaling.report import COUNTS, FamilyFit, shared_budgets

_DASHES = {"iso-FLOP": "-", "L(N, D)": "--"}


def scaling_figure(fits: Mapping[str, FamilyFit], count: str) -> Figure:
    """Draw the laws of a grid.

    For each family the picture shows the losses over N by budget; then the best sizes over C by
    each law; and, where families have budgets in common, their least losses.
    """
    shared = shared_budgets(fits)
    columns = len(fits) + 1 + bool(shared)
    figure, axes = canvas(4.2 * columns, 3.8, columns)
    for shown, (family, fit) in zip(axes, fits.items(), strict=False):
        _losses(shown, fit, count)
        shown.set(title=family, xscale="log", xlabel=f"N: {COUNTS[count]}", ylabel="loss in nats")
    _best_sizes(axes[len(fits)], fits)
    if shared:
        _least_losses(axes[-1], list(fits), shared)
    for each in axes:  # the numbers between powers of ten would overlap
        each.tick_params(axis="x", which="minor", labelbottom=False)
    return figure


def _losses(axes: Any, fit: FamilyFit, count: str) -> None:
    """Draw the losses of a family's cells over N, with the parabola of each budget."""
    seen = observations(fit.cells, count)
    numbers = budgets(seen.log_c)
    for number in np.unique(numbers):
        own, color = numbers == number, COLORS[number % len(COLORS)]
        label = f"{power(np.exp(seen.log_c[own].mean()))} FLOPs"
        axes.plot(np.exp(seen.log_n[own]), seen.loss[own], "o", color=color, label=label)
        for curve in fit.isoflop.parabolas if fit.isoflop else []:
            if np.isclose(curve.log_c, seen.log_c[own].mean()):
                log_n = np.linspace(curve.smallest, curve.largest, 100)
                x = log_n - curve.middle
                loss = np.polynomial.polynomial.polyval(x, curve.coefficients[0])
                axes.plot(np.exp(log_n), loss, color=color)
    axes.legend(fontsize="small")


def _best_sizes(axes: Any, fits: Mapping[str, FamilyFit]) -> None:
    """Draw the best sizes over C by each law, with their intervals, and those of the parabolas."""
    for (family, fit), color in zip(fits.items(), COLORS, strict=False):
        logs = np.log([cell.flops for cell in fit.cells])
        log_c = np.linspace(logs.min(), logs.max() + np.log(10), 50)
        for law, frontier in fit.frontiers.items():
            line = [np.clip(frontier.log_n(each), -700, 700) for each in log_c]
            axes.plot(
                np.exp(log_c),
                np.exp([each[0] for each in line]),
                _DASHES[law],
                color=color,
                label=f"{family}, {law}",
            )
            low, high = np.exp([interval(each) for each in line]).T
            axes.fill_between(np.exp(log_c), low, high, color=color, alpha=0.15, linewidth=0)
        if fit.isoflop:
            inside = [each for each in fit.isoflop.parabolas if not each.is_outside]
            points = [(np.exp(each.log_c), np.exp(each.minimum[0])) for each in inside]
            axes.plot(*np.array(points).reshape(-1, 2).T, "o", color=color)
    axes.set(xscale="log", yscale="log", xlabel="FLOPs", ylabel="best N", title="best sizes")
    axes.legend(fontsize="small")


def _least_losses(axes: Any, names: list[str], shared: list[tuple[float, list[Any]]]) -> None:
    """Draw the least loss of each family over the budgets that all of them have."""
    flops = np.exp([log_c for log_c, _ in shared])
    for place, (name, color) in enumerate(zip(names, COLORS, strict=False)):
        draws = [curves[place].least_loss for _, curves in shared]
        middle = np.array([each[0] for each in draws])
        low, high = np.array([interval(each) for each in draws]).T
        errors = np.maximum([middle - low, high - middle], 0)
        axes.errorbar(flops, middle, yerr=errors, fmt="o-", color=color, label=name, capsize=3)
    axes.set(xscale="log", xlabel="FLOPs", ylabel="loss in nats", title="least loss")
    axes.legend(fontsize="small")
