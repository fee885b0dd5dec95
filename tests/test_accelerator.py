"""The program that measures an accelerator: tried on the CPU, in its tiny form."""

import importlib
import importlib.util
import json
import signal
import subprocess
import sys

import pytest

from tests.programs import ROOT, run_python, wait_until

pytestmark = pytest.mark.thorough

PROGRAM = ["benchmarks/accelerator.py", "--tiny"]


def _measured(folder):
    """The rows by part, and the notes by part."""
    rows, notes = {}, {}
    for line in (folder / "figures.jsonl").read_text().splitlines():
        row = json.loads(line)
        if row["table"] == "note":
            notes[row["part"]] = row["note"]
        else:
            rows.setdefault(row["part"], []).append(row)
    return rows, notes


_QUICK = ("devices", "attention", "parts_of_a_step")
"""Parts that are not tested as programs of their own elsewhere."""


@pytest.mark.parametrize("parts", [_QUICK, pytest.param((), marks=pytest.mark.slow, id="all")])
def test_every_part_fills_its_section(tmp_path, module, parts):
    chosen = ["--parts", *parts] if parts else []
    done = run_python(*PROGRAM, "--minutes", "15", "--out", tmp_path, *chosen, code=0)
    assert done.stdout.strip() == (tmp_path / "page.md").read_text().strip()
    rows, notes = _measured(tmp_path)
    expected = {part.name for part in module("on_accelerator.page").PARTS}
    lacking = {"pytorch"} if importlib.util.find_spec("torch") is None else {*()}
    assert {*notes} == (lacking if not parts else {*()})
    assert {*rows} | {*notes} == ({*parts} or expected)
    for row in rows["attention"]:
        assert 0 < row["error"] <= row["largest error of a gradient"] < 0.01  # of bfloat16
    profiled = [row for row in rows["parts_of_a_step"] if "kind" not in row]
    assert sum(row["share_of_the_time"] for row in profiled) == pytest.approx(1)
    *kinds, idle, total, _ = (row for row in rows["parts_of_a_step"] if "kind" in row)
    for figure in ("kernels_started", "kernels_in_the_profile", "gib", "tflop"):
        assert sum(row[figure] for row in kinds) == pytest.approx(total[figure])
    assert idle["measured_milliseconds"] < total["measured_milliseconds"]
    assert total["least_milliseconds"] == "not known: no peaks of this device"
    (products,) = (row for row in kinds if row["kind"] == "feed_forward: dot_general")
    # Two networks of two products; all run, and each multiplies 32 positions of 32 with 64.
    assert products["kernels_started"] == products["kernels_in_the_profile"] == 4
    assert products["tflop"] == pytest.approx(4 * 2 * 32 * 32 * 64 / 1e12)
    if parts:
        return
    # The devices are the CPU itself.
    (parity,) = rows["parity"]
    for array in ("log-probabilities", "gradients"):
        assert parity[f"error of {array}"] == 0
    assert parity["losses of 20 steps"] == 0
    assert parity["greedy tokens equal"] == parity["tokens of a beam of 4 equal"] == 1
    first, *steps = rows["training"]
    assert first["remark"] == "these devices have no fused attention"
    for step in steps:
        if "remark" not in step:
            seconds = step["milliseconds_median"] / 1000
            assert step["target_tokens_per_second"] * seconds == pytest.approx(4 * 8)
    (resumed,) = rows["resume"]
    assert 8 <= resumed["killed after step"] <= resumed["steps"]
    assert resumed["the resumed run is equal bit for bit"]


