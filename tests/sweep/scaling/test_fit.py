"""The command `fit` on grids whose losses are those of a law that is known."""

import json
import math

import numpy as np
import pytest

from t2t_jax.commands.entry import entry_command
from t2t_jax.config import Config, to_dict
from t2t_jax.config.cost import model_flops_per_step, num_parameters

WIDTHS = (32, 64, 96, 160, 256)
BUDGETS = (1e13, 2e13, 4e13, 8e13)
TRUTH = {"e": 1.5, "a": 60.0, "alpha": 0.35, "b": 900.0, "beta": 0.45}
SOURCE, TARGET, LENGTH = 900.0, 950.0, 40.0  # of a step


def law(n, d, e, a, alpha, b, beta):
    return e + a / n**alpha + b / d**beta


def config_of(family, d_model):
    fields = {"model.architecture": family, "data.vocab_size": 2000}
    fields |= {"model.d_model": d_model, "model.num_heads": d_model // 16}
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
    for d_model in range(16, 1024, 16):
        model = config_of(family, d_model).model
        flops = model_flops_per_step(
            model, 2000, SOURCE, TARGET, source_length=LENGTH, target_length=LENGTH
        )
        n = num_parameters(model, 2000)
        losses[n] = law(n, budget / flops * TARGET, **TRUTH)
    return min(losses, key=losses.get)


def test_the_advice_holds_the_best_size_that_a_search_finds(grid, tmp_path, capsys):
    fit(grid, "--flops", "3e14", "--output", tmp_path / "fit.md", "--figure", tmp_path / "fit.svg")
    printed, report = capsys.readouterr().out, (tmp_path / "fit.md").read_text()
    assert "Scaling laws of" in printed
    assert (tmp_path / "fit.svg").read_text().count("FLOPs") >= 2 * len(BUDGETS)
    advice = rows(report, "Advice")
    assert len(advice) == 4  # two families, two laws
    for flops, family, _, _, interval, *_ in advice:
        low, high = map(number, interval.split(" to "))
        truth = best_n(family, float(flops))
        assert low / 1.1 < truth < high * 1.1  # widths are in steps of 16
    assert "Warning" not in report
