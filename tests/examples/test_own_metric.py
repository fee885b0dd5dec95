"""Metrics and a hook in a file of a user: against NumPy, and in a run."""

import csv
import math

import jax.numpy as jnp
import numpy as np
import pytest

from t2t_jax.batch import Batch
from t2t_jax.training.objective import Outputs
from tests.examples.loading import load_example
from tests.trained import records_of


@pytest.fixture
def example():
    return load_example("own_metric")


def test_the_sums_are_those_of_numpy(example):
    batch = Batch.of([[5, 1], [6, 1]], [[4, 3, 1], [2, 1]])
    logits = np.zeros((2, 3, 7), np.float32)
    logits[[0, 0, 1], [0, 1, 0], [4, 2, 2]] = 9.0  # right, wrong, right; then all are equal
    nll = np.full((2, 3), math.log(100) + 0.1)
    nll[0, 0] = math.log(100) - 0.1
    outputs = Outputs((nll, jnp.asarray(nll)), lambda: jnp.asarray(logits))
    result = example.metrics(outputs, batch)
    assert {name: (int(total), int(n)) for name, (total, n) in result.items()} == {
        "token_accuracy": (2, 5),
        "surprising": (4, 5),
    }


def test_the_csv_file_has_the_figures_of_the_log(example, tiny_run, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(example, "load_config", lambda _: tiny_run.config)
    example.main(str(tmp_path / "run"), num_train_steps=3)
    with (tmp_path / "run.csv").open(newline="") as file:
        rows = [{name: float(x) for name, x in row.items()} for row in csv.DictReader(file)]
    records = records_of(tmp_path / "run", "train")
    assert [{name: record[name] for name in rows[0]} for record in records] == rows
    assert "step,loss,token_accuracy,surprising\n1," in capsys.readouterr().out.replace("\r", "")
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert rows[0]["surprising"] > 0.9  # of 300 subwords, before training
