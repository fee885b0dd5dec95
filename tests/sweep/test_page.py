"""The page on a grid: what is in it, and what a real browser shows of it."""

import json
import re

import numpy as np
import pytest
from scipy import stats

from t2t_jax.__main__ import main
from t2t_jax.config.file import Grid
from t2t_jax.errors import UserError
from t2t_jax.sweep import page
from t2t_jax.sweep.page import grid_page, thinned
from t2t_jax.sweep.rules import GridRules, planned_grid, record_rules
from t2t_jax.sweep.stored_grid import keep_grid
from tests.browser import addresses, complaints
from tests.sweep.grids import HOSTILE, VARIANTS, loss, write_cell, write_grid


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    place = tmp_path_factory.mktemp("grid")
    write_grid(place)
    return place


def data_of(text):
    [found] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text)
    return json.loads(found)


def test_the_page_has_the_table_and_names_nobody_else(grid, tmp_path):
    text = grid_page(grid)
    assert text.count("</script>") == 2
    assert "<img" not in text
    assert set(re.findall(r"https?://[^\s\"'`]+", text)) == {"http://www.w3.org/2000/svg"}
    data = data_of(text)
    rows = {row[0]: row for row in data["rows"]}
    assert set(rows) == set(VARIANTS)
    assert rows["A-h1"][:6] == ["A-h1", "num_heads=1", "1", "6.00", "+0.90 ± 0.19", "20.00"]
    assert rows["late"][2:] == [""] * (len(data["heads"]) - 2)
    assert data["base"] == "base"
    assert [one[:2] for one in data["unfinished"]] == [
        *(["A-h1/seed1", "failed"], ["hostile/seed0", "unfinished"]),
        *(["late/seed5", "unfinished"], ["lost/seed0", "failed"]),
    ]
    assert set(data["fields"]) == {
        *("model.num_heads", "model.d_ff", "data.corpus", "training.seed")
    } | {path for path in data["fields"] if path.endswith(("d_k", "d_v"))}


def test_the_page_on_a_tuned_grid_compares_what_was_chosen(tmp_path, monkeypatch):
    """Of two rates, the base has 5.0 with the first and A-h1 6.0 with the second."""
    grid = Grid({name: VARIANTS[name] for name in ("base", "A-h1")}, {})
    rules = GridRules(tune={"training.learning_rate_factor": [1, 2]})
    planned = planned_grid(grid, tmp_path, [*grid.variants], 1, rules)
    rows = {name: one for own in planned.candidates.values() for name, one in own.items()}
    monkeypatch.setattr("tests.sweep.grids.VARIANTS", rows)
    for name, perplexity in zip(rows, (5.0, 7.0, 9.0, 6.0), strict=True):
        write_cell(tmp_path, name, 0, perplexity)
    keep_grid(grid, tmp_path)
    record_rules(planned, tmp_path)
    data = data_of(grid_page(tmp_path))
    assert [row[0] for row in data["rows"]] == sorted(rows)
    (_, heads, compared, _), (_, _, values, _) = data["comparison"]
    assert [row[heads.index("perplexity")] for row in compared] == ["5.00", "6.00"]
    assert [row[:2] for row in values] == [
        ["base", "learning_rate_factor=1 (seed0)"],
        ["A-h1", "learning_rate_factor=2 (seed0)"],
    ]
    (tmp_path / "rules.json").write_text("damaged")
    ((caption, *_),) = data_of(grid_page(tmp_path))["comparison"]
    assert "rules.json is damaged" in caption


def test_a_grid_without_a_result_has_its_curves(tmp_path):
    write_cell(tmp_path, "base", 0, None)
    data = data_of(grid_page(tmp_path))
    assert data["rows"] == [["base", ""]]
    assert data["figures"][0]["lines"][0]["values"][0] == pytest.approx(loss("base", 0, 1))
    assert data["samples"] == {}


def test_a_long_curve_is_the_means_of_neighbours():
    steps = np.arange(10.0, 10_001, 10)
    values = np.random.default_rng(0).normal(size=1000)
    found = thinned(np.stack([steps, values]), 100, 10_000)
    assert found.shape == (2, 100)
    np.testing.assert_allclose(found[1], values.reshape(100, 10).mean(1))
    np.testing.assert_allclose(found[0], steps.reshape(100, 10).mean(1))
    # One that ended before keeps the same steps, so that seeds are compared point by point.
    early = thinned(np.stack([steps, values])[:, :555], 100, 10_000)
    np.testing.assert_array_equal(early[:, :55], found[:, :55])
    short = np.stack([steps, values])[:, :100]
    assert thinned(short, 100, 10_000) is short


def test_the_page_of_a_large_grid_is_bounded(grid, monkeypatch):
    monkeypatch.setattr(page, "_ALL_POINTS", 0)
    monkeypatch.setattr(page, "_ALL_CHARACTERS", 1)
    data = data_of(grid_page(grid))
    lines = [line for figure in data["figures"] for line in figure["lines"]]
    assert max(len(line["values"]) for line in lines) == 20 == data["thinned"]
    assert data["places"] == [0]


def _open(browser, grid, tmp_path):
    path = tmp_path / "grid.html"
    assert main(["report", str(grid), "--html", str(path)]) == 0
    addresses(browser)
    browser.get(path.as_uri())
    return path


