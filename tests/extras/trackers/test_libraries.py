"""The libraries of trackers themselves, without a connection: a run that is killed and goes on."""

import json
import os
import signal
import sqlite3
import struct
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.programs import run_python
from tests.trained import wait_for_step

Points = list[tuple[str, int, float]]
"""The name of each figure that a tracker has, its step and its value."""


def _wandb(folder: Path) -> tuple[set[str], Points]:
    """The ids of the runs that W&B's files have, and the points of them."""
    from wandb.proto import wandb_internal_pb2

    ids, points, rows = set(), [], []
    for path in folder.glob("runs/*/trackers/wandb/offline-run-*/*.wandb"):
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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the libraries, which are read here
def test_a_run_that_was_killed_four_times_has_each_step_once(tracker, tiny_run, tmp_path):
    name, read = tracker
    workdir = tmp_path / "runs" / "one"
    long = "--training.num-train-steps=60", "--checkpoint.every-steps=5"
    for last in (8, 21, 34, 47):
        [program] = tiny_run.start(workdir, *long, f"--track={name}:demo")
        wait_for_step(program, last)
        children = Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text().split()
        program.kill()
        program.communicate()
        if last % 2:  # the processes of the tracker too, in the middle of an upload
            for child in children:
                os.killpg(int(child), signal.SIGKILL)
    tiny_run.finish(workdir, *long)  # the run knows where it is sent
    for _ in range(2):
        ids, points = read(tmp_path)
        assert len(ids) == 1
        assert len({step for _, step, _ in points}) == 60
        assert sorted(points) == _logged(workdir)
        run_python("-m", "t2t_jax", "track", workdir, code=0)  # sends nothing twice


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("mlflow"), reason="mlflow is not installed")
def test_a_server_that_is_down_costs_15_seconds_and_one_warning(tiny_run, tmp_path, monkeypatch):
    seconds, warnings = [], []
    for name, flags in (("plain", ()), ("tracked", ("--track=mlflow:demo",))):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
        begun = time.monotonic()
        [program] = tiny_run.start(tmp_path / name, *flags)
        _, errors = program.communicate()
        seconds.append(time.monotonic() - begun)
        warnings += [line for line in errors.splitlines() if "mlflow" in line]
        assert program.returncode == 0
    assert seconds[1] - seconds[0] < 30  # with the start of the processes
    [warning] = warnings
    assert warning.endswith(f"sends the rest: t2t-jax track {tmp_path / 'tracked'} mlflow:demo")
