"""What a tracker gets of a log: a tracker of a few lines that is killed and is away."""

import json
import os
import threading
from contextlib import nullcontext

import pytest

from t2t_jax import Config, UserError
from t2t_jax.commands.entry import entry_command
from t2t_jax.extras.trackers import follower
from t2t_jax.extras.trackers.follower import follow, send_run
from t2t_jax.extras.trackers.tracker import TRACKERS, OpenRun, Target
from t2t_jax.run.log import RunLog
from tests.programs import run_python

TARGET = Target("trackio", "demo")
FIGURES = {"loss": 2.5, "learning_rate": 1e-3, "target_tokens_per_second": 10.0, "data_wait": 0.0}


class Killed(BaseException):
    """The end of an upload in its middle, as by a kill."""


class Service:
    """A tracker that counts rows or knows figures; it may be away, or killed after some rows."""

    def __init__(self, counts_rows):
        self.rows, self.ends, self.runs = [], [], set()
        self.counts_rows, self.is_away, self.killed_after = counts_rows, False, None

    def open(self, project, number, workdir):
        if self.is_away:
            raise ConnectionError("nobody answers\nat all")
        self.runs.add((project, number))
        known = {"figures": frozenset((name, step) for step, name, _ in self.points)}
        if self.counts_rows:
            known = {"rows": len(self.rows)}
        return OpenRun(
            self.send, lambda end, has_failed: self.ends.append((end, has_failed)), **known
        )

    def send(self, rows):
        for row in rows:
            self.rows.append(row)
            if len(self.rows) == self.killed_after:
                raise Killed

    @property
    def points(self):
        return [(row.step, name, value) for row in self.rows for name, value in row.figures.items()]


@pytest.fixture(params=[True, False], ids=["counts rows", "knows figures"])
def service(request, monkeypatch):
    service = Service(request.param)
    monkeypatch.setitem(TRACKERS, "trackio", service.open)
    monkeypatch.setattr(Target, "check", lambda self: None)
    monkeypatch.setattr(follower, "_INTERVAL", 0.0)
    return service


