"""The arithmetic of a grid's table, on results made by hand."""

import csv
import io
import math
import re

import pytest
from rich.console import Console

from t2t_jax import Config, UserError
from t2t_jax.config.file import Grid
from t2t_jax.paper import TABLE_3
from t2t_jax.sweep.comparison import compare
from t2t_jax.sweep.tables import summary, write_tables
from tests.sweep.test_cell import RESULT

REFERENCES = [
    f"das {noun} ist {kind} und {kind}" for noun in "abcdefghijklmnop" for kind in ("x", "y")
]
NEARLY = [line.replace(" ist ", " war ") for line in REFERENCES[:16]] + REFERENCES[16:]
GRID = Grid(
    {
        "base": Config(),
        "A-h1": Config().replace({"model.num_heads": 1}),
        "words": Config().replace({"data.vocab_size": 8000}),
    },
    TABLE_3,
)


def result(perplexity, bleu, hypotheses=REFERENCES, references=REFERENCES, seed=0):
    return RESULT | {
        "config": {"training": {"seed": seed}},
        "perplexity": perplexity,
        "bleu": bleu,
        "tokenized_split_bleu": bleu + 1,
        "steps": 300,
        "hypotheses": hypotheses,
        "references": references,
    }


def rows(results, grid=GRID):
    return {row.variant: row for row in compare(grid, results).rows}


def test_means_deviations_and_differences_are_those_of_the_seeds():
    found = rows(
        {
            "base": [result(5.0, 20.0), result(5.2, 22.0, seed=1)],
            "A-h1": [result(6.0, 10.0), result(6.4, 14.0, seed=1)],
        }
    )
    base, one_head = found["base"], found["A-h1"]
    assert base.perplexity.mean == pytest.approx(5.1)
    assert base.perplexity.sd == pytest.approx(0.1 * math.sqrt(2))
    assert base.perplexity.difference is None
    assert base.score.p_value is None
    assert base.verdict == ""
    assert one_head.perplexity.difference == pytest.approx(1.1, rel=0.005)  # geometric means
    # Variances of the logarithms with one degree of freedom each, pooled; two seeds on each side.
    noise = math.sqrt((math.log(5.2 / 5.0) ** 2 / 2 + math.log(6.4 / 6.0) ** 2 / 2) / 2)
    error = noise * 1.1 / math.log(6.2 / 5.1)  # from logarithms to perplexities
    assert one_head.perplexity.error == pytest.approx(error, rel=0.005)
    # The interval of the logarithm, with two degrees of freedom: Student's t is 4.303.
    low = math.sqrt(6.0 * 6.4) * math.exp(-4.303 * noise) - math.sqrt(5.0 * 5.2)
    assert one_head.perplexity.low == pytest.approx(low, rel=1e-3)
    assert one_head.perplexity.noise == "seeds"
    assert one_head.score.difference == pytest.approx(-9.0)
    assert one_head.score.error == pytest.approx(math.sqrt((2 + 8) / 2))
    assert one_head.difference == "num_heads=1"
    assert one_head.published.dev_bleu == 24.9


def test_a_metric_of_the_config_is_shown_where_every_result_has_it():
    judged = {"metric": "chrf", "metric_score": 55.0}
    results = {"base": [result(5.0, 20.0) | judged], "A-h1": [result(6.0, 10.0) | judged]}
    other_metric = [result(6.0, 10.0) | judged | {"metric": "ter"}]
    for changed, name, shown in (
        ({}, "chrf", [55.0, 55.0]),
        ({"A-h1": [result(6.0, 10.0)]}, "tokenized_split_bleu", [21.0, 11.0]),
        ({"base": [result(5.0, 20.0)]}, "tokenized_split_bleu", [21.0, 11.0]),
        ({"A-h1": other_metric}, "tokenized_split_bleu", [21.0, 11.0]),
    ):
        found = compare(GRID, results | changed).rows
        assert [row.second_score.mean for row in found] == shown
        assert {row.measures.secondary.name for row in found} == {name}


def test_the_steps_are_those_that_were_taken():
    ended = [result(5.0, 20.0) | {"steps": last} for last in (300, 400)]
    found = rows({"base": ended, "A-h1": [result(6.0, 10.0)]})
    assert (found["base"].steps, found["A-h1"].steps) == ((300, 400), (300,))


FOUR = Grid({name: Config() for name in ("base", "a", "b", "c")}, {})
BY_SEED = {"base": (20.0, 18.0), "a": (22.0, 20.2), "b": (19.0, 17.0), "c": (21.0, 19.4)}


OF_FOUR = {
    name: [result(math.exp(bleu / 10), bleu, seed=seed) for seed, bleu in enumerate(scores)]
    for name, scores in BY_SEED.items()
}


