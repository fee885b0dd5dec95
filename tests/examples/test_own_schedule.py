"""Schedules in a file of a user: hand-computed rates, a grid, and a run that resumes."""

import pytest

import t2t_jax
from t2t_jax.config import TrainingConfig
from t2t_jax.training.schedule import scheduled_rate
from tests.examples.loading import load_example
from tests.programs import ROOT, run_python
from tests.refusals import refused
from tests.trained import checksums


@pytest.fixture
def example(tables):
    return load_example("own_schedule")


def test_the_rates_are_those_of_a_calculator(example):
    training = TrainingConfig(
        schedule="step_decay(boundaries=(6, 8), factor=0.5)", warmup_steps=4, num_train_steps=9
    )
    rates = [float(scheduled_rate(training, 64, step)) for step in (2, 4, 6, 7, 9)]
    assert rates == pytest.approx([1 / 32, 1 / 16, 1 / 16, 1 / 32, 1 / 64])
    one_cycle = TrainingConfig(schedule="one_cycle")
    rates = [float(scheduled_rate(one_cycle, 64, step)) for step in (50, 100, 350, 600, 900)]
    assert rates == pytest.approx([0.0015, 0.003, 0.0015, 0, 0])


def test_a_paused_run_resumes_with_equal_bits_and_refuses_another_schedule(
    example, tiny_run, tmp_path
):
    schedule = example.StepDecay(boundaries=(4,), factor=0.1)
    whole = t2t_jax.train(tiny_run.config, tmp_path / "whole", schedule=schedule)
    paused = tmp_path / "paused"
    t2t_jax.train(tiny_run.config, paused, schedule=schedule, until=5)
    with refused("training.schedule 'step_decay(boundaries=(4,), factor=0.1)' -> 'step_decay'"):
        t2t_jax.train(tiny_run.config, paused, schedule=example.StepDecay())
    t2t_jax.train(tiny_run.config, paused, schedule=schedule)
    assert checksums(paused) == checksums(tmp_path / "whole")
    rates = {x["step"]: x["learning_rate"] for x in whole.history.training}
    assert rates[5] == pytest.approx(rates[4] / 2)  # 0.1 P after 4 / 20 P in the warmup


def test_a_schedule_of_a_notebook_is_compared_by_its_rates(tables, tiny_run, tmp_path):
    t2t_jax.train(tiny_run.config, tmp_path, schedule=lambda step: 0.001 / step, until=1)
    with refused("has rate 0.001 at step 1, not 0.002; bring it back"):
        t2t_jax.train(tiny_run.config, tmp_path, schedule=lambda step: 0.002 / step)
    wrong = {"returned an array of shape (2,)": lambda step: [step, step], "TypeError": len}
    for message, schedule in wrong.items():
        with refused(message):
            t2t_jax.train(tiny_run.config, tmp_path / "new", schedule=schedule)
    assert not (tmp_path / "new").exists()


def test_a_run_can_be_loaded_where_its_schedule_is_not_registered(tables, tiny_run, tmp_path):
    config = tiny_run.config.replace({"training.num_train_steps": 1})
    t2t_jax.train(config, tmp_path, schedule=lambda step: 0.001)
    program = f"import t2t_jax; print(t2t_jax.load({str(tmp_path)!r}).translate(['a dog']))"
    assert run_python("-c", program, code=0).stdout.startswith("[")
    trained = run_python("train.py", "--workdir", tmp_path)
    assert "training.schedule='own_schedule' is not one of" in trained.stderr
    assert len(trained.stderr.splitlines()) == 1


@pytest.mark.thorough
def test_a_grid_over_two_own_schedules_makes_its_table(tiny_run, tables, tmp_path, monkeypatch):
    file = tmp_path / "grid.py"
    fields = {"training.num_train_steps": 4, "evaluation.every_steps": 4}
    source = (ROOT / "examples" / "own_schedule.py").read_text()
    file.write_text(
        source.partition("BASE =")[0]
        + "from t2t_jax import Config\n"
        + f"BASE = Config.from_json({tiny_run.config.replace(fields).to_json()!r})\n"
        + "NAMES = 'step_decay', 'one_cycle'\n"
        + "VARIANTS = {name: BASE.replace({'training.schedule': name}) for name in NAMES}\n"
    )
    command = "-m", "t2t_jax", "sweep", "--config", file, "--workdir", tmp_path / "grid"
    run_python(*command, "--seeds", 1, code=0)
    table = (tmp_path / "grid" / "table.md").read_text()
    assert "step_decay" in table
    assert "one_cycle" in table
