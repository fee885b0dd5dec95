"""The contrasts of a grid: differences from the base and of pairs, and effects of two factors."""

from collections.abc import Collection, Iterable
from itertools import combinations, product

from t2t_jax.config import Config, walk
from t2t_jax.config.file import Grid
from t2t_jax.sweep.inference import Weights


def against(base: str, rows: Iterable[str]) -> dict[str, Weights]:
    """Return the difference of each row from the base, by the name of the row."""
    return {name: {name: 1, base: -1} for name in rows if name != base}


def pair_name(row: str, other: str) -> str:
    """Return the name of the difference between two rows."""
    return f"{row} - {other}"


def pairs(base: str, rows: Collection[str]) -> dict[str, Weights]:
    """Return the differences of all pairs of rows, each by its `pair_name`."""
    ordered = [base, *(name for name in rows if name != base)]
    return {pair_name(b, a): {b: 1, a: -1} for a, b in combinations(ordered, 2)}


def factorial(grid: Grid, rows: Collection[str]) -> dict[str, Weights]:
    """Return the main effects and the interaction of a grid of two factors, by name.

    A factor is a field, or several fields that change together. A main effect compares a level with
    the factor's first one, averaged over the levels of the other factor. An interaction is the
    effect of the one factor at a level of the other, minus that effect at the other's first level.

    Returns:
      The contrasts; {} if the rows are not all combinations of the levels of two factors.
    """
    factors = _factors({name: grid.variants[name] for name in grid.variants if name in rows})
    if len(factors) != 2:
        return {}
    levels = [list(dict.fromkeys(of_row.values())) for of_row in factors]
    row_at = {tuple(of_row[name] for of_row in factors): name for name in factors[0]}
    if len(row_at) != len(factors[0]) or row_at.keys() != set(product(*levels)):
        return {}
    contrasts = dict[str, Weights]()
    for axis in (0, 1):
        first, crossed = levels[axis][0], levels[1 - axis]
        for level in levels[axis][1:]:
            weights = dict[str, float]()
            for value, sign in ((level, 1), (first, -1)):
                for other in crossed:
                    row = row_at[(value, other)[:: 1 - 2 * axis]]
                    weights[row] = sign / len(crossed)
            contrasts[f"{level} - {first}"] = weights
    for a, b in product(levels[0][1:], levels[1][1:]):
        contrasts[f"({a}) x ({b})"] = {
            row_at[a, b]: 1,
            row_at[levels[0][0], b]: -1,
            row_at[a, levels[1][0]]: -1,
            row_at[levels[0][0], levels[1][0]]: 1,
        }
    return contrasts


def _factors(variants: dict[str, Config]) -> list[dict[str, str]]:
    """Return the level of each row for each factor: `d_ff=512`, by the name of the row."""
    values: dict[str, list[str]] = {}
    for config in variants.values():
        for path, _, value in walk(config):
            values.setdefault(path, []).append(f"{path.rpartition('.')[2]}={value}")
    everywhere = (column for column in values.values() if len(column) == len(variants))
    varying = [column for column in everywhere if len(set(column)) > 1]
    factors: list[list[str]] = []
    for column in varying:
        for number, factor in enumerate(factors):
            together = len(set(zip(factor, column, strict=True)))
            if together == len(set(factor)) == len(set(column)):
                joined = zip(factor, column, strict=True)
                factors[number] = [f"{level} {value}" for level, value in joined]
                break
        else:
            factors.append(column)
    return [dict(zip(variants, factor, strict=True)) for factor in factors]