def test_with_enough_rows_variants_are_compared_seed_by_seed():
    a = rows(OF_FOUR, FOUR)["a"]
    assert a.score.difference == pytest.approx((2.0 + 2.2) / 2)
    # The seeds differ by 2, 1.8, 2 and 1.6 in the rows, 1.85 at the mean: half of the rest is the
    # noise of each of the two scores. Of eight scores, four rows and two seeds take five degrees.
    squares = sum(2 * ((d - 1.85) / 2) ** 2 for d in (2.0, 1.8, 2.0, 1.6))
    noise = math.sqrt(squares / 3)
    assert a.score.error == pytest.approx(noise * math.sqrt(2 / 2))
    assert a.score.high - a.score.low == pytest.approx(2 * 3.1824 * noise, rel=1e-4)
    # Perplexities are compared by their logarithms, which are a tenth of the BLEUs here.
    difference = math.exp(2.11) - math.exp(1.9)
    assert a.perplexity.difference == pytest.approx(difference)
    assert a.perplexity.error == pytest.approx(noise / 10 * difference / 0.21)


def test_a_variant_with_one_seed_is_compared_with_the_base_under_that_seed():
    results = OF_FOUR | {"more": [result(5.0, 19.0, seed=1)]}
    more = rows(results, Grid({**FOUR.variants, "more": Config()}, {}))["more"]
    assert more.score.mean == 19.0
    assert more.score.difference == pytest.approx(19.0 - 18.0)


def test_differences_that_another_seed_could_make_are_within_the_noise():
    noisy = {"base": [result(5.0, 20.0), result(6.0, 22.0, seed=1)], "A-h1": [result(5.8, 20.5)]}
    row = rows(noisy)["A-h1"]
    assert row.perplexity.low < 0 < row.perplexity.high
    assert row.score.low < 0 < row.score.high
    assert row.verdict == (
        "perplexity: within the noise of seeds; sacreBLEU: within the noise of seeds and sentences"
    )
    assert row.perplexity.p_value == row.perplexity.p_adjusted  # of a single comparison


def test_each_measure_has_a_verdict_of_its_own():
    """No word on BLEU stands for a perplexity that differs, whichever noise BLEU is within."""
    base = [result(200.0, 20.0), result(201.0, 26.0, seed=1)]
    row = rows({"base": base, "A-h1": [result(66.0, 21.0, NEARLY)]})["A-h1"]
    assert row.perplexity.difference < -134
    verdicts = {"perplexity": "lower", "sacreBLEU": "within the noise of seeds and sentences"}
    assert row.verdicts == verdicts


def test_bleu_differs_only_beyond_the_noise_of_seeds_and_sentences():
    """Half of the sentences are worse: more seeds find it, and a large noise of seeds hides it."""
    for bleu, seeds, verdict in (
        ((60.0, 60.1, 60.2), (20.0, 20.1, 20.2), "lower"),
        ((60.0, 99.0, 10.0), (20.0, 20.1, 20.2), "within the noise of seeds and sentences"),
        ((60.0, 60.1, 60.2), (59.9, 60.1, 60.2), "within the noise of seeds and sentences"),
    ):
        results = {
            "base": [result(5.0, one, seed=n) for n, one in enumerate(bleu)],
            "A-h1": [result(9.0, one, NEARLY, seed=n) for n, one in enumerate(seeds)],
        }
        assert rows(results)["A-h1"].verdicts["sacreBLEU"] == verdict


def test_one_seed_each_is_tested_over_sentences_and_says_that_the_noise_of_seeds_is_unknown():
    row = rows({"base": [result(5.0, 60.0)], "A-h1": [result(6.0, 20.0, NEARLY)]})["A-h1"]
    assert row.perplexity.error is None
    assert row.score.noise == "sentences"
    assert row.score.p_value < 0.05
    assert row.verdicts == {
        "perplexity": "not tested",
        "sacreBLEU": "lower, noise of seeds unknown",
    }
    row = rows({"base": [result(5.0, 20.0)], "A-h1": [result(5.0, 19.9, NEARLY)]})["A-h1"]
    assert row.verdicts == {
        "perplexity": "not tested",
        "sacreBLEU": "within the noise of sentences",
    }


def test_log_likelihoods_of_sentences_test_a_perplexity_with_one_seed():
    """One nat more in each of 32 sentences of four subwords, and then in one sentence only."""
    nll = [float(n % 5 + 2) for n in range(32)]

    def of_sentences(values):
        figures = {"sentence_nll": values, "sentence_tokens": [4] * 32}
        return [result(math.exp(sum(values) / 128), 20.0) | figures]

    for worse, verdict in (
        ([n + 1 + i % 2 / 10 for i, n in enumerate(nll)], "higher, noise of seeds unknown"),
        ([nll[0] + 8, *nll[1:]], "within the noise of sentences"),
    ):
        row = rows({"base": of_sentences(nll), "A-h1": of_sentences(worse)})["A-h1"]
        assert row.perplexity.noise == "sentences"
        assert row.verdicts["perplexity"] == verdict


