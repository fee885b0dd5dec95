"""The command `fit` on grids whose losses are those of a law that is known."""

import json
import math
import re
from functools import partial

import numpy as np
import pytest

from t2t_jax.commands.entry import entry_command
from t2t_jax.config import Config, to_dict
from t2t_jax.config.cost import model_flops_per_step, num_parameters
from t2t_jax.errors import UserError
from t2t_jax.sweep.scaling import report as reporting

WIDTHS = (32, 48, 64, 96, 128)
BUDGETS = (1e13, 2e13, 4e13, 8e13)
TRUTH = {"e": 1.5, "a": 60.0, "alpha": 0.35, "b": 900.0, "beta": 0.45}
SOURCE, TARGET, LENGTH = 900.0, 950.0, 40.0  # of a step


def law(n, d, e, a, alpha, b, beta):
    return e + a / n**alpha + b / d**beta


def config_of(family, d_model):
    fields = {"model.architecture": family, "data.vocab_size": 2000}
    fields |= {"model.d_model": d_model, "model.num_heads": d_model // 8}
    fields |= {"model.d_ff": 4 * d_model, "model.num_decoder_layers": 2}
    if family == "encoder_decoder":
        fields["model.num_encoder_layers"] = 2
    return Config().replace(fields)


def write_cell(grid, family, d_model, budget, noise=0.0, **changes):
    """Write what a training leaves of a cell, with the loss of the law for its N and D."""
    config = config_of(family, d_model)
    flops = model_flops_per_step(
        config.model, 2000, SOURCE, TARGET, source_length=LENGTH, target_length=LENGTH
    )
    steps = round(budget / flops)
    n = num_parameters(config.model, 2000)
    workdir = grid / f"{family}-{d_model}-{budget:.0e}" / "seed0"
    (workdir / "jobs").mkdir(parents=True)
    loss = law(n, steps * TARGET, **TRUTH) * math.exp(noise)
    result = {"config": to_dict(config), "corpus": "text:DIR", "split": "dev", "steps": steps}
    result |= {"perplexity": math.exp(loss)} | changes
    (workdir / "result.json").write_text(json.dumps(result))
    job = {"begun": 0.0, "written": 1.0, "first_step": 0, "step": steps, "devices": 1}
    job |= {"seconds": {}, "at": [], "ended": None, "exit_code": 0, "flops": flops}
    job |= {"source_tokens": SOURCE, "target_tokens": TARGET}
    (workdir / "jobs/1.json").write_text(json.dumps(job))
    return workdir


def write_grid(grid, families=("encoder_decoder",), noise=0.002):
    random = np.random.default_rng(0)
    for family in families:
        for d_model in WIDTHS:
            for budget in BUDGETS:
                write_cell(grid, family, d_model, budget, noise * random.standard_normal())
    return grid


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    return write_grid(tmp_path_factory.mktemp("grid"), ("encoder_decoder", "decoder_only"))


@pytest.fixture(autouse=True)
def few_draws(monkeypatch):
    monkeypatch.setattr(reporting, "fit_law", partial(reporting.fit_law, draws=60))


def fit(*arguments):
    assert entry_command(["fit", *map(str, arguments)]).run() == 0


def rows(report, heading):
    """The cells of the table below a heading of a report in Markdown."""
    below = report.split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in below.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def number(text):
    units = {"k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
    figure, _, unit = text.partition(" ")
    return float(figure) * units.get(unit, 1)


def best_n(family, budget):
    """The best size for a budget, by brute force over models of this shape."""
    losses = {}
    for d_model in range(64, 400, 8):
        model = config_of(family, d_model).model
        flops = model_flops_per_step(
            model, 2000, SOURCE, TARGET, source_length=LENGTH, target_length=LENGTH
        )
        n = num_parameters(model, 2000)
        losses[n] = law(n, budget / flops * TARGET, **TRUTH)
    return min(losses, key=losses.get)


def test_a_loss_that_nothing_is_left_for_is_said_to_be_0(tmp_path, monkeypatch):
    # These losses fall faster than those of any law whose E is above 0.
    monkeypatch.setitem(TRUTH, "e", -0.5)
    fit(write_grid(tmp_path / "grid"), "--law", "parametric", "--output", tmp_path / "fit.md")
    constants = rows((tmp_path / "fit.md").read_text(), "encoder_decoder: parametric law")
    assert constants[0] == ["E", "0", "0 to 0"]


def test_the_advice_holds_the_best_size_that_a_search_finds(grid, tmp_path, capsys):
    fit(grid, "--flops", "3e14", "--output", tmp_path / "fit.md", "--figure", tmp_path / "fit.svg")
    printed, report = capsys.readouterr().out, (tmp_path / "fit.md").read_text()
    assert "Scaling laws of" in printed
    assert (tmp_path / "fit.svg").read_text().count("FLOPs") >= 2 * len(BUDGETS)
    advice = rows(report, "Advice")
    assert len(advice) == 4  # two families, two laws
    for flops, family, law_of, _, interval, *_ in advice:
        low, high = map(number, interval.split(" to "))
        truth = best_n(family, float(flops))
        slack = 1.25 if law_of == "iso-FLOP" else 1.1  # a parabola is not the law
        assert low / slack < truth < high * slack
        assert high < 2 * low
    assert "Beyond 10 times" not in report
    assert "iso-FLOP of decoder_only advises a size outside of those tried, 89.2 k" in report


def test_far_beyond_the_largest_budget_a_warning_says_so(grid, capsys):
    fit(grid, "--flops", "1e19", "--law", "isoflop")
    printed = " ".join(capsys.readouterr().out.split())
    said = re.search(r"Warning: 1e19 FLOPs are ([0-9,]+) times the largest budget of", printed)[1]
    assert float(said.replace(",", "")) == pytest.approx(1e19 / 8e13, rel=0.01)


def test_families_are_compared_at_equal_operations(grid, tmp_path):
    fit(grid, "--law", "isoflop", "--output", tmp_path / "fit.md")
    compared = rows((tmp_path / "fit.md").read_text(), "Families at equal operations")
    assert len(compared) == len(BUDGETS)
    for budget, (flops, *losses, difference) in zip(BUDGETS, compared, strict=True):
        assert float(flops) == pytest.approx(budget, rel=0.01)
        a, b = map(float, losses)  # the law is one of N and D, so the cheaper family is ahead
        assert b < a
        assert difference.startswith(f"{b - a:+.3f}"[:-1])


def test_held_out_cells_are_predicted_and_not_fitted(grid, tmp_path):
    fit(grid, "--law", "parametric", "--hold-out", "*-8e+13", "--output", tmp_path / "fit.md")
    report = (tmp_path / "fit.md").read_text()
    assert "30 cells are fitted" in report
    assert report.count("(held out)") == 10
    errors = [line.split("off by ")[1] for line in report.splitlines() if "Held out:" in line]
    assert len(errors) == 10
    assert max(abs(float(error.rstrip("%."))) for error in errors) < 2


def test_n_is_counted_as_asked(grid, tmp_path):
    fit(grid, "--count", "layers", "--law", "isoflop", "--output", tmp_path / "fit.md")
    report = (tmp_path / "fit.md").read_text()
    cells = {row[0]: row for row in rows(report, "Cells")}
    _, total, layers, targets, sources, flops, loss = cells["encoder_decoder-32-1e+13/seed0"]
    model = config_of("encoder_decoder", 32).model
    assert int(total.replace(",", "")) == num_parameters(model, 2000)
    # In a layer are attentions of 4 d^2, a network of 8 d^2 with biases, and norms of 2 d.
    d = 32
    encoder, decoder = 12 * d**2 + 5 * d + 4 * d, 16 * d**2 + 5 * d + 6 * d
    assert int(layers.replace(",", "")) == 2 * (encoder + decoder)
    assert float(targets.replace(",", "")) / float(sources.replace(",", "")) == TARGET / SOURCE
    assert (float(flops), float(loss)) == pytest.approx((1e13, 3.07), rel=0.01)
    sizes = rows(report, "encoder_decoder: iso-FLOP parabolas")[0][1]
    assert sizes.startswith("58.6 k to ")


def test_a_cell_that_diverged_or_has_no_result_is_left_out_and_named(tmp_path):
    write_grid(tmp_path)
    write_cell(tmp_path, "encoder_decoder", 80, 1e13, perplexity=2001.0)
    write_cell(tmp_path, "encoder_decoder", 80, 2e13, perplexity=None)
    failed = write_cell(tmp_path, "encoder_decoder", 80, 4e13)
    (failed / "result.json").unlink()
    end = {"step": 3, "of": "end", "text": "error: loss was not finite"}
    (failed / "log.jsonl").write_text(json.dumps(end) + "\n")
    (tmp_path / "base" / "seed0.old").mkdir(parents=True)  # moved away
    fit(tmp_path, "--law", "isoflop", "--output", tmp_path / "fit.md")
    report = (tmp_path / "fit.md").read_text()
    assert "20 cells are fitted" in report
    assert "-80-1e+13/seed0 is left out: it diverged: its loss of 7.60 is that of a guess" in report
    assert "-80-2e+13/seed0 is left out: it diverged" in report
    assert "-80-4e+13/seed0 is left out: it has no result (error: loss was not finite)" in report


def refused(*arguments):
    with pytest.raises(UserError) as refusal:
        fit(*arguments)
    assert len(str(refusal.value).splitlines()) == 1
    return str(refusal.value)


def test_a_family_of_one_cell_may_be_held_out_and_cells_of_other_kinds_are_named(tmp_path):
    write_grid(tmp_path)
    write_cell(tmp_path, "decoder_only", 64, 1e13)
    assert "decoder_only: all cells have N = " in refused(tmp_path)
    rest = "--law", "parametric", "--hold-out", "decoder_only*", "--output", tmp_path / "fit.md"
    fit(tmp_path, *rest)
    assert "differ" not in (tmp_path / "fit.md").read_text()
    other = next(tmp_path.glob("encoder_decoder-64-*/seed0/result.json"))
    result = json.loads(other.read_text())
    result["config"]["model"]["dropout_rate"] = 0.5
    other.write_text(json.dumps(result))
    fit(tmp_path, *rest)
    said = (
        "Cells of encoder_decoder also differ in model.dropout_rate, of which a law knows nothing"
    )
    assert said in (tmp_path / "fit.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--flops", "-1"], "--flops -1.0 is no number of operations; give one, as 1e19"),
        (["--figure", "laws.pdf"], "--figure laws.pdf has to end in .svg or .png"),
        (["--hold-out", "*-9e+13"], "--hold-out '*-9e+13' is no variant of the grid; without"),
        (["--hold-out", "*"], "--hold-out leaves no cell to fit; name fewer variants"),
        (["--hold-out", "*-8e+13", "--law", "isoflop"], "use --law parametric or both"),
        (["--hold-out", "*-[248]e+13"], "decoder_only: 1 budget(s) have cells of 3 sizes"),
        (["--hold-out", "*-[469]*-*", "*-128-*"], "decoder_only: all cells have N = 89.2 k; a law"),
    ],
)
def test_what_cannot_be_fitted_is_refused_with_the_way_out(grid, arguments, said):
    assert said in refused(grid, *arguments)


