"""The report of the scaling laws of a grid: fits, held-out cells, families side by side, advice."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from t2t_jax.errors import UserError
from t2t_jax.run.report.page import UNKNOWN, Row, RunReport, Section, power
from t2t_jax.sweep.scaling.cells import ScalingCell, ScalingGrid, observations
from t2t_jax.sweep.scaling.frontier import CostLine, Draws, Frontier, cost_line, interval
from t2t_jax.sweep.scaling.isoflop import Isoflop, Parabola, budgets, fit_isoflop
from t2t_jax.sweep.scaling.parametric import Law, fit_law

FAR = 10
"""How many times the largest budget an amount of operations may be before a warning says that the
law was never seen there."""
COUNTS = {"total": "all parameters", "layers": "the parameters without those of the vocabulary"}
"""What N may be, with words for it."""
_LARGEST_LOG = 700.0  # of a number that a float holds
_UNITS = (1e12, " T"), (1e9, " B"), (1e6, " M"), (1e3, " k")


class FamilyFit(NamedTuple):
    """The laws of one family of networks."""

    cells: list[ScalingCell]
    """The cells that the laws are fitted to."""
    held: list[ScalingCell]
    """The cells that were held out."""
    isoflop: Isoflop | None
    """The iso-FLOP parabolas; None where they were not asked for."""
    law: Law | None
    """The parametric law; None where it was not asked for."""
    frontiers: dict[str, Frontier]
    """The best sizes by operations, by the name of the law."""


def fit_families(
    cells: Sequence[ScalingCell], held: Sequence[ScalingCell], law: str, count: str
) -> dict[str, FamilyFit]:
    """Fit the laws to each family of networks by itself.

    Args:
      law: "isoflop", "parametric", or "both".
      count: the parameters that are N, of `COUNTS`.

    Raises:
      UserError: the cells of a family are too few, or too much alike.
    """
    fits = {}
    for number, family in enumerate(dict.fromkeys(cell.family for cell in cells)):
        own = [cell for cell in cells if cell.family == family]
        seen = observations(own, count)
        try:
            if np.ptp(seen.log_n) == 0:
                raise UserError(
                    f"all cells have N = {_amount_of(seen.log_n[0])}; a law needs several "
                    "sizes, so vary model.d_model or the layers"
                )
            isoflop = fit_isoflop(seen, seed=number) if law != "parametric" else None
            parametric = fit_law(seen, seed=number) if law != "isoflop" else None
        except UserError as error:
            raise UserError(f"{family}: {error}") from error
        frontiers = {"iso-FLOP": isoflop.frontier} if isoflop else {}
        if parametric:
            frontiers["L(N, D)"] = parametric.frontier(cost_line(seen))
        theirs = [cell for cell in held if cell.family == family]
        fits[family] = FamilyFit(own, theirs, isoflop, parametric, frontiers)
    return fits


def scaling_report(
    title: str,
    grid: ScalingGrid,
    fits: Mapping[str, FamilyFit],
    count: str,
    flops: Sequence[float],
) -> RunReport:
    """Return the report of a grid.

    Args:
      count: the parameters that are N, of `COUNTS`.
      flops: the amounts of operations that advice is asked for.
    """
    sections = [_cells(grid, fits)]
    for family, fit in fits.items():
        if fit.isoflop:
            sections.append(_parabolas(family, fit.isoflop))
        if fit.law:
            sections.append(_constants(family, fit, count))
    if compared := _families(fits):
        sections.append(compared)
    if flops:
        sections.append(_advice(fits, count, flops))
    return RunReport(title, sections)


def amount(number: float) -> str:
    """Return a number with three digits and a unit, such as 38.2 M."""
    unit, name = next((unit for unit in _UNITS if number >= 0.9995 * unit[0]), (1.0, ""))
    return f"{number / unit:.3g}{name}" if 0 < number < 1e15 else power(number)


def _amount_of(log: float) -> str:
    """Return a number, of which the logarithm is given, as text."""
    return amount(float(np.exp(min(log, _LARGEST_LOG))))


def _range(draws: Draws, how: str = "") -> str:
    """Return the interval of a figure, as text; that of a logarithm with `how` "log"."""
    low, high = interval(draws)
    if how == "log":
        if low == np.inf or high == -np.inf:
            return UNKNOWN
        if np.isinf(high):
            return "any" if np.isinf(low) else f"above {_amount_of(low)}"
        if np.isinf(low):
            return f"below {_amount_of(high)}"
        return f"{_amount_of(low)} to {_amount_of(high)}"
    return f"{low:{how or '.3f'}} to {high:{how or '.3f'}}"


def _cells(grid: ScalingGrid, fits: Mapping[str, FamilyFit]) -> Section:
    used = [cell for fit in fits.values() for cell in fit.cells]
    largest = max(used, key=lambda cell: cell.parameters)
    notes = [
        f"{len(used)} cells are fitted, the largest with {amount(largest.parameters)} parameters "
        f"and {power(max(cell.flops for cell in used))} FLOPs. The loss is that of a target token "
        f"of {grid.scored_on}, in nats. Intervals have 95% of the estimates from data drawn anew; "
        "they hold for models trained as these were, and only as far as the law has the right form."
    ]
    notes += [
        f"Cells of {family} also differ in {', '.join(paths)}, of which a law knows nothing."
        for family, paths in grid.unlike.items()
        if paths and family in fits
    ]
    notes += [f"{name} is left out: {why}." for name, why in grid.left_out.items()]
    header = (
        *("cell", "parameters", "without vocabulary", "target tokens", "source tokens"),
        *("FLOPs", "loss"),
    )
    rows: list[Row] = [
        (
            f"{cell.name} (held out)" if cell not in used else cell.name,
            f"{cell.parameters:,}",
            f"{cell.layer_parameters:,}",
            f"{cell.target_tokens:,.0f}",
            f"{cell.source_tokens:,.0f}",
            power(cell.flops),
            f"{cell.loss:.4f}",
        )
        for fit in fits.values()
        for cell in (*fit.cells, *fit.held)
    ]
    return Section("Cells", notes, header, rows)


def _parabolas(family: str, fit: Isoflop) -> Section:
    frontier = fit.frontier
    notes = [
        f"Best sizes are N ~ C^a and D ~ C^b, with a = {frontier.a[0]:.3f} ({_range(frontier.a)}) "
        f"and b = {frontier.b[0]:.3f} ({_range(frontier.b)}). A loss is off its parabola by "
        f"{fit.noise:.4f} nats (standard deviation).",
        f"D follows from {_cost(frontier.cost)}",
    ]
    header = "FLOPs", "sizes tried", "best N", "95%", "least loss", "95%", ""
    rows = [_parabola(each) for each in fit.parabolas]
    return Section(f"{family}: iso-FLOP parabolas", notes, header, rows)


def _cost(line: CostLine) -> str:
    """Say which operations are counted for N and D, and how well."""
    return (
        f"C = {np.exp(line.log_k):.3g} N^{line.gamma:.3f} D, within {line.largest_error:.1%} of "
        "the operations of these cells; for other sizes it was not checked."
    )


def _parabola(fit: Parabola) -> Row:
    tried = f"{_amount_of(fit.smallest)} to {_amount_of(fit.largest)}"
    best, loss = fit.minimum, fit.least_loss
    known = np.isfinite(best[0])
    said = "outside the sizes tried" if known else "no minimum: the curve does not bend upwards"
    return (
        power(np.exp(fit.log_c)),
        tried,
        _amount_of(best[0]) if known else UNKNOWN,
        _range(best, "log"),
        f"{loss[0]:.4f}",
        _range(loss, ".4f"),
        said if fit.is_outside else "",
    )


def _constants(family: str, fit: FamilyFit, count: str) -> Section:
    law = fit.law
    assert law is not None
    frontier = fit.frontiers["L(N, D)"]
    notes = [
        "L(N, D) = E + A / N^alpha + B / D^beta, by the Huber loss of logarithms. N is "
        f"{COUNTS[count]}, D target tokens, and {_cost(frontier.cost)} So the best sizes are "
        f"N ~ C^a with a = {frontier.a[0]:.3f} ({_range(frontier.a)})."
    ]
    # E is fitted by its logarithm, so that where nothing is left for it, it is only nearly 0.
    shown = law._replace(e=np.round(law.e, 6))
    rows: list[Row] = [
        (name, f"{draws[0]:.4g}", _range(draws, ".4g"))
        for name, draws in zip(("E", "A", "alpha", "B", "beta"), shown, strict=True)
    ]
    errors = _errors(law, fit.cells, count)
    notes.append(
        f"The law is off the losses of its own cells by {np.abs(errors).mean():.2%} on average, "
        f"and by {np.abs(errors).max():.2%} at most."
    )
    for cell, error in zip(fit.held, _errors(law, fit.held, count), strict=True):
        notes.append(
            f"Held out: {cell.name} has a loss of {cell.loss:.4f}, from which the law is off by "
            f"{error:+.2%}."
        )
    return Section(f"{family}: parametric law", notes, ("constant", "estimate", "95%"), rows)


def _errors(law: Law, cells: Sequence[ScalingCell], count: str) -> Float[np.ndarray, " cells"]:
    """Return by how much the law is off the losses of cells, as shares."""
    seen = observations(cells, count)
    points = zip(seen.log_n, seen.log_d, seen.loss, strict=True)
    return np.array([law.loss(n, d)[0] / loss - 1 for n, d, loss in points])


def _families(fits: Mapping[str, FamilyFit]) -> Section | None:
    """Return the least losses of two or more families at equal operations, side by side."""
    pairs = shared_budgets(fits)
    if not pairs:
        return None
    first = next(iter(fits))
    names = list(fits)
    header = ("FLOPs", *names, *(f"{name} - {first} (95%)" for name in names[1:]))
    rows: list[Row] = []
    for log_c, curves in pairs:
        losses = [curve.least_loss for curve in curves]
        differences = [loss - losses[0] for loss in losses[1:]]
        rows.append(
            (
                power(np.exp(log_c)),
                *(f"{loss[0]:.4f}" for loss in losses),
                *(f"{each[0]:+.4f} ({_range(each, '+.4f')})" for each in differences),
            )
        )
    notes = [
        "The least loss of each family's parabola, within the sizes that were tried, at equal "
        "FLOPs: each family has the size that suits it. A difference whose interval has 0 in it "
        "may be noise."
    ]
    return Section("Families at equal operations", notes, header, rows)


def shared_budgets(fits: Mapping[str, FamilyFit]) -> list[tuple[float, list[Parabola]]]:
    """Return the budgets that every family has a parabola for, as log C and the parabolas; none
    where there is one family alone."""
    found = [fit.isoflop.parabolas for fit in fits.values() if fit.isoflop]
    if len(found) < 2:
        return []
    curves = [each for parabolas in found for each in parabolas]
    numbers = budgets(np.array([each.log_c for each in curves]))
    shared = []
    for number in np.unique(numbers):
        own = [each for each, n in zip(curves, numbers, strict=True) if n == number]
        if len(own) == len(found):
            shared.append((float(np.mean([each.log_c for each in own])), own))
    return shared


def _advice(fits: Mapping[str, FamilyFit], count: str, flops: Sequence[float]) -> Section:
    notes = [f"N is {COUNTS[count]}, D target tokens."]
    rows: list[Row] = []
    for amount_of_flops in flops:
        log_c = float(np.log(amount_of_flops))
        for family, fit in fits.items():
            largest = max(cell.flops for cell in fit.cells)
            if amount_of_flops > FAR * largest:
                notes.append(
                    f"Warning: {power(amount_of_flops)} FLOPs are "
                    f"{amount_of_flops / largest:,.0f} times the largest budget of {family}, which "
                    f"is {power(largest)}. Beyond {FAR} times, nothing here has tested the law, "
                    "and the intervals are too narrow."
                )
            for law, frontier in fit.frontiers.items():
                log_n = frontier.log_n(log_c)
                sizes = observations(fit.cells, count).log_n
                if not sizes.min() <= log_n[0] <= sizes.max():
                    notes.append(
                        f"Warning: for {power(amount_of_flops)} FLOPs, {law} of {family} advises a "
                        f"size outside of those tried, {_amount_of(sizes.min())} to "
                        f"{_amount_of(sizes.max())}."
                    )
                log_d = frontier.cost.log_d(log_n, log_c)
                rows.append(
                    (
                        *(power(amount_of_flops), family, law),
                        *(_amount_of(log_n[0]), _range(log_n, "log")),
                        *(_amount_of(log_d[0]), _range(log_d, "log")),
                    )
                )
    header = "FLOPs", "family", "law", "parameters", "95%", "target tokens", "95%"
    return Section("Advice", notes, header, rows)