@pytest.fixture
def workdir(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text(Config().to_json())
    return run


def _train(workdir, start, last, checkpoints=(), end=None):
    """Log a line for each step after `start`, as a training does that resumes there."""
    with RunLog(workdir, start, 99) as log:
        for step in range(start + 1, last + 1):
            log.training(step, FIGURES | {"loss": 9.0 - step}, 0.0)
            log.checkpoint(step if step in checkpoints else None)
        if end:
            log.end(last, end, "")


def _logged(workdir):
    records = map(json.loads, (workdir / "log.jsonl").read_text().splitlines())
    return [
        (record["step"], f"{record['of']}/{name}", value)
        for record in records
        for name, value in record.items()
        if record["of"] == "train" and name not in ("step", "of", "time")
    ]


def _send(workdir):
    ended = threading.Event()
    ended.set()
    return send_run(workdir, TARGET, ended)


def test_each_step_is_sent_once_and_none_that_is_repeated(workdir, service):
    _train(workdir, 0, 5, checkpoints=[2, 4])
    _send(workdir)
    assert [row.step for row in service.rows] == [1, 2, 3, 4]
    _train(workdir, 4, 7, checkpoints=[6])  # it was killed at 5
    _send(workdir)
    assert [row.step for row in service.rows] == [1, 2, 3, 4, 5, 6]
    _train(workdir, 6, 8, checkpoints=[8], end="8 steps are done")
    assert [_send(workdir), _send(workdir)] == [8, 8]
    assert service.points == _logged(workdir)
    assert service.ends == [(None, False)] * 2 + [("8 steps are done", False)] * 2
    assert len(service.runs) == 1


def test_scores_that_come_late_are_sent_with_their_step(workdir, service):
    _train(workdir, 0, 4, checkpoints=[4], end="stopped after step 4")
    _send(workdir)
    with RunLog(workdir, 4, 99) as log:
        log._record(4, "dev", {"bleu": 12.5, "measure": {"beam_size": 4}, "loss": None})
        log.warn(4, "much_padding", "half of it")
        log.training(5, FIGURES, 0.0)
        log.checkpoint(5)
    _send(workdir)
    assert [(row.step, row.figures) for row in service.rows[4:6]] == [
        (4, {"dev/bleu": 12.5}),
        (4, {"warning/much_padding": 1.0}),
    ]
    assert [row.step for row in service.rows[6:]] == [5]


@pytest.mark.parametrize("killed_after", range(1, 5))
def test_a_kill_within_an_upload_doubles_no_step(workdir, service, killed_after):
    _train(workdir, 0, 4, checkpoints=[4])
    service.killed_after = killed_after
    with pytest.raises(Killed):
        _send(workdir)
    _train(workdir, 4, 6, checkpoints=[6])
    _send(workdir)
    assert service.points == _logged(workdir)


def test_a_tracker_that_is_away_for_a_while_loses_nothing(workdir, service, capsys):
    class Looks:
        """An event that comes after three looks at the log."""

        number = 0

        def wait(self, seconds):
            self.number += 1
            service.is_away = self.number < 3
            return self.number == 4

    _train(workdir, 0, 3, checkpoints=[3])
    capsys.readouterr()
    assert send_run(workdir, TARGET, Looks()) == 3
    assert capsys.readouterr().out == "ConnectionError: nobody answers at all\n" * 2
    assert service.points == _logged(workdir)
    service.is_away = True
    with pytest.raises(ConnectionError):
        _send(workdir)


@pytest.mark.parametrize("end", ["error: the disk is full", None])
def test_a_run_that_falls_back_behind_what_was_sent_has_no_step_twice(workdir, service, end):
    _train(workdir, 0, 6, checkpoints=[2, 4, 6], end=end)
    _send(workdir)
    assert service.ends == [(end, end is not None)]
    _train(workdir, 2, 5, checkpoints=[4])  # checkpoints 4 and 6 were damaged
    _send(workdir)
    _train(workdir, 4, 8, checkpoints=[6, 8])
    _send(workdir)
    assert [row.step for row in service.rows] == [*range(1, 9)]


def _command(*words):
    return entry_command(["track", *map(str, words)]).run()


def test_the_command_sends_a_finished_run_and_remembers_the_tracker(workdir, service, capsys):
    _train(workdir, 0, 3, checkpoints=[3], end="3 steps are done")
    capsys.readouterr()
    assert _command(workdir, "trackio:demo") == _command(workdir) == 0
    assert capsys.readouterr().out == f"trackio:demo has 3 records of {workdir}\n" * 2
    service.is_away = True
    with pytest.raises(UserError, match=r"trackio:demo: .*ConnectionError.*same command sends"):
        _command(workdir)


@pytest.mark.parametrize(("flags", "checked"), [((), "command"), (("--follow",), "follower")])
def test_the_command_checks_a_target_once(workdir, service, flags, checked, monkeypatch):
    _train(workdir, 0, 3, checkpoints=[3], end="3 steps are done")
    checks = []
    monkeypatch.setattr(Target, "check", lambda self: checks.append("command"))
    monkeypatch.setattr(follower, "follow", lambda *_: checks.append("follower") or nullcontext())
    assert _command(workdir, "trackio:demo", *flags) == 0
    assert checks == [checked]


def test_a_run_of_an_earlier_release_keeps_its_id(workdir, service):
    place = {"tracker": "trackio:demo", "id": "0" * 32, "rows": 4, "step": 4, "of_step": 1}
    (workdir / "trackers").mkdir()
    (workdir / "trackers" / "trackio.json").write_text(json.dumps(place))
    _train(workdir, 0, 3, checkpoints=[3])
    _command(workdir)
    assert service.runs == {("demo", "0" * 32)}


def test_what_cannot_be_sent_is_refused_in_one_line(workdir, service):
    for words, refusal in {
        (workdir / "none",): "none does not exist",
        (workdir,): "was sent to no tracker yet; name one, as in track",
        (workdir, "wandb"): "'wandb' names no project",
        (workdir, "wandb: "): "names no project; give one",
        (workdir, "wand:demo"): r"not name a tracker, such as wandb:PROJECT; did you mean wandb",
        (workdir, "wandb:a,wandb:b"): "a run is sent to one project of wandb, here to a and not",
        (workdir, "wandb:a", "--interval=0"): "--interval 0.0 is invalid",
    }.items():
        with pytest.raises(UserError, match=refusal):
            _command(*words)
    assert not (workdir / "trackers").exists()
    _train(workdir, 0, 1, checkpoints=[1])
    _send(workdir)
    with pytest.raises(UserError, match=r"here to demo and not to other; .* trackers/trackio"):
        _command(workdir, "trackio:other")
    refused = pytest.raises(UserError, match=r"trackio:demo: another process is .* the rest")
    with follower._lock_run(workdir, TARGET), refused:
        _command(workdir)
    (workdir / "trackers" / "trackio.json").write_text('{"tracker": "trackio:demo"')
    with pytest.raises(UserError, match=r"trackio\.json is damaged .* under a new id"):
        _command(workdir)


LIBRARIES = {
    "mlflow/__init__.py": "raise ModuleNotFoundError('no mlflow', name='mlflow')",
    "wandb/__init__.py": """
from types import SimpleNamespace
setup = lambda: SimpleNamespace(settings=SimpleNamespace(mode="online"))
login = lambda **settings: False
""",
    "trackio/__init__.py": "",
    "trackio/sqlite_storage.py": """
import json, os, time

class SQLiteStorage:
    @staticmethod
    def get_logs(project, run, run_id):
        print("a library prints", flush=True)
        if project == "down":
            time.sleep(600)
        return []

    @staticmethod
    def bulk_log(project, run, figures, steps, *others, run_id):
        with open(os.environ["STORE"], "a") as file:
            file.writelines(json.dumps([run_id, step]) + "\\n" for step in steps)

    @staticmethod
    def bulk_alert(project, run, titles, texts, *others, **named):
        with open(os.environ["STORE"], "a") as file:
            file.write(json.dumps([titles[0], texts[0]]) + "\\n")
""",
}


@pytest.fixture
def store(tmp_path, monkeypatch):
    """The file to which a library writes; two other libraries cannot work."""
    for name, text in LIBRARIES.items():
        path = tmp_path / "libraries" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    paths = str(tmp_path / "libraries"), *filter(None, [os.environ.get("PYTHONPATH")])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setenv("STORE", str(tmp_path / "store"))
    return tmp_path / "store"


def test_a_training_is_followed_by_another_process(workdir, store, capfd):
    with follow(workdir, ["trackio:demo"]):
        _train(workdir, 0, 3, checkpoints=[2], end="stopped after step 3")
    lines = [json.loads(line) for line in store.read_text().splitlines()]
    run_id = json.loads((workdir / "trackers" / "trackio.json").read_text())["id"]
    assert lines == [*([run_id, step] for step in (1, 2, 3)), ["end", "stopped after step 3"]]
    printed = capfd.readouterr()
    assert (printed.err, "a library prints" in printed.out) == ("", False)
    assert "a library prints" in (workdir / "trackers" / "trackio.log").read_text()


@pytest.mark.thorough
def test_the_command_follows_a_run_until_it_ends(workdir, store):
    _train(workdir, 0, 3, checkpoints=[2], end="3 steps are done")
    words = "track", workdir, "trackio:demo", "--follow", "--interval=0.1"
    done = run_python("-m", "t2t_jax", *words, code=0, PYTHONPATH=os.environ["PYTHONPATH"])
    steps = [json.loads(line)[1] for line in store.read_text().splitlines()]
    assert steps[:4] == [1, 2, 3, "3 steps are done"]
    assert done.stdout.endswith(f"trackio:demo has 3 records of {workdir}\n")
    assert done.stderr == ""


@pytest.mark.thorough  # 15 seconds at the end
def test_a_tracker_that_never_answers_is_one_warning_with_the_way_out(workdir, store, capfd):
    with follow(workdir, ["trackio:down"]):
        _train(workdir, 0, 3, checkpoints=[2], end="stopped after step 3")
    assert capfd.readouterr().err == (
        "warning: trackio:down did not receive the whole log, see trackers/trackio.log; this "
        f"command sends the rest: t2t-jax track {workdir} trackio:down\n"
    )


def test_a_tracker_that_cannot_work_is_refused_before_the_training(tmp_path, store):
    for target, refusal in {
        "mlflow:demo": r"mlflow:demo needs mlflow, .*: pip install -e '.*\[mlflow\]'",
        "wandb:demo": "there is no login for W&B: call wandb login once",
    }.items():
        with pytest.raises(UserError, match=refusal), follow(tmp_path / "new", [target]):
            pytest.fail("the training begins")
    assert not (tmp_path / "new").exists()


@pytest.mark.thorough
def test_a_remembered_tracker_that_cannot_work_is_a_warning(workdir, store, capfd):
    (workdir / "trackers").mkdir()
    place = {"tracker": "mlflow:demo", "id": "0" * 32}
    (workdir / "trackers" / "mlflow.json").write_text(json.dumps(place))
    with follow(workdir, []):
        _train(workdir, 0, 1)
    warning = "warning: the run is not sent to mlflow:demo: mlflow:demo needs"
    assert warning in capfd.readouterr().err