def test_seeds_are_paired_by_their_numbers():
    base = [result(5.0, 18.0, seed=0), result(5.0, 20.0, seed=1)]
    row = rows({"base": base, "A-h1": [result(5.0, 20.0, seed=7)]})["A-h1"]
    assert row.score.difference == 1.0  # no seed in common: the means are compared


def test_perplexities_over_other_subwords_are_not_compared():
    seeds = [result(5.0, 20.0, seed=0), result(5.1, 20.1, seed=1)]
    wild = [result(50.0, 20.0, seed=0), result(80.0, 20.1, seed=1)]
    found = rows({"base": seeds, "words": wild, "A-h1": seeds})
    assert found["words"].perplexity.difference is None
    assert found["words"].perplexity.mean == 65.0
    assert found["words"].score.difference == 0
    assert found["words"].bits_per_byte.difference > 0
    assert found["words"].verdicts == {
        "bits per byte": "within the noise of seeds",
        "perplexity": "",
        "sacreBLEU": "within the noise of seeds and sentences",
    }
    assert "bits per byte" not in found["A-h1"].verdicts
    assert found["A-h1"].perplexity.error < 0.2  # not their noise


def test_a_row_that_was_scored_otherwise_is_listed_without_a_comparison(tmp_path):
    base = [result(5.0, 20.0), result(5.0, 20.2, seed=1)]
    other_dev = [result(6.0, 10.0, references=REFERENCES[1:] + REFERENCES[:1])]
    row = rows({"base": base, "A-h1": other_dev})["A-h1"]
    assert (row.perplexity.difference, row.score.difference, row.verdict) == (None, None, "")
    other_bleu = [result(6.0, 10.0) | {"bleu_signature": "nrefs:1|tok:char"}]
    results = {"base": base, "A-h1": other_bleu}
    row = rows(results)["A-h1"]
    assert row.perplexity.difference == pytest.approx(1.0)
    assert row.score.difference is None
    write_tables(GRID, results, tmp_path)
    text = (tmp_path / "table.md").read_text()
    assert "- sacreBLEU: `nrefs:1` (base); `nrefs:1|tok:char` (A-h1)." in text


def test_a_score_that_is_not_finite_is_not_compared():
    for figure in (math.nan, math.inf):
        seeds = [result(5.0, 20.0), result(5.1, 20.2, seed=1)]
        row = rows({"base": seeds, "A-h1": [result(figure, 20.0), seeds[1]]})["A-h1"]
        assert (row.perplexity.difference, row.perplexity.p_value) == (None, None)
        assert row.score.difference is not None


def test_without_the_base_there_are_means_and_no_differences():
    row = rows({"A-h1": [result(6.0, 19.0)]})["A-h1"]
    assert row.perplexity.mean == 6.0
    assert (row.score.difference, row.score.p_value) == (None, None)
    with pytest.raises(UserError, match="no cell of the grid has a result yet"):
        compare(GRID, {})


def test_the_files_hold_every_variant_beside_the_paper(tmp_path):
    base = [result(5.0, 20.0), result(5.2, 22.0, seed=1)]
    results = {"base": base, "A-h1": [result(6.0, 10.0)]}
    write_tables(GRID, results, tmp_path)
    text = (tmp_path / "table.md").read_text()
    line = next(line for line in text.splitlines() if line.startswith("| A-h1"))
    assert re.search(
        r"\| num_heads=1 \| 1 \| 6\.00 \| \+0\.90 ± 0\.19 \| 0\.131 \| 10\.00 \| -11\.00 ", line
    )
    assert "| 5.29 | 24.9 |  | " in line
    assert "32 sentences of text:DIR dev" in text
    assert "`nrefs:1`" in text
    assert "Moses" in text
    records = list(csv.DictReader(io.StringIO((tmp_path / "table.csv").read_text())))
    assert [record["variant"] for record in records] == ["base", "A-h1"]
    assert float(records[1]["bleu_difference"]) == pytest.approx(-11)
    expected = {
        "paper_perplexity": "5.29",
        "bleu_signature": "nrefs:1",
        "perplexity_verdict": "within the noise of seeds",
        "bleu_verdict": "within the noise of seeds and sentences",
    }
    assert records[1].items() >= expected.items()
    assert (tmp_path / "table.png").read_bytes().startswith(b"\x89PNG")