def test_a_signal_leaves_what_was_measured_and_ends_the_part(tmp_path):
    command = [sys.executable, *PROGRAM, "--out", tmp_path, "--parts", "devices", "training"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as program:
        file = tmp_path / "figures.jsonl"
        wait_until(lambda: file.is_file() and file.read_text())
        program.send_signal(signal.SIGTERM)
        page, _ = program.communicate(timeout=60)
        assert program.returncode == 128 + signal.SIGTERM
    rows, notes = _measured(tmp_path)
    assert rows["devices"][0]["platform"] == "cpu"
    assert notes == {
        "devices": "The program was stopped here.",
        "training": "There was no time left for this part.",
    }
    assert "| platform | cpu |" in page


def test_parts_end_at_their_limits_and_the_program_goes_on(tmp_path):
    limited = ["--minutes", "0.02", "--parts", "devices", "decoding"]
    run_python(*PROGRAM, "--out", tmp_path, *limited, code=0)
    rows, notes = _measured(tmp_path)
    assert not rows
    assert notes["devices"] == "This part was ended at its limit of 0 s."
    assert {*notes} == {"devices", "decoding"}


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--parts", "gpus"], "there is no part gpus; the parts are devices, parity, "),
        (["--minutes", "0"], "--minutes 0.0 is not a time; give a number above 0"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_line(tmp_path, flags, reason):
    done = run_python(*PROGRAM, "--out", tmp_path / "never", *flags, code=2)
    assert done.stderr.startswith(f"error: {reason}")
    assert not (tmp_path / "never").exists()


def test_a_part_that_is_measured_again_replaces_its_figures_and_no_others(tmp_path, module):
    accelerator, parts = module("accelerator"), module("on_accelerator.page").PARTS
    devices, parity = parts[:2]
    figures = accelerator.Figures(tmp_path, parts)
    figures.add(devices, {"table": "copies", "copy": "on the device", "gigabytes_per_second": 1.5})
    figures.add(parity, {"table": "beside float32 on the CPU", "greedy tokens equal": 0.5})
    figures = accelerator.Figures(tmp_path, [parity])
    figures.note(parity, "It fell over.")
    rows, notes = _measured(tmp_path)
    assert [*rows] == ["devices"]
    assert notes == {"parity": "It fell over."}
    assert "| gigabytes per second | 1.5 |" in (tmp_path / "page.md").read_text()


def test_a_run_by_the_clock_goes_on_after_its_first_start_and_is_scored(tmp_path):
    command = ["benchmarks/train_by_the_clock.py", "--tiny", "--minutes", "9"]
    run_python(*command, "--workdir", tmp_path, code=0)
    stages = [json.loads(line) for line in (tmp_path / "clock.jsonl").read_text().splitlines()]
    assert [stage["exit_code"] for stage in stages] == [0, 0, 0]
    assert [stage.get("last_step") for stage in stages] == [40, 200, None]
    assert [job["first_step"] for job in stages[1]["goodput"]["jobs"]] == [0, 40]
    scores = [json.loads(line) for line in (tmp_path / "scores.jsonl").read_text().splitlines()]
    assert [one["checkpoints"] for one in scores] == [[200], [160, 170, 180, 190, 200]]
    assert len((tmp_path / "test.out").read_text().splitlines()) == 1000


def test_figures_are_set_against_the_goals(module):
    rows = [
        {"part": "training", "model": "base", "dtype": "bfloat16", "share_of_peak": 0.38},
        {"part": "training", "model": "base", "dtype": "bfloat16", "share_of_peak": 0.45},
        {"part": "training", "model": "base", "dtype": "float32", "share_of_peak": 0.9},
        {"part": "training", "model": "big", "dtype": "bfloat16", "remark": "out of memory"},
        {"part": "programs", "speed_beside_the_bare_step": 0.9},
        *(
            {
                "part": "pytorch",
                "system": system,
                "model": model,
                "times_the_milliseconds_of_ours": times,
            }
            for system, model, times in [
                ("t2t_jax bfloat16", "base", 1.0),
                ("PyTorch bfloat16, compiled", "base", 1.6),
                ("t2t_jax bfloat16", "big", 1.0),
                ("PyTorch bfloat16, compiled", "big", 1.4),
            ]
        ),
    ]
    lines = module("on_accelerator.page").page(
        [{"table": "one", "time": "now", **row} for row in rows]
    )
    assert "| base: 40% of the bfloat16 peak | 0.45 | reached |" in lines
    assert "| big: 50% of the bfloat16 peak | not measured | |" in lines
    assert "| the loop at 95% of the bare step's speed | 0.9 | missed |" in lines
    assert "| 1.3 times as fast as compiled PyTorch | 1.4 | reached |" in lines
    assert "| the CPU's tokens in float32, greedy | not measured | |" in lines
    assert "Transformer, big (NVIDIA, PyTorch) | 8 x A100-SXM4-40GB | 551,599 | 68,950 |" in lines