def test_cells_that_cannot_be_compared_are_refused(tmp_path):
    assert "has no finished cells (VARIANT/seedN/result.json)" in refused(tmp_path)
    first = write_cell(tmp_path, "encoder_decoder", 32, 1e13)
    other = config_of("encoder_decoder", 64).replace({"data.vocab_size": 4000})
    workdir = write_cell(tmp_path, "encoder_decoder", 64, 1e13, config=to_dict(other))
    assert "are of other corpora, tasks or subwords" in refused(tmp_path)
    (workdir / "result.json").write_text("{")
    assert "is damaged" in refused(tmp_path)
    (workdir / "result.json").unlink()
    (first / "jobs/1.json").unlink()
    assert "has no count of its tokens (jobs/*.json)" in refused(tmp_path)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (12.3, "12.3"),
        (999.7, "1 k"),
        (38.2e6, "38.2 M"),
        (2e13, "20 T"),
        (1e19, "1e19"),
    ],
)
def test_amounts_have_three_digits_and_a_unit(value, text):
    assert reporting.amount(value) == text


def test_best_sizes_that_are_not_known_are_not_given(tmp_path):
    """All sizes are above the best one, so that some parabolas have no minimum near them."""
    random = np.random.default_rng(1)
    for d_model in (128, 144, 160, 176, 192):
        for budget in BUDGETS[:3]:
            noise = 0.004 * random.standard_normal()
            write_cell(tmp_path, "encoder_decoder", d_model, budget, noise)
    fit(tmp_path, "--law", "isoflop", "--flops", "1e14", "--output", tmp_path / "fit.md")
    report = (tmp_path / "fit.md").read_text()
    parabolas = rows(report, "encoder_decoder: iso-FLOP parabolas")
    assert any(row[-1] for row in parabolas)
    assert any(row[3].startswith(("below", "above", "any")) for row in parabolas)
    assert re.search(r" 0\.\.| nan|inf ", report) is None
