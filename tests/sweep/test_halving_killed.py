"""A halved grid of real trainings that is killed at random: the same promotions, the same bits."""

import contextlib
import json
import os
import random
import signal
import time

import jax
import numpy as np
import pytest

import t2t_jax
from t2t_jax.config.file import load_grid
from t2t_jax.workdir import read_log
from tests.sweep.test_sweep import cells_of, figures, grid_file, sweep  # noqa: F401  (a fixture)

pytestmark = [pytest.mark.thorough, pytest.mark.faults]
VARIANTS = """
STEPS = BASE.replace({"training.num_train_steps": 18, "checkpoint.every_steps": 2})
VARIANTS = {"base": STEPS} | {
    f"f{x}": STEPS.replace({"training.learning_rate_factor": x})
    for x in (0.01, 0.03, 0.2, 0.3, 2.0, 4.0, 8.0)
}
"""
FLAGS = ("--halving", "rungs=3,keep=0.33")


@pytest.fixture(scope="module")
def eight(grid_file):  # noqa: F811
    """A grid of eight variants."""
    path = grid_file.with_name("eight.py")
    path.write_text(grid_file.read_text() + VARIANTS)
    return path


def rungs(workdir):
    """The perplexity at every rung that a cell came to, by cell and step."""
    return {
        f"{path.parent.parent.name} {path.stem}": json.loads(path.read_text())["perplexity"]
        for path in workdir.glob("*/seed0/rung-*.json")
    }


def leaves(workdir):
    return jax.tree.leaves(t2t_jax.load(workdir).params)


def test_a_grid_killed_ten_times_promotes_the_same_and_its_winner_is_as_if_never_paused(eight):
    unkilled, killed = eight.with_name("unkilled"), eight.with_name("killed")
    assert sweep(eight, unkilled, *FLAGS).wait(timeout=1200) == 0
    delays = random.Random(5)
    for _ in range(10):
        process = sweep(eight, killed, *FLAGS)
        time.sleep(delays.uniform(4, 15))
        with_cells = delays.random() < 0.5
        for cell in cells_of(process) if with_cells else []:
            with contextlib.suppress(ProcessLookupError):
                os.kill(cell, signal.SIGKILL)
        process.kill()
        process.wait(timeout=60)
    assert sweep(eight, killed, *FLAGS).wait(timeout=1200) == 0
    assert rungs(killed) == rungs(unkilled)
    assert figures(killed) == figures(unkilled)
    ended = [row[0] for row in figures(killed)[1:]]
    assert len(ended) == 2
    for name in ended:
        workdir = killed / name / "seed0"
        for one, other in zip(leaves(workdir), leaves(unkilled / name / "seed0"), strict=True):
            np.testing.assert_array_equal(one, other)
    alone = eight.with_name("never paused")
    config = load_grid(str(eight)).variants[ended[-1]]
    assert t2t_jax.train(config, alone).exit_code == 0
    winner = killed / ended[-1] / "seed0"
    for one, other in zip(leaves(winner), leaves(alone), strict=True):
        np.testing.assert_array_equal(one, other)
    sums = [
        json.loads((run / "checkpoints" / "18" / "origin" / "metadata").read_text())["sums"]
        for run in (winner, alone)
    ]
    assert sums[0] == sums[1]
    assert [r["loss"] for r in read_log(winner) if r["of"] == "train"] == [
        r["loss"] for r in read_log(alone) if r["of"] == "train"
    ]
