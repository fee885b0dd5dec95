"""The log of a run."""

import errno
import io
import json
import resource
import signal
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console
from tensorboardX.proto.event_pb2 import Event, SessionLog

from t2t_jax.errors import UserError
from t2t_jax.run.log import RunLog
from t2t_jax.system import exit_codes, retries
from t2t_jax.workdir import LOG
from tests.trained import records_of

FIGURES = {
    "loss": 2.5,
    "learning_rate": 1e-3,
    "target_tokens_per_second": 1234.5,
    "data_wait": 0.034,
}


def _log(workdir, start_step):
    return RunLog(workdir, start_step, num_train_steps=10)


def _steps(workdir):
    return [record["step"] for record in records_of(workdir, "train")]


def test_records_of_steps_to_be_taken_again_are_removed(tmp_path):
    with _log(tmp_path, 0) as log:
        for step in (1, 2, 3, 4):
            log.training(step, FIGURES, seconds_left=100.0)
    with _log(tmp_path, 2) as log:
        log.training(3, FIGURES, seconds_left=100.0)
    assert _steps(tmp_path) == [1, 2, 3]


@pytest.mark.parametrize("torn", ['{"step": 2, "of"', '{"step": 2, "of": "train"}'])
def test_a_line_that_a_kill_cut_is_left_out(tmp_path, torn):
    with _log(tmp_path, 0) as log:
        log.training(1, FIGURES, seconds_left=1.0)
    with (tmp_path / "log.jsonl").open("a") as file:
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
        "step 7  loss 2.500  learning rate 1.00e-03  1,234 target tokens/s  3% waiting for data  "
        "10 min left\n"
    )


def test_a_narrow_terminal_shows_the_step_all_figures_and_the_time_left(tmp_path):
    figures = FIGURES | {"target_tokens_per_second": 1234567.8}
    with RunLog(tmp_path, 0, num_train_steps=100_000) as log:
        log.step(3000)
        log.training(3000, figures, seconds_left=600.0)
        console = Console(file=io.StringIO(), width=80)
        for line in log._progress.get_renderables():
            console.print(line)
    bar, *below = console.file.getvalue().splitlines()
    assert bar.startswith("step   3000/100000 ━")
    assert bar.endswith(":--")  # the time left, which is not known so soon
    assert all(len(line) <= 80 for line in (bar, *below))
    assert " ".join(" ".join(below).split()) == (
        "loss 2.500 learning rate 1.00e-03 1,234,568 target tokens/s 3% waiting for data"
    )


def test_a_notebook_shows_a_bar_and_keeps_lines_as_text(tmp_path, monkeypatch, capsys):
    shown = []

    def display(bar, display_id):
        shown.append(bar._repr_mimebundle_([], [])["text/plain"])
        return SimpleNamespace(update=partial(display, display_id=display_id))

    monkeypatch.setattr("t2t_jax.run.log.get_console", lambda: Console(force_jupyter=True))
    monkeypatch.setattr("IPython.display.display", display)
    with _log(tmp_path, 0) as log:
        for step in range(1, 11):
            log.step(step)
        log.training(10, FIGURES, seconds_left=0.0)
        log.say("step 10, dev")
    assert ["0/10" in shown[0], "10/10" in shown[-1], "loss 2.500" in shown[-1]] == [True] * 3
    assert len(shown) <= 4  # not at every step
    assert capsys.readouterr().out == "step 10, dev\n"


def test_tensorboard_gets_the_figures_and_forgets_later_steps(tmp_path):
    with _log(tmp_path, 4) as log:
        log.training(5, FIGURES | {"gradient_norm": float("inf")}, seconds_left=1.0)
    (path,) = tmp_path.glob("events.out.tfevents.*")
    content, events = path.read_bytes(), []
    while content:  # a record: its length, a checksum of that, itself, a checksum
        length = int.from_bytes(content[:8], "little")
        events.append(Event.FromString(content[12 : 12 + length]))
        content = content[16 + length :]
    first, start, *figures = events
    assert first.file_version == "brain.Event:2"
    assert (start.step, start.session_log.status) == (5, SessionLog.START)
    assert {event.step for event in figures} == {5}
    assert {e.summary.value[0].tag: e.summary.value[0].simple_value for e in figures} == (
        pytest.approx({f"train/{name}": value for name, value in FIGURES.items()})
    )


def test_a_full_disk_is_an_error_in_one_line_after_some_attempts(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(retries, "PAUSES", (0.01, 0.02))
    with _log(tmp_path, 0) as log:
        log._file.close()
        log._file = Path("/dev/full").open("w", buffering=1)  # noqa: SIM115  it closes its file
        with pytest.raises(UserError, match=r"log\.jsonl .*No space left on device.*make room"):
            log.training(1, FIGURES, seconds_left=1.0)
    warnings = capsys.readouterr().err.splitlines()
    assert [line.rpartition("again in ")[2] for line in warnings] == ["0.01 s", "0.02 s"]


def test_a_line_that_met_a_full_disk_is_written_once_there_is_room(tmp_path, monkeypatch):
    monkeypatch.setattr(retries, "PAUSES", (0.01,))
    with _log(tmp_path, 0) as log:
        log.training(1, FIGURES, seconds_left=1.0)
        size = (tmp_path / LOG).stat().st_size
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 9, before[1]))  # cuts the next line
        monkeypatch.setattr(exit_codes, "_PASSING", {errno.EFBIG})
        make_room = partial(resource.setrlimit, resource.RLIMIT_FSIZE, before)
        monkeypatch.setattr(retries.time, "sleep", lambda _: make_room())
        log.training(2, FIGURES, seconds_left=1.0)
        signal.signal(signal.SIGXFSZ, handler)
    assert _steps(tmp_path) == [1, 2]
