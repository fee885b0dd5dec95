"""The effects of two factors, by hand."""

import math
from dataclasses import make_dataclass

import pytest

from t2t_jax import register
from t2t_jax.config import Config
from t2t_jax.config.file import Grid, product, values_by_path
from t2t_jax.sweep.comparison import factorial
from t2t_jax.sweep.tables import write_tables
from tests.sweep.test_comparison import result

WIDTHS = ("model.d_model", "model.num_heads")
TWO_BY_TWO = {"model.d_ff": [512, 1024], "training.warmup_steps": [10, 20]}


def _grid(choices):
    return Grid(product(Config(), choices), {})


def test_a_two_by_two_grid_has_two_main_effects_and_an_interaction():
    grid = _grid(TWO_BY_TWO)
    a, b, c, d = grid.variants  # 512,10  512,20  1024,10  1024,20
    assert factorial(grid, grid.variants) == {
        "d_ff=1024 - d_ff=512": {c: 0.5, d: 0.5, a: -0.5, b: -0.5},
        "warmup_steps=20 - warmup_steps=10": {b: 0.5, d: 0.5, a: -0.5, c: -0.5},
        "(d_ff=1024) x (warmup_steps=20)": {d: 1, b: -1, c: -1, a: 1},
    }


def test_fields_that_change_together_are_one_factor():
    choices = {WIDTHS: [(128, 4), (256, 8), (512, 2)], "training.warmup_steps": [10, 20]}
    grid = _grid(choices)
    found = factorial(grid, grid.variants)
    assert next(iter(found)) == "d_model=256 num_heads=8 - d_model=128 num_heads=4"
    assert len(found) == 2 + 1 + 2
    assert all(math.isclose(sum(weights.values()), 0, abs_tol=1e-12) for weights in found.values())


@pytest.mark.usefixtures("tables")
def test_parameters_of_one_part_are_two_factors():
    parameters = [("peak", float, 0.01), ("slope", float, 0.5)]
    methods = {"__call__": lambda self, step: self.peak}
    register("schedule")(make_dataclass("Tri", parameters, frozen=True, namespace=methods))
    peak, slope = "training.schedule.peak", "training.schedule.slope"
    base = Config().replace({"training.schedule": "tri"})
    grid = Grid(product(base, {peak: [0.01, 0.02], slope: [0.5, 0.1]}), {})
    names = "peak=0.02 - peak=0.01", "slope=0.1 - slope=0.5", "(peak=0.02) x (slope=0.1)"
    assert tuple(factorial(grid, grid.variants)) == names
    *_, last = values_by_path(grid.variants.values())
    assert (last[peak], last[slope], "training.schedule" in last) == (0.02, 0.1, False)


def test_other_grids_have_no_main_effects():
    grid = _grid(TWO_BY_TWO)
    assert factorial(grid, list(grid.variants)[:3]) == {}  # a row without a result
    one = _grid({"model.d_ff": [512, 1024]})
    assert factorial(one, one.variants) == {}
    three = _grid(TWO_BY_TWO | {"model.dropout_rate": [0.1, 0.2]})
    assert factorial(three, three.variants) == {}


def test_the_tables_have_main_effects_and_all_pairs(tmp_path):
    grid = _grid(TWO_BY_TWO)
    means = dict(zip(grid.variants, (10.0, 14.0, 12.0, 16.0), strict=True))  # additive
    results = {
        name: [
            result(5.0 + seed / 10, mean + seed + odd, seed=seed)
            for seed, odd in ((0, 0.1), (1, 0), (2, -0.1))
        ]
        for name, mean in means.items()
    }
    write_tables(grid, results, tmp_path, comparisons="all")
    text = (tmp_path / "table.md").read_text()
    lines = {
        cells[1].strip(): cells for line in text.splitlines() if len(cells := line.split("|")) == 9
    }
    assert lines["d_ff=1024 - d_ff=512"][5].strip() == "+2.00"
    assert lines["warmup_steps=20 - warmup_steps=10"][5].strip() == "+4.00"
    assert lines["(d_ff=1024) x (warmup_steps=20)"][5].strip() == "+0.00"
    assert sum("d_ff" in name and "x" not in name for name in lines) == 1 + 6  # and six pairs
    assert "p: two-sided, adjusted by Holm's method for all pairs of rows." in text
    write_tables(grid, results, tmp_path)
    text = (tmp_path / "table.md").read_text()
    assert "Differences of all pairs" not in text
    assert "Main effects and interaction" in text


def test_the_table_says_how_many_seeds_a_difference_takes(tmp_path):
    grid = Grid({"base": Config(), "a": Config()}, {})
    results = {
        name: [result(5.0 + seed / 100, 20.0 + seed / 10, seed=seed) for seed in range(3)]
        for name in grid.variants
    }
    write_tables(grid, results, tmp_path)
    text = (tmp_path / "table.md").read_text()
    assert "To find a true difference of 1% in perplexity in 4 of 5 grids takes 3 seeds of" in text
    assert "To find a true difference of 0.5 sacreBLEU in 4 of 5 grids takes 3 seeds of" in text
