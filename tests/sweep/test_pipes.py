"""A named pipe in the place of a record of a grid or a run: reading it would never end."""

import os

import pytest

from t2t_jax import Config, UserError, run_grid
from t2t_jax.config.file import Grid
from t2t_jax.extras.trackers.follower import read_targets
from t2t_jax.run.provenance import read_provenance
from t2t_jax.sweep.cell import cells
from t2t_jax.sweep.launchers import Local
from t2t_jax.sweep.rules import GridRules
from t2t_jax.sweep.stored_grid import record_grid, rename_row
from t2t_jax.system.lock import holding
from t2t_jax.workdir import read_fingerprints, read_log, read_scores
from tests.sweep.conftest import QUIET

pytestmark = pytest.mark.timeout(60)
GRID = Grid({"base": Config(), "wide": Config().replace({"model.d_ff": 64})}, {})


def sweep(workdir):
    run_grid(GRID, workdir, console=QUIET, rules=GridRules("rungs=2"), max_hours=1e-9)


def result(workdir):
    cells(GRID, workdir, 1)[0].result()


def launch(workdir):
    Local(1).launch(cells(GRID, workdir, 1)[0])


def hold(workdir):
    with holding(workdir / ".lock", "mark"):
        pass


@pytest.mark.parametrize(
    ("name", "reader"),
    [
        ("grid.json", sweep),
        ("rules.json", sweep),
        ("base/seed0/result.json", result),
        ("base/seed0.log", launch),
        ("log.jsonl", read_log),
        ("scores.jsonl", read_scores),
        ("provenance.json", read_provenance),
        ("trackers/wandb.json", read_targets),
        ("corpus.sha256", read_fingerprints),
        (".lock", hold),
    ],
)
def test_a_pipe_in_the_place_of_a_record_is_refused(tmp_path, name, reader):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(tmp_path / name)
    with pytest.raises(UserError, match=rf"/{name} cannot be read: it is .*a pipe or a device"):
        reader(tmp_path)


def test_a_pipe_in_the_place_of_the_log_of_a_cell_holds_no_lock(tmp_path):
    record_grid(GRID, tmp_path)
    (tmp_path / "wide").mkdir()
    os.mkfifo(tmp_path / "wide" / "seed0.log")
    assert rename_row(tmp_path, "wide=broad") == ("wide", "broad")
