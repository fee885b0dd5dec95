"""The exercises of examples/exercises, run as programs: their solutions are right."""

import re

import pytest

from tests.programs import ROOT, run_python


def run(name, *arguments):
    done = run_python(ROOT / f"examples/exercises/{name}.py", *arguments, code=0)
    return done.stdout


def test_every_exercise_is_on_the_page_and_says_what_a_wrong_answer_looks_like():
    page = (ROOT / "docs/exercises.md").read_text("utf-8")
    for path in (ROOT / "examples/exercises").glob("*.py"):
        assert f"../examples/exercises/{path.name}" in page
        assert "\nWrong answers: " in path.read_text("utf-8")


def test_beam_search_is_right():
    assert "beam: 3 of 3 points" in run("beam_search")


def test_attention_is_right_and_a_softmax_over_queries_is_named_and_costs_nats():
    text = run("attention")
    right, wrong = re.findall(r"^(\d.\d+) nats", text, re.MULTILINE)
    assert "attention: 8 of 8 points" in text
    assert "softmax_over_queries: 0 of 8 points\n  all keys: the softmax is over queries" in text
    assert f"the model: {right} nats" in text
    assert float(wrong) > 4 * float(right)


@pytest.mark.thorough
def test_a_trained_model_needs_the_scale_of_its_training():
    lines = run("no_scale").splitlines()
    nats = {line.split(":")[0]: float(line.split()[-2]) for line in lines}
    assert nats["factor 8"] > 5 * nats["factor 1"]
    assert nats["factor 0.25"] > 2 * nats["factor 1"]


@pytest.mark.thorough
def test_the_encoder_in_numpy_equals_that_of_the_model(tmp_path):
    text = run("numpy_encoder", "--workdir", tmp_path / "run", "--num-train-steps", 2)
    assert float(text.split()[-1]) < 1e-5


@pytest.mark.thorough
def test_alibi_of_an_exercise_equals_the_package_s_and_trains(tmp_path):
    text = run("alibi", "--workdir", tmp_path / "run", "--num-train-steps", 2)
    assert "largest difference 0.0e+00" in text
    assert "\nperplexity " in text


@pytest.mark.thorough
def test_the_smoothed_loss_of_an_exercise_trains_as_the_package_s(tmp_path):
    text = run("label_smoothing", "--workdir", tmp_path / "run")
    lines = [
        next(line for line in text.splitlines() if line.startswith(name))
        for name in ("exercise", "package")
    ]
    losses, expected = ([float(x) for x in re.findall(r"\d+\.\d+", line)] for line in lines)
    assert len(losses) == 2
    assert losses == pytest.approx(expected, abs=2e-4)
