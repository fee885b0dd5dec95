"""The log of a run."""

import json

import pytest

from t2t_jax.run_log import RunLog

FIGURES = {"loss": 2.5, "learning_rate": 1e-3, "target_tokens_per_second": 1234.5}


def _log(workdir, start_step):
    return RunLog(workdir, start_step, num_train_steps=10)


def _steps(workdir):
    lines = (workdir / "log.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["step"] for line in lines]


def test_records_of_steps_to_be_taken_again_are_removed(tmp_path):
    with _log(tmp_path, 0) as log:
        for step in (1, 2, 3, 4):
            log.training(step, FIGURES, seconds_left=100.0)
    with _log(tmp_path, 2) as log:
        log.training(3, FIGURES, seconds_left=100.0)
    assert _steps(tmp_path) == [1, 2, 3]


@pytest.mark.parametrize(
    "torn", ['{"step": 2, "of"', '{"step": 2, "of": "train"}', "null\n", "\xff"]
)
def test_a_line_that_a_kill_cut_is_left_out(tmp_path, torn):
    with _log(tmp_path, 0) as log:
        log.training(1, FIGURES, seconds_left=1.0)
    with (tmp_path / "log.jsonl").open("a", encoding="latin-1") as file:
        file.write(torn)
    with _log(tmp_path, 5) as log:
        log.training(6, FIGURES, seconds_left=1.0)
    assert _steps(tmp_path) == [1, 6]


def test_a_figure_that_is_not_finite_is_null(tmp_path):
    with _log(tmp_path, 0) as log:
        log.training(1, FIGURES | {"loss": float("nan")}, seconds_left=1.0)
    (line,) = (tmp_path / "log.jsonl").read_text().splitlines()
    assert json.loads(line, parse_constant=pytest.fail)["loss"] is None


def test_what_is_not_a_terminal_gets_plain_lines(tmp_path, capsys):
    with _log(tmp_path, 0) as log:
        log.training(7, FIGURES, seconds_left=600.0)
    printed = capsys.readouterr().out
    assert printed == (
        "step 7  loss 2.500  learning rate 1.00e-03  1,234 target tokens/s  10 min left\n"
    )
