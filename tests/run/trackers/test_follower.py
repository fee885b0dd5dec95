"""What is sent of a log to a tracker, with one of a few lines that is killed and is away."""

import json
import os

import pytest

from t2t_jax.commands.entry import entry_command
from t2t_jax.config import Config
from t2t_jax.errors import UserError
from t2t_jax.run.log import RunLog
from t2t_jax.run.trackers import follower
from t2t_jax.run.trackers.follower import Follower
from t2t_jax.run.trackers.following import followed
from t2t_jax.run.trackers.tracker import Target

TARGET = Target("wandb", "demo")
FIGURES = {"loss": 2.5, "learning_rate": 1e-3, "target_tokens_per_second": 10.0, "data_wait": 0.0}


class Killed(BaseException):
    """What ends a sending in its middle, as a kill would."""


class Service:
    """A tracker that counts rows, and refuses one that it has; it may be away or lose the last."""

    def __init__(self):
        self.rows, self.ends, self.ids = [], [], set()
        self.config, self.projects = {}, set()
        self.is_away, self.killed_after = False, None

    def kind(self, target):
        service = self

        class Opened:
            def __init__(self, project, run):
                if service.is_away:
                    raise ConnectionError("nobody answers\nat all")
                service.ids.add(run.id)
                service.projects.add(project)
                service.config = run.config
                self.known = len(service.rows)

            @staticmethod
            def check(project):
                """Every project will do."""

            def send(self, rows):
                for row in rows:
                    if service.is_away:
                        raise ConnectionError("nobody answers")
                    assert row.number == len(service.rows), "a row twice, or one left out"
                    service.rows.append(row)
                    if len(service.rows) == service.killed_after:
                        raise Killed

            def close(self, end):
                service.ends.append(end)

        return Opened

    @property
    def points(self):
        return [(row.step, name, x) for row in self.rows for name, x in row.figures.items()]


@pytest.fixture
def service(monkeypatch):
    made = Service()
    monkeypatch.setattr(follower, "kind_of", made.kind)
    monkeypatch.setattr(follower, "_LEAST_PAUSE", 0.0)
    return made


