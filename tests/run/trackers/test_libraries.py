"""The libraries of trackers themselves, without a connection: a run that is killed and goes on."""

import json
import sqlite3
import struct
from importlib.util import find_spec
from pathlib import Path

import pytest

from t2t_jax.config import Config
from t2t_jax.run.log import RunLog
from tests.programs import run_python
from tests.trained import wait_for_step

Points = list[tuple[str, int, float]]
"""The name of each figure that a tracker has, its step and its value."""


def _wandb(folder: Path) -> tuple[set[str], Points]:
    """The ids of the runs that W&B's files have, and the points of them."""
    from wandb.proto import wandb_internal_pb2

    ids, points, rows = set(), [], []
    for path in folder.glob("runs/*/trackers/wandb/*/wandb/offline-run-*/*.wandb"):
        for content in _records(path.read_bytes()):
            record = wandb_internal_pb2.Record.FromString(content)
            if record.HasField("run"):
                ids.add(record.run.run_id)
            if record.HasField("history"):
                items = record.history.item
                row = {i.key or i.nested_key[0]: json.loads(i.value_json) for i in items}
                rows.append(record.history.step.num)
                names = (name for name in row if "/" in name)
                points += [(name, row["step"], row[name]) for name in names]
    assert sorted(rows) == [*range(len(rows))]
    return ids, points


def _records(content: bytes) -> list[bytes]:
    """The records of a log as LevelDB writes it, and W&B too, after a header of seven bytes."""
    found, parts, place = [], b"", 7
    while place < len(content):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        _, length, kind = struct.unpack("<IHB", content[place : place + 7])
        parts += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # the whole of a record, or its last part
            found.append(parts)
            parts = b""
    return found


def _mlflow(folder: Path) -> tuple[set[str], Points]:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    experiment = client.get_experiment_by_name("demo").experiment_id
    runs = client.search_runs([experiment])
    points = [
        (metric.key, metric.step, metric.value)
        for run in runs
        for name in run.data.metrics
        for metric in client.get_metric_history(run.info.run_id, name)
    ]
    assert [run.data.params["model.d_model"] for run in runs] == ["16"]
    assert [run.info.status for run in runs] == ["FINISHED"]
    return {run.info.run_id for run in runs}, points


def _trackio(folder: Path) -> tuple[set[str], Points]:
    with sqlite3.connect(folder / "trackio" / "demo.db") as store:
        rows = store.execute("SELECT run_id, step, metrics FROM metrics").fetchall()
    points = [(name, step, x) for _, step, row in rows for name, x in json.loads(row).items()]
    return {run_id for run_id, _, _ in rows}, points


@pytest.fixture(params=["wandb", "mlflow", "trackio"])
def tracker(request, tmp_path, monkeypatch):
    """The name of a tracker that keeps all on this machine, and what reads it."""
    name = request.param
    if not find_spec(name):
        pytest.skip(f"{name} is not installed: pip install -e '.[{name}]'")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    return name, {"wandb": _wandb, "mlflow": _mlflow, "trackio": _trackio}[name]


def _logged(workdir: Path) -> Points:
    records = map(json.loads, (workdir / "log.jsonl").read_text().splitlines())
    points = []
    for record in records:
        if record["of"] == "warning":
            points.append((f"warning/{record['rule']}", record["step"], 1.0))
        figures = {name: value for name, value in record.items() if name not in ("step", "time")}
        points += [
            (f"{record['of']}/{name}", record["step"], value)
            for name, value in figures.items()
            if isinstance(value, int | float)
        ]
    return sorted(points)


def _track(workdir: Path, *words: str) -> None:
    run_python("-m", "t2t_jax", "track", workdir, *words, code=0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the libraries, which are read here
def test_a_run_that_was_killed_has_each_step_once(tracker, tiny_run, tmp_path):
    name, read = tracker
    workdir = tmp_path / "runs" / "one"
    long = "--training.num-train-steps=60", "--checkpoint.every-steps=10"
    for last in (15, 37):
        [program] = tiny_run.start(workdir, *long, f"--track={name}:demo")
        wait_for_step(program, last)
        program.kill()
        program.communicate()
    tiny_run.finish(workdir, *long)  # the run knows where it is sent
    for _ in range(2):
        ids, points = read(tmp_path)
        assert len(ids) == 1
        assert sorted(points) == _logged(workdir)
        _track(workdir)  # sends nothing twice


_KILLED = """
import os, sys
from pathlib import Path
from t2t_jax.run.trackers.follower import Follower
from t2t_jax.run.trackers.tracker import Target

follower = Follower(Path(sys.argv[1]), Target(sys.argv[2], "demo"))
with follower.held():
    follower._note = lambda place: os._exit(9)
    follower.follow()
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_kill_between_sending_and_noting_doubles_nothing(tracker, tmp_path):
    name, read = tracker
    workdir = tmp_path / "runs" / "one"
    workdir.mkdir(parents=True)
    (workdir / "config.json").write_text(Config().replace({"model.d_model": 16}).to_json())
    with RunLog(workdir, 0, 9) as log:
        for step in range(1, 10):
            figures = dict.fromkeys(("loss", "learning_rate", "target_tokens_per_second"), 0.5)
            log.training(step, figures | {"data_wait": step / 10}, 0.0)
            log.checkpoint(step if step == 6 else None)
    run_python("-c", _KILLED, workdir, name, code=9)
    with RunLog(workdir, 6, 9) as log:
        log.training(9, figures | {"data_wait": 0.5}, 0.0)
        log.checkpoint(9)
        log.end(9, "9 steps are done", "")
    _track(workdir, f"{name}:demo")
    ids, points = read(tmp_path)
    assert len(ids) == 1
    assert sorted(points) == _logged(workdir)