def _column(browser, number):
    cells = browser.find_elements("css selector", f"#table tbody td:nth-child({number})")
    return [cell.text for cell in cells]


def test_a_browser_sorts_draws_and_compares(browser, grid, tmp_path):
    path = _open(browser, grid, tmp_path)
    by_id = lambda name: browser.find_element("id", name)  # noqa: E731

    # A head sorts, blank cells last in both directions.
    head = browser.find_elements("css selector", "#table th button")[3]
    assert head.text == "perplexity"
    for expected in (["base", "A-h1"], ["A-h1", "base"]):
        browser.find_elements("css selector", "#table th button")[3].click()
        assert _column(browser, 1)[:2] == expected
        assert _column(browser, 4)[2:] == ["", ""]

    # Curves of the chosen rows: the mean over seeds with Student's interval.
    drawn = "return lines().map((line) => [line.name, line.points])"
    curves = dict(browser.execute_script(drawn))
    assert set(curves) == set(VARIANTS)
    seeds = np.array([[loss("base", seed, step) for step in range(1, 41)] for seed in (0, 1)])
    half = stats.t.interval(0.95, 1, scale=stats.sem(seeds))[1]
    steps, mean, interval = np.array(curves["base"]).T
    np.testing.assert_array_equal(steps, range(1, 41))
    np.testing.assert_allclose(mean, seeds.mean(0), rtol=1e-5)
    np.testing.assert_allclose(interval, half, rtol=1e-3, atol=1e-5)
    assert not np.array(curves["late"])[:, 2].any()
    polygons = browser.find_elements("css selector", "#plot polygon")
    assert {one.get_attribute("data-name") for one in polygons} == {"base", "A-h1"}

    # A row that is not chosen is not drawn; each seed is drawn by itself, smoothed.
    browser.find_element("css selector", "input[data-variant='0']").click()
    browser.find_element("css selector", "#seeds option[value='each']").click()
    set_range = "arguments[0].value = 0.5; arguments[0].dispatchEvent(new Event('input'))"
    browser.execute_script(set_range, by_id("smoothing"))
    curves = dict(browser.execute_script(drawn))
    unchosen = data_of(path.read_text())["variants"][0]
    assert not [name for name in curves if name.startswith(unchosen)]
    plain = np.array([loss("base", 1, step) for step in range(1, 41)])
    shares = 0.5 ** np.arange(39, -1, -1)
    assert curves["base, seed 1"][-1][1] == pytest.approx(np.average(plain, weights=shares), 1e-5)

    # A logarithmic axis: equal ratios are equally far from each other.
    by_id("log-y").click()
    labels = {
        float(one.text): float(one.get_attribute("y"))
        for one in browser.find_elements("css selector", "#plot text[text-anchor='end']")
    }
    decade = (labels[1] - labels[5]) / np.log(5)
    assert labels[1] - labels[2] == pytest.approx(decade * np.log(2), abs=0.01)

    # Two rows: the fields in which they differ, and their samples.
    right = by_id("right")
    right.find_element("xpath", "./option[.='A-h1']").click()
    by_id("left").find_element("xpath", "./option[.='base']").click()
    assert "model.num_heads 8 1" in by_id("differences").text
    assert "d_ff" not in by_id("differences").text
    assert f"{HOSTILE} base 0" in by_id("samples").text
    assert f"{HOSTILE} A-h1 1" in by_id("samples").text
    right.find_element("xpath", "./option[.='hostile']").click()
    assert f"text:{HOSTILE}" in by_id("differences").text
    assert "hostile: no result yet" in by_id("samples").text
    assert "corpus directory x does not exist" in by_id("unfinished").text

    assert browser.find_elements("css selector", "main img, main b") == []
    assert complaints(browser) == []
    assert [entry for entry in browser.get_log("browser") if entry["level"] != "INFO"] == []
    asked = {url for url in addresses(browser) if url.startswith(("http", "ws", "file"))}
    assert asked == {path.as_uri()}


def test_what_cannot_be_a_page_is_refused(grid, tmp_path):
    out = str(tmp_path / "grid.html")
    for arguments, told in (
        ([str(grid)], "give a file for a page on it, as --html grid.html"),
        ([str(grid / "base" / "seed0"), "--html", out], "has no runs VARIANT/seedN"),
        ([str(tmp_path / "no"), "--html", out], "has no runs VARIANT/seedN"),
        ([str(grid), "--html", out, "--sustained-tflops", "9"], "is about a run, not a grid"),
        ([str(grid), "--html", str(tmp_path / "no" / "x")], "make it first"),
    ):
        with pytest.raises(UserError, match=re.escape(told)):
            main(["report", *arguments])
    assert not list(tmp_path.iterdir())


def test_rows_that_were_scored_on_other_samples_have_their_own_references():
    def result(references):
        config = {"training": {"seed": 3}}
        return [{"config": config, "references": references, "hypotheses": ["x"] * len(references)}]

    long = ["a" * 3000, "b"]
    made = page._samples(["u", "v", "w"], {"u": result(long), "w": result(["c"])})
    assert [[text[:2] for text in one] for one in made["references"]] == [["aa", "b"], ["c"]]
    assert made["references"][0][0].endswith("a …")
    places = {row: (one["seed"], one["references"]) for row, one in made["samples"].items()}
    assert places == {0: (3, 0), 2: (3, 1)}
    assert made["places"] == [0, 1]