@pytest.fixture
def workdir(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text(Config().replace({"model.d_ff": 777}).to_json())
    return run


def _train(workdir, start, last, checkpoints=(), end=None, speed=10.0):
    """Log a line for each step after `start`, as a training does that goes on from there."""
    with RunLog(workdir, start, 99) as log:
        for step in range(start + 1, last + 1):
            log.training(step, FIGURES | {"loss": 9.0 - step, "data_wait": speed}, 0.0)
            log.checkpoint(step if step in checkpoints else None)
        if end:
            log.end(last, end, "")


def _logged(workdir):
    records = map(json.loads, (workdir / "log.jsonl").read_text().splitlines())
    return [
        (r["step"], f"{r['of']}/{name}", x)
        for r in records
        for name, x in r.items()
        if r["of"] not in ("checkpoint", "end") and name not in ("step", "of", "time")
    ]


def _follow(workdir, **how):
    one = Follower(workdir, TARGET)
    with one.held():
        one.follow(**how)
    return one


def test_steps_after_the_last_checkpoint_are_sent_when_they_are_not_taken_again(workdir, service):
    _train(workdir, 0, 5, checkpoints=[2, 4])
    _follow(workdir)
    assert [row.step for row in service.rows] == [1, 2, 3, 4]
    _train(workdir, 4, 7, checkpoints=[6], speed=20.0)  # it was killed at 5, and goes on
    _follow(workdir)
    assert [row.step for row in service.rows] == [1, 2, 3, 4, 5, 6]
    _train(workdir, 6, 8, checkpoints=[8], end="8 steps are done", speed=30.0)
    one = _follow(workdir, is_over=True)
    assert service.points == _logged(workdir)
    assert (one.rows, service.ends, len(service.ids)) == (8, ["8 steps are done"], 1)
    assert service.config["model.d_ff"] == 777
    _follow(workdir, is_over=True)
    assert len(service.rows) == 8


def test_scores_that_come_late_are_sent_with_their_step(workdir, service):
    _train(workdir, 0, 4, checkpoints=[4], end="stopped after step 4")
    _follow(workdir, is_over=True)
    with RunLog(workdir, 4, 99) as log:
        log._record(4, "dev", {"bleu": 12.5, "measure": {"beam_size": 4}, "loss": None})
        log._record(4, "warning", {"rule": "much_padding", "text": "half of it"})
        log.training(5, FIGURES, 0.0)
        log.checkpoint(5)
    _follow(workdir)
    *_, scores, warning, last = service.rows
    assert (scores.step, scores.figures) == (4, {"dev/bleu": 12.5})
    assert (warning.step, warning.warning) == (4, ("much_padding", "half of it"))
    assert (last.step, len(service.rows)) == (5, 7)


@pytest.mark.parametrize("killed_after", range(1, 5))
def test_a_kill_between_sending_and_noting_doubles_no_step(workdir, service, killed_after):
    _train(workdir, 0, 4, checkpoints=[4])
    service.killed_after = killed_after
    with pytest.raises(Killed):
        _follow(workdir)
    _train(workdir, 4, 6, checkpoints=[6])
    _follow(workdir)
    assert service.points == _logged(workdir)


def test_rows_that_never_arrived_are_sent_again(workdir, service):
    _train(workdir, 0, 4, checkpoints=[4])
    _follow(workdir)
    del service.rows[1:]
    _follow(workdir)
    assert service.points == _logged(workdir)


def test_a_tracker_that_is_away_for_a_while_loses_nothing(workdir, service):
    service.is_away = True
    _train(workdir, 0, 3, checkpoints=[3])
    one = Follower(workdir, TARGET)
    with one.held():
        one.follow()
        assert one.error == "ConnectionError: nobody answers at all"
        service.is_away = False
        one.follow()
        assert (one.error, one.rows) == (None, 3)
        service.is_away = True
        _train(workdir, 3, 6, checkpoints=[6])
        one.follow()
        assert one.error
        service.is_away = False
        one.follow(is_over=True)
    assert service.points == _logged(workdir)


def test_a_run_that_fell_back_behind_what_was_sent_has_no_step_twice(workdir, service):
    _train(workdir, 0, 6, checkpoints=[2, 4, 6])
    _follow(workdir)
    _train(workdir, 2, 5, checkpoints=[4])  # checkpoints 4 and 6 were damaged
    _follow(workdir)
    _train(workdir, 4, 8, checkpoints=[6, 8])
    _follow(workdir)
    assert [row.step for row in service.rows] == [*range(1, 9)]


def test_an_error_is_the_end_only_once_nobody_trains(workdir, service):
    _train(workdir, 0, 3, checkpoints=[2])
    log = RunLog(workdir, 3, 99)
    log.__exit__(UserError, UserError("the disk is full"), None)
    _follow(workdir)
    assert [row.step for row in service.rows] == [1, 2]
    _follow(workdir, is_over=True)
    assert [row.step for row in service.rows] == [1, 2, 3]
    assert service.ends == ["error: the disk is full"]


def _command(*words):
    return entry_command(["track", *map(str, words)]).run()


def test_the_command_sends_a_finished_run_and_knows_where_to_the_next_time(
    workdir, service, capsys
):
    _train(workdir, 0, 3, checkpoints=[3], end="3 steps are done")
    assert _command(workdir, "wandb:demo", "--follow") == 0
    assert _command(workdir) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == [f"wandb:demo has 3 records of {workdir}"] * 2
    assert service.projects == {"demo"}
    service.is_away = True
    with pytest.raises(UserError, match=r"wandb:demo: ConnectionError.*same command sends the"):
        _command(workdir)


def test_what_cannot_be_sent_is_refused_in_one_line(workdir, service):
    for words, refusal in {
        (workdir / "none",): "is not a run directory",
        (workdir,): "was sent to no tracker yet; name one, as in track",
        (workdir, "wandb"): "'wandb' names no project",
        (workdir, "wandb: "): "names no project; give one",
        (workdir, "wand:demo"): r"names no tracker as wandb:PROJECT does; did you mean wandb\?",
        (workdir, "wandb:a,wandb:b"): "two projects of wandb",
        (workdir, "wandb:a", "--interval=0"): "--interval 0.0 is no time",
    }.items():
        with pytest.raises(UserError, match=refusal):
            _command(*words)
    assert not (workdir / "trackers").exists()
    refused = pytest.raises(UserError, match=r"another process sends .* to wandb:demo")
    with Follower(workdir, TARGET).held(), refused:
        _command(workdir, "wandb:demo")
    with pytest.raises(UserError, match="is sent to wandb:demo, and not to wandb:other"):
        _command(workdir, "wandb:other")
    (workdir / "trackers" / "wandb.json").write_text('{"tracker": "wandb:demo"')
    with pytest.raises(UserError, match=r"wandb\.json is damaged .* under a new id"):
        _command(workdir)


STORE = """
import json, os, sys

class SQLiteStorage:
    @staticmethod
    def validate_project_name(project):
        if project == "bad":
            raise ValueError("a bad name")

    @staticmethod
    def bulk_log(project, run, metrics, steps, *others, run_id):
        print("a library prints")
        if project == "down":
            raise ConnectionError("nobody answers")
        with open(os.environ["STORE"], "a") as file:
            file.writelines(json.dumps([run_id, step]) + "\\n" for step in steps)

    @staticmethod
    def bulk_alert(project, run, titles, texts, *others, **named):
        with open(os.environ["STORE"], "a") as file:
            file.write(json.dumps([titles[0], texts[0]]) + "\\n")
"""


@pytest.fixture
def libraries(tmp_path, monkeypatch):
    """A library that writes to a file, one that is missing, and the file."""
    folder = tmp_path / "libraries"
    (folder / "trackio").mkdir(parents=True)
    (folder / "trackio" / "__init__.py").touch()
    (folder / "trackio" / "sqlite_storage.py").write_text(STORE)
    (folder / "mlflow.py").write_text("raise ModuleNotFoundError('no mlflow', name='mlflow')")
    paths = str(folder), *filter(None, [os.environ.get("PYTHONPATH")])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setenv("STORE", str(tmp_path / "store"))
    return tmp_path / "store"


def test_a_training_is_followed_by_a_process_of_its_own(workdir, libraries, capfd):
    with followed(workdir, ["trackio:demo"]):
        _train(workdir, 0, 3, checkpoints=[2], end="stopped after step 3")
    told = [json.loads(line) for line in libraries.read_text().splitlines()]
    place = json.loads((workdir / "trackers" / "trackio.json").read_text())
    assert told == [*([place["id"], step] for step in (1, 2, 3)), ["end", "stopped after step 3"]]
    printed = capfd.readouterr()
    assert (printed.err, "a library prints" in printed.out) == ("", False)
    assert "a library prints" in (workdir / "trackers" / "trackio.log").read_text()


def test_a_tracker_that_is_down_to_the_end_is_a_warning_with_the_way_out(workdir, libraries, capfd):
    with followed(workdir, ["trackio:down"]):
        _train(workdir, 0, 3, checkpoints=[2], end="stopped after step 3")
    assert capfd.readouterr().err.splitlines() == [
        "warning: trackio:down is behind: ConnectionError: nobody answers",
        "warning: trackio:down has not got all of the log yet; this sends the rest: "
        f"t2t-jax track {workdir} trackio:down",
    ]


def test_a_tracker_that_cannot_work_is_refused_before_the_training(tmp_path, libraries):
    for target, refusal in {
        "mlflow:demo": r"mlflow:demo needs mlflow, .*: pip install -e '.*\[mlflow\]'",
        "trackio:bad": "trackio:bad is refused: a bad name",
    }.items():
        with pytest.raises(UserError, match=refusal), followed(tmp_path / "new", [target]):
            pytest.fail("the training begins")
    assert not (tmp_path / "new").exists()


def test_a_remembered_tracker_that_cannot_work_is_a_warning(workdir, libraries, capfd):
    place = {"tracker": "mlflow:demo", "id": "0" * 32, "rows": 0, "step": 0, "of_step": 0}
    (workdir / "trackers").mkdir()
    (workdir / "trackers" / "mlflow.json").write_text(json.dumps(place))
    with followed(workdir, []):
        _train(workdir, 0, 1)
    assert (
        "warning: the run is not sent to mlflow:demo: mlflow:demo needs" in capfd.readouterr().err
    )