def test_a_grid_of_ones_own_has_no_column_of_the_paper(tmp_path):
    grid = GRID._replace(published={})
    results = {"base": [result(5.0, 20.0)]}
    rows = write_tables(grid, results, tmp_path)
    assert "paper:" not in (tmp_path / "table.md").read_text()
    assert "paper" not in (tmp_path / "table.csv").read_text().splitlines()[0]
    assert [*summary(rows, results, 80).columns[0].cells] == ["base"]


@pytest.mark.parametrize("comparisons", ["base", "all"])
def test_a_diverged_seed_leaves_a_table_that_one_can_read(tmp_path, comparisons):
    grid = Grid({name: GRID.variants[name] for name in ("base", "A-h1")}, {})
    results = {
        "base": [result(5.0, 20.0), result(5.1, 20.0, seed=1)],
        "A-h1": [result(5.0, 20.0), result(math.exp(700), 0.0, seed=1)],
    }
    rows = write_tables(grid, results, tmp_path, comparisons=comparisons)
    assert rows[1].perplexity.formatted == ("diverged", "")
    for name in ("table.md", "table.tex"):
        assert "diverged" in (tmp_path / name).read_text()
        assert not re.search(r"\d{30}", (tmp_path / name).read_text())


@pytest.mark.parametrize("width", [80, 100, 1000])
def test_a_narrow_terminal_shows_the_whole_names_of_the_rows(width):
    names = [f"dropout_rate={rate},label_smoothing=0.05" for rate in (0.1, 0.2)]
    base, other = [GRID.variants[name] for name in ("base", "A-h1")]
    grid = Grid({"base": base, names[0]: other, names[1]: other}, {})
    results = {name: [result(5.0, 20.0)] for name in grid.variants}
    console = Console(file=io.StringIO(), width=width)
    console.print(summary(compare(grid, results).rows, results, width))
    lines = console.file.getvalue().splitlines()
    assert all(len(line) <= width and "…" not in line for line in lines)
    end = next(line.find("seeds") for line in lines if "seeds" in line)
    first = "".join(line[:end].strip() for line in lines)
    assert all(name in first for name in names)
    assert (names[0] in console.file.getvalue()) == (width > 80)  # in one line, where it fits


TEXT = {"task": "language_modelling", "definition": "windows", "references": ["a"]}


def test_a_grid_of_language_models_is_compared_by_bits_per_byte(tmp_path):
    grid = Grid({name: GRID.variants[name] for name in ("base", "A-h1")}, {})

    def of_text(bits, seed, references=("a",)):
        figures = {"bits_per_byte": bits, "bits_per_character": bits + 0.5}
        return result(5.0, 0.0, seed=seed) | TEXT | figures | {"references": list(references)}

    results = {
        "base": [of_text(1.0, 0), of_text(1.2, 1)],
        "A-h1": [of_text(2.0, 0, "b"), of_text(2.4, 1)],  # samples of a split may differ
    }
    row = rows(results, grid)["A-h1"]
    assert row.score.difference == pytest.approx(1.1)
    assert row.score.error == pytest.approx(math.sqrt((0.02 + 0.08) / 2))
    assert row.second_score.mean == pytest.approx(2.7)
    assert row.verdict == "perplexity: not tested; bits per byte: higher"
    write_tables(grid, results, tmp_path)
    table = (tmp_path / "table.md").read_text()
    heads = [cell.strip() for cell in table.splitlines()[2].split("|")]
    assert heads[7:11] == ["bits per byte", "Δ ± s.e.", "p", "bits per character"]
    assert "- bits per byte: `windows`." in table
    assert "BLEU" not in table
    [first, *_] = csv.DictReader(io.StringIO((tmp_path / "table.csv").read_text()))
    assert float(first["bits_per_byte_mean"]) == pytest.approx(1.1)
    assert first["bits_per_byte_p_value"] == ""  # of the base
    assert first["definition"] == "windows"
    assert summary(compare(grid, results).rows, results, 80).columns[4].header == "bits per byte"


def test_labels_of_other_sentences_are_not_compared():
    def labelled(accuracy, references):
        figures = {"accuracy": accuracy, "num_labels": 9}
        return result(2.0, 0.0) | {"task": "tagging"} | figures | {"references": references}

    results = {"base": [labelled(90.0, ["NN"])], "A-h1": [labelled(80.0, ["VB"])]}
    assert rows(results)["A-h1"].score.difference is None
    results["A-h1"] = [labelled(80.0, ["NN"])]
    row = rows(results)["A-h1"]
    assert row.score.difference == pytest.approx(-10)
    assert row.verdicts["accuracy"] == "not tested"
