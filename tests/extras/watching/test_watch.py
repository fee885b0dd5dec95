"""Runs in the terminal: their curves, once and followed."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from t2t_jax import Config, UserError
from t2t_jax.commands.entry import entry_command
from t2t_jax.extras.watching import watch
from t2t_jax.extras.watching.page import curves_section
from t2t_jax.extras.watching.watch import plot_in_terminal
from tests.programs import ROOT

STEPS = 1000


def _train(step, **figures):
    return {
        "step": step,
        "of": "train",
        "time": 1e9 + 6 * step,
        "loss": 5.0 - step / 1000,
        "nll": 4.0 - step / 1000,
        "learning_rate": 1e-3,
        "gradient_norm": 0.75,
        "target_tokens": 1e5,
        "target_tokens_per_second": 12_345.0,
        "data_wait": 0.07,
    } | figures


def _dev(step, bleu):
    return {"step": step, "of": "dev", "perplexity": 20.0, "bleu": bleu, "score": bleu}


RECORDS = [
    *(_train(step) for step in (100, 200, 300, 400)),
    _dev(200, 11.25),
    _dev(400, 10.5),
    {"step": 400, "of": "checkpoint"},
    {"step": 400, "of": "warning", "rule": "much_padding", "text": "half of it is padding"},
]
END = {"step": 400, "of": "end", "text": "stopped after step 400"}


def _run(workdir, records=RECORDS):
    workdir.mkdir(parents=True)
    config = Config().replace({"training.num_train_steps": STEPS})
    (workdir / "config.json").write_text(config.to_json())
    _write(workdir, records)
    return workdir


def _write(workdir, records):
    (workdir / "log.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))


def _watch(*arguments):
    return entry_command(["watch", *map(str, arguments)]).run()


def test_an_own_loss_and_metrics_have_curves(tmp_path, monkeypatch):
    records = [_train(step, accuracy=step / 1000) for step in (100, 200)]
    own = [{name: one[name] for name in one if name != "nll"} for one in records]
    monkeypatch.setattr(watch, "has_own_loss", lambda config: True)
    runs = watch._read_runs([_run(tmp_path / "own", own)])
    curves = {title: [x.tolist() for x in arrays] for title, arrays in watch._curves(runs).items()}
    assert curves["training loss"] == [[[100, 200], [4.9, 4.8]]]
    assert curves["accuracy"] == [[[100, 200], [0.1, 0.2]]]
    assert "accuracy in training" in curves_section(own).plots[-1]


def test_a_run_is_drawn_with_its_figures_and_warnings(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = _run(Path("runs/base"))
    (run / "profile" / "steps_5_7").mkdir(parents=True)
    assert _watch(run) == 0
    printed = capsys.readouterr().out
    assert "\nprofile: runs/base/profile/steps_5_7\n" in printed
    assert "\x1b" not in printed  # it is no terminal
    header, row, *_ = printed.splitlines()
    assert "best dev BLEU" in header
    figures = str(run), "400 / 1,000", "4.600", "11.25 at 200", "12,345", "7%", "60 min"
    assert [figure for figure in figures if figure not in row] == []
    assert "step 400: warning: half of it is padding" in printed
    for title in (
        "training loss, nats per token: 3.6",
        "perplexity on dev: 20",
        "BLEU on dev: 10.5",
        "gradient norm: 0.75",
        "target tokens/s: 12,345",
        "learning rate: 0.001",
    ):
        assert title in printed
    assert re.search("[\u2801-\u28ff]", printed)  # curves, in Braille


def test_several_runs_are_compared_in_the_same_axes(tmp_path, capsys):
    one = _run(tmp_path / "grid" / "one" / "seed0")
    two = _run(
        tmp_path / "grid" / "two" / "seed0", [_train(50, nll=9.0), _train(150, nll=None), END]
    )
    assert _watch(one, two) == 0
    printed = capsys.readouterr().out
    assert re.search(r"\* one/seed0 +400 / 1,000 .* 1$", printed, re.MULTILINE)
    assert re.search(r"o two/seed0 +150 / 1,000 .* ended +0$", printed, re.MULTILINE)
    assert "one/seed0: step 400: warning: half of it is padding" in printed
    assert "two/seed0: stopped after step 400" in printed
    assert printed.count("training loss, nats per token") == 1
    assert re.search(r"^ +9┤o", printed, re.MULTILINE)  # the only known loss of the second


def test_the_directory_of_a_grid_stands_for_its_runs(tmp_path, capsys):
    grid = tmp_path / "grid"
    _run(grid / "one" / "seed0")
    _run(grid / "two" / "seed0", [_train(50), END])
    _run(grid / "two" / "seed1", [])  # it has begun
    (grid / "two" / "logs").mkdir()
    assert _watch(grid) == 0
    rows = capsys.readouterr().out.splitlines()[1:4]
    names = ["* one/seed0", "o two/seed0", "two/seed1"]
    assert [name for name, row in zip(names, rows, strict=True) if name not in row] == []
    assert "0 / 1,000" in rows[2]


def test_a_grid_is_followed_until_ctrl_c_as_other_runs_may_begin(tmp_path, capsys, monkeypatch):
    grid = tmp_path / "grid"
    _run(grid / "one" / "seed0", [*RECORDS, END])
    looks = []

    def sleep(_, stopped):
        looks.append(stopped())
        if len(looks) == 1:
            _run(grid / "two" / "seed0")
        else:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(watch, "_sleep", sleep)
    assert _watch(grid, "--follow") == 130
    assert "two/seed0" in capsys.readouterr().out
    assert looks == [False, False]


def test_each_curve_has_a_colour_of_its_own_on_a_terminal(tmp_path):
    runs = [
        _run(tmp_path / name, [_train(step, nll=nll) for step in (100, 200)])
        for name, nll in (("one", 4.0), ("two", 5.0))
    ]
    console = Console(force_terminal=True, color_system="standard", width=100, height=50)
    with console.capture() as captured:
        watch.show_runs(runs, console)
    printed = captured.get()
    assert "\x1b[34m* one" in printed
    assert "\x1b[31mo two" in printed
    assert {"\x1b[34m", "\x1b[31m"} <= set(re.findall(r"\x1b\[3\dm(?=[\u2801-\u28ff])", printed))


def test_what_is_no_run_or_damaged_or_has_no_line_yet_is_refused(tmp_path):
    empty = _run(tmp_path / "empty", [])
    (empty / "none").mkdir()
    damaged = _run(tmp_path / "damaged")
    (damaged / "config.json").write_text("{")
    for arguments, message in (
        ([], "t2t-jax watch takes a run, as in t2t-jax watch runs/base"),
        ([tmp_path / "empty" / "none"], "is not a run directory: it has no config.json"),
        ([tmp_path / "nowhere"], "nowhere does not exist; "),
        ([damaged], "config is damaged"),
        ([empty], "has no training step yet; wait for it with --follow"),
        ([damaged, "--interval", "0"], "--interval 0.0 is invalid; give seconds > 0, such as 5"),
        ([damaged, "--folow"], "unknown flag --folow; did you mean --follow?"),
    ):
        with pytest.raises(UserError, match=re.escape(message)):
            _watch(*arguments)


def test_a_run_without_dev_or_of_the_first_release_is_drawn(tmp_path, capsys):
    old = [
        {"step": 10 * n, "of": "train", "loss": 5.0, "target_tokens_per_second": None}
        for n in (1, 2)
    ]
    assert _watch(_run(tmp_path / "run", old)) == 0
    printed = capsys.readouterr().out
    assert "20 / 1,000" in printed
    assert "nothing to draw yet" in printed


def test_a_run_is_followed_until_it_ends(tmp_path, capsys, monkeypatch):
    """Each look at the log finds what the run has done since the last."""
    run = _run(tmp_path / "run", [])
    grown = iter([RECORDS[:1], RECORDS, RECORDS, [*RECORDS[:3], _train(500), END]])
    monkeypatch.setattr(watch, "_sleep", lambda *_: _write(run, next(grown)))
    assert _watch(run, "--follow") == 0
    printed = capsys.readouterr().out
    assert "nothing to draw yet" in printed
    steps = re.findall(r"(\d+) / 1,000", printed)
    assert list(dict.fromkeys(steps)) == ["0", "100", "400", "500"]
    assert printed.rstrip().count("stopped after step 400") == 1
    assert "\x1b" not in printed
    assert next(grown, None) is None


def test_what_a_log_gets_while_the_first_page_is_drawn_is_not_missed(tmp_path, monkeypatch):
    run, page = _run(tmp_path / "run"), watch._page

    def drawn(*arguments):
        _write(run, [*RECORDS, END])
        return page(*arguments)

    looks = iter([None])
    monkeypatch.setattr(watch, "_page", drawn)
    monkeypatch.setattr(watch, "_sleep", lambda *_: next(looks))
    assert _watch(run, "--follow") == 0


@pytest.mark.thorough
def test_ctrl_c_ends_a_terminal_that_follows_and_leaves_it_in_order(tmp_path):
    run = _run(tmp_path / "run")
    terminal, end = os.openpty()
    program = subprocess.Popen(
        [sys.executable, "-m", "t2t_jax", "watch", str(run), "--follow"],
        cwd=ROOT,
        stdin=end,
        stdout=end,
        stderr=subprocess.PIPE,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "50"},
    )
    os.close(end)
    printed, sent = bytearray(), []

    def read():
        try:
            while block := os.read(terminal, 4096):
                printed.extend(block)
                if b"learning rate" in printed and not sent:
                    sent.append(program.send_signal(signal.SIGINT))
        except OSError:  # the program has ended
            pass

    reader = threading.Thread(target=read)
    reader.start()
    _, errors = program.communicate(timeout=120)
    reader.join()
    os.close(terminal)
    assert (program.returncode, errors) == (130, b"")
    assert printed.rfind(b"\x1b[?25h") > printed.rfind(b"\x1b[?25l") >= 0  # the cursor is back


def test_a_plot_has_the_range_of_its_curves_on_its_axes():
    drawn = plot_in_terminal("loss", [np.array([[1, 2001], [0.5, 4.0]])], 60, 10, has_colors=False)
    lines = drawn.splitlines()
    assert len(lines) == 10
    assert max(map(len, lines)) <= 60
    assert "loss: 4" in lines[0]
    assert [label for label in ("4┤", "0.5┤", "2,001") if label not in drawn] == []


def test_a_curve_of_one_value_is_a_point():
    assert "7┤" in plot_in_terminal("loss", [np.array([[100.0], [7.0]])], 40, 8, has_colors=False)
