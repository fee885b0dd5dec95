"""Whole sweeps: real processes that train tiny models, are killed, fail and are started again."""

import contextlib
import dataclasses
import io
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

import t2t_jax
from t2t_jax import Config, UserError
from t2t_jax.config.file import Grid, load_grid
from t2t_jax.sweep import run
from t2t_jax.sweep.__main__ import main
from t2t_jax.sweep.cell import cells, check_cells, train_and_score
from t2t_jax.sweep.comparison import compare
from t2t_jax.sweep.grid import collect
from t2t_jax.sweep.launchers import Cluster, Local, Outcome, last_output
from t2t_jax.sweep.run import run_cells
from tests.commands import families
from tests.sweep.conftest import QUIET, AtOnce
from tests.trained import bits

REPOSITORY = Path(__file__).parents[2]
GRID = """
import runpy

BASE = runpy.run_path("{tiny}")["get_config"]().replace({{
    "data.source_tokens_per_step": 128, "data.target_tokens_per_step": 128,
    "training.num_train_steps": 20,
    "evaluation.every_steps": 20, "evaluation.num_sentences": 2, "evaluation.num_samples": 0,
    "decoding.max_extra_length": 4, "decoding.beam_size": 1,
    "checkpoint.every_steps": 4, "checkpoint.average": 2,
}})
VARIANTS = {{"base": BASE, "wide": BASE.replace({{"model.d_ff": 64}})}}
"""


@pytest.fixture(scope="module")
def grid_file(tmp_path_factory, tiny_run):
    """A grid of two variants over the pairs of the tiny run."""
    path = tmp_path_factory.mktemp("grid") / "grid.py"
    path.write_text(GRID.format(tiny=tiny_run.folder / "tiny.py"))
    return path


@pytest.fixture(scope="module")
def finished(grid_file):
    """The directory of a sweep that ran undisturbed."""
    workdir = grid_file.parent / "finished"
    done = sweep(grid_file, workdir)
    assert done.wait(timeout=300) == 0
    return workdir


def sweep(grid_file, workdir, *flags):
    command = sys.executable, "-m", "t2t_jax.sweep", "--config", grid_file, "--workdir", workdir
    with (grid_file.parent / f"{workdir.name}.log").open("a") as log:
        return subprocess.Popen([*command, *flags], cwd=REPOSITORY, stdout=log, stderr=log)


@pytest.fixture(scope="module")
def grid(grid_file):
    return load_grid(str(grid_file))


class Scripted(AtOnce):
    """A launcher whose cells have these outcomes, one a look."""

    def __init__(self, *outcomes):
        super().__init__()
        self.outcomes, self.ended = list(outcomes), []

    def poll(self):
        return self.outcomes.pop(0)

    def stop(self):
        self.ended.append("stopped")

    def wait(self):
        self.ended.append("waited")


def steps_taken(workdir):
    """Every step that any process of a cell has logged, in order, by cell."""
    return {
        log.parent.name: list(map(int, re.findall(r"^step (\d+) +loss", log.read_text(), re.M)))
        for log in sorted(workdir.glob("*/seed0.log"))
    }


def figures(workdir):
    """What the table says, but for the speed and the hours."""
    table = [line.split(",") for line in (workdir / "table.csv").read_text().splitlines()]
    varying = {"target_tokens_per_second", "step_device_hours", "device_hours"}
    kept = [i for i, name in enumerate(table[0]) if name not in varying]
    return [[row[i] for i in kept] for row in table]


@pytest.mark.thorough
def test_a_sweep_trains_scores_and_compares_every_variant(finished):
    assert [row[0] for row in figures(finished)] == ["variant", "base", "wide"]
    assert steps_taken(finished) == {"base": list(range(1, 21)), "wide": list(range(1, 21))}
    result = json.loads((finished / "wide" / "seed0" / "result.json").read_text())
    assert result["checkpoints"] == [16, 20]
    assert len(result["hypotheses"]) == len(result["references"]) == 8
    assert sum(result["sentence_tokens"]) == result["target_tokens"]
    nll = result["nll"] * result["target_tokens"]
    assert sum(result["sentence_nll"]) == pytest.approx(nll, rel=1e-5)
    assert "minus that of `base`" in (finished / "table.md").read_text()


_ENDS = (signal.SIGKILL, True), (signal.SIGKILL, False), (signal.SIGTERM, False)
_HALVED = ("--halving=rungs=2,keep=0.5",)  # of which both variants go on


def _count_steps(workdir):
    return sum(map(len, steps_taken(workdir).values()))


def parameters_of(workdir):
    """The bytes of each cell's parameters, by the name of the cell."""
    return {run.parent.name: bits(run) for run in workdir.glob("*/seed0")}


@pytest.mark.thorough
@pytest.mark.faults
@pytest.mark.parametrize("flags", [(), _HALVED], ids=["grid", "halved"])
def test_a_sweep_ended_at_random_and_started_again_completes_the_same_table(grid_file, flags):
    """Whether a kill hits the sweep alone or its cell with it, or SIGTERM asks it to stop."""
    finished, workdir = (
        grid_file.parent / f"{name} {len(flags)}" for name in ("finished", "ended")
    )
    assert sweep(grid_file, finished, *flags).wait(timeout=1200) == 0
    delays = random.Random(7)
    for number, with_cell in _ENDS:
        last = _count_steps(workdir) + delays.randint(3, 13)
        process = sweep(grid_file, workdir, *flags)
        while process.poll() is None and _count_steps(workdir) < last:
            time.sleep(0.05)
        time.sleep(delays.uniform(0, 1))
        for cell in cells_of(process) if with_cell else []:
            with contextlib.suppress(ProcessLookupError):
                os.kill(cell, signal.SIGKILL)
        process.send_signal(number)
        assert process.wait(timeout=60) in (0, -signal.SIGKILL, 143)
    assert sweep(grid_file, workdir, *flags).wait(timeout=1200) == 0
    assert figures(workdir) == figures(finished)
    assert parameters_of(workdir) == parameters_of(finished)
    for taken in steps_taken(workdir).values():
        # What is trained again after a kill is at most what no checkpoint had, never a whole run.
        assert taken[-1] == 20
        assert len(taken) < 2 * 20
        assert set(taken) == set(range(1, 21))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_what_runs_here_and_is_the_exit_code(grid, tmp_path, number):
    (cell, _), launcher, text = cells(grid, tmp_path, 1), Scripted(None), io.StringIO()
    launcher.write = lambda cell: os.kill(os.getpid(), number)
    assert run_cells(lambda _: [cell], launcher, Console(file=text)) == number
    assert launcher.ended == ["stopped", "waited"]
    assert "local runs write a checkpoint first" in text.getvalue()


def cells_of(process):
    """The processes that a sweep has started."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return list(map(int, children.read_text().split())) if children.exists() else []


@pytest.mark.thorough
def test_a_finished_grid_that_is_run_from_python_trains_nothing(grid, finished):
    text, before = io.StringIO(), steps_taken(finished)
    outcome = t2t_jax.run_grid(grid.variants, str(finished), console=Console(file=text))
    assert "2 cells, 2 already finished" in text.getvalue()
    assert steps_taken(finished) == before
    assert outcome.signal == 0
    assert [row.variant for row in outcome.rows] == ["base", "wide"]
    assert outcome.results["wide"] == [_result(finished, "wide")]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"variants": {"a/b": Config()}}, "the grid has a variant 'a/b', which cannot name a dir"),
        ({"variants": {}}, "the grid has no variants"),
        ({"only": ["c"]}, "no variant of the grid is called 'c'; it has a"),
        ({"seeds": 0}, "seeds=0 is not positive"),
        ({"seeds": True}, "seeds=True is a bool, expected int"),
        ({"max_hours": "1"}, "max_hours='1' is a str, expected float"),
        ({"only": "ab"}, "no variant of the grid is called 'ab'"),
        ({"jobs": 0}, "jobs=0 is not from 1 to"),
        ({"jobs": 10_000}, "jobs=10000 is not from 1 to"),
    ],
)
def test_a_grid_that_cannot_be_run_is_refused(tmp_path, change, message):
    arguments = {"variants": {"a": Config()}, "workdir": tmp_path / "runs"} | change
    with pytest.raises(UserError, match=message):
        t2t_jax.run_grid(**arguments)
    assert not (tmp_path / "runs").exists()


@pytest.mark.thorough
def test_a_cell_that_fails_is_reported_and_stops_no_other(grid_file, tmp_path):
    text = grid_file.read_text() + 'VARIANTS = {"bad": BASE.replace({"data.max_length": 8, '
    text += '"data.corpus": "text:nowhere"}), "base": BASE}\n'
    (tmp_path / "grid.py").write_text(text)
    process = sweep(tmp_path / "grid.py", tmp_path / "runs")
    assert process.wait(timeout=120) == 1
    said = (tmp_path / "runs.log").read_text()
    assert "- Not finished: bad." in (tmp_path / "runs" / "table.md").read_text()
    assert "bad/seed0 failed: error: corpus directory nowhere does not exist" in said
    assert re.search(r"base/seed0 done .*perplexity", said)


def test_a_cell_that_diverges_is_a_result(grid, tmp_path):
    changes = {"training.learning_rate_factor": 1e36, "training.max_nonfinite_steps": 2}
    wild = Grid({"wild": grid.variants["base"].replace(changes)}, {})
    (cell,) = cells(wild, tmp_path, 1)
    assert train_and_score(cell) == 0
    assert cell.scores(cell.result()) == {20: float("inf")}
    text = io.StringIO()
    run_cells(lambda _: [cell], Local(1), Console(file=text))
    assert text.getvalue() == "1 cells, 0 already finished\n"
    assert collect(wild, tmp_path, 1, QUIET).unfinished == ()
    said = (tmp_path / "table.md").read_text()
    assert said == "- Diverged, and so worse than every other: wild/seed0.\n"


@pytest.mark.thorough
def test_a_cell_whose_config_has_changed_is_not_trained_over(grid_file, finished, tmp_path):
    (tmp_path / "grid.py").write_text(
        grid_file.read_text() + "VARIANTS['wide'] = BASE.replace({'model.d_ff': 128})\n"
    )
    workdir = tmp_path / "runs"
    shutil.copytree(finished / "wide", workdir / "wide")
    process = sweep(tmp_path / "grid.py", workdir)
    assert process.wait(timeout=60) == 2
    said = (tmp_path / "runs.log").read_text()
    assert said.startswith("error: nothing was started: wide/seed0: ")
    assert said.count("was trained with another config (model.d_ff 64 -> 128)") == 1
    assert said.count("\n") == 1
    assert not (workdir / "base").exists()  # which comes first in the grid


@pytest.mark.thorough
def test_a_cell_under_way_with_another_config_is_refused_as_well(grid, finished, tmp_path):
    shutil.copytree(finished / "wide", tmp_path / "wide")
    (tmp_path / "wide" / "seed0" / "result.json").unlink()
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "seed0").write_text("a file")
    wider = grid.variants["wide"].replace({"model.d_ff": 128})
    check_cells(cells(grid._replace(variants={"wide": grid.variants["wide"]}), tmp_path, 2))
    with pytest.raises(UserError) as refused:
        check_cells(cells(grid._replace(variants={**grid.variants, "wide": wider}), tmp_path, 1))
    assert "base/seed0 exists and is not a run directory" in str(refused.value)
    assert str(refused.value).endswith("(also refused: wide/seed0)")


def _status(grid, workdir, variant, state, **fields):
    (cell,) = cells(Grid({variant: grid.variants[variant]}, {}), workdir, 1)
    return run._Status(cell, state, **fields)


def test_the_end_of_a_sweep_is_estimated_from_the_steps_that_it_has_taken(grid, tmp_path):
    """Of 20 steps a cell: one is finished before, one has taken 6 of its 20, 4 of them before."""
    statuses = [
        _status(grid, tmp_path, "base", "done", result={"bleu": 1.0}, steps_before=20),
        _status(grid, tmp_path, "wide", "running", steps_before=4),
        _status(grid, tmp_path, "base", "failed"),
        _status(grid, tmp_path, "base", "waiting"),
    ]
    assert run._seconds_left(statuses, 10.0) is None
    assert "no step logged yet" in run._summary(statuses, None)
    log = tmp_path / "wide" / "seed0" / "log.jsonl"
    log.parent.mkdir(parents=True)
    log.write_text('{"step": 6, "of": "train", "time": 0.0, "loss": 1.0}\n')
    left = run._seconds_left(statuses, 10.0)
    assert left == 10.0 * (14 + 20) / 2
    line = run._summary(statuses, left)
    assert line.startswith("1 waiting, 1 running, 1 done, 1 failed, about 3 min left, until ")


def test_the_live_table_has_whole_names_and_steps_on_a_narrow_terminal(grid, tmp_path):
    name = "dropout_rate=0.1,label_smoothing=0.05"
    named = Grid({name: grid.variants["base"]}, {})
    progress = {"step": 12_300, "loss": 3.1234, "target_tokens_per_second": 123_456.0}
    status = run._Status(cells(named, tmp_path, 1)[0], "running", progress=progress)
    console = Console(file=io.StringIO(), width=80)
    console.print(run._table([status], None, 80))
    lines = console.file.getvalue().splitlines()
    assert all(len(line) <= 80 and "…" not in line for line in lines)
    assert "".join(line[:18].strip() for line in lines[-4:-1]) == name
    assert "12,300 / 20  3.123   123,456" in lines[-4]


@pytest.mark.usefixtures("quick")
def test_a_line_says_how_far_a_sweep_is_where_there_is_no_terminal(grid, tmp_path, monkeypatch):
    monkeypatch.setattr(run, "_SECONDS_BETWEEN_LINES", 0)
    (cell, _) = cells(grid, tmp_path, 1)
    launcher, text = Scripted(None, None, Outcome(1, "out of memory")), io.StringIO()
    run_cells(lambda _: [cell], launcher, Console(file=text))
    assert text.getvalue().count("0 waiting, 1 running, 0 done, 0 failed, no step logged yet") == 3


def _result(workdir, variant):
    return json.loads((workdir / variant / "seed0" / "result.json").read_text())


def test_a_job_of_a_cluster_that_fails_tells_why(grid, tmp_path):
    config = grid.variants["base"].replace({"data.corpus": "text:nowhere"})
    (cell,) = cells(Grid({"base": config}, {}), tmp_path, 1)
    job = Cluster(tmp_path, ["timeout_min=5"], kind="local").launch(cell)
    while (outcome := job.poll()) is None:
        time.sleep(0.2)
    assert outcome == Outcome(2, "error: corpus directory nowhere does not exist")
    assert last_output(cell) == outcome.message


@pytest.mark.usefixtures("quick")
def test_a_cell_that_was_stopped_is_started_again(grid, tmp_path):
    """As a cluster stops jobs whose time is up."""
    (cell, _) = cells(grid, tmp_path, 1)
    launcher, text = Scripted(Outcome(128 + 15, ""), Outcome(1, "out of memory")), io.StringIO()
    run_cells(lambda _: [cell], launcher, Console(file=text))
    assert launcher.outcomes == []
    assert text.getvalue().count("base/seed0 running") == 2
    assert "base/seed0 failed: out of memory" in text.getvalue()


def test_a_cell_that_cannot_be_started_stops_no_other(grid, tmp_path):
    def full(cell):
        raise OSError(28, "No space left on device")

    text = io.StringIO()
    run_cells(lambda _: cells(grid, tmp_path, 1), AtOnce(full), Console(file=text, width=200))
    for name in ("base/seed0", "wide/seed0"):
        assert f"{name} failed: [Errno 28] No space left on device" in text.getvalue()


@pytest.mark.thorough
def test_a_terminal_shows_every_variant_with_its_seeds_and_scores(grid, finished):
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=120)
    broken = cells(grid, finished, 2)[3]
    broken = dataclasses.replace(broken, config=broken.config.replace({"data.corpus": "text:no"}))
    run_cells(lambda _: [*cells(grid, finished, 1), broken], Local(1), console)
    seen = Text.from_ansi(text.getvalue()).plain
    assert "dev perplexity per subword; BLEU: nrefs:1" in " ".join(seen.split())
    assert "3 cells, 2 already finished" in seen
    assert re.search(r"wide +✓[·▶✗]", seen)
    assert re.search(r"base +✓ .* \d+\.\d{3} +\d+\.\d\d", seen)


def tiny_tagger(folder, **sentences):
    """Return a config over trees in a folder, which get these numbers of sentences by split."""
    for split, count in sentences.items():
        (folder / f"{split}.mrg").write_text("(TOP (S (DT the) (NN dog) (VB runs)))\n" * count)
    return (
        Config()
        .replace(families.MODEL)
        .replace(
            {
                **families.FAMILIES["tagger"],
                "data.corpus": f"trees:{folder}",
                "data.cache_dir": str(folder / "cache"),
                "data.vocab_size": 16,
                "training.num_train_steps": 2,
                "training.peak_learning_rate": 1e-3,
                "checkpoint.every_minutes": None,
                "checkpoint.every_steps": 2,
            }
        )
    )


@pytest.mark.thorough
def test_a_grid_over_tags_is_trained_and_compared_by_accuracy(tmp_path):
    base = tiny_tagger(tmp_path, train=8, dev=8)
    grid = Grid({"base": base, "wide": base.replace({"model.d_ff": 64})}, {})
    results = {}
    for cell in cells(grid, tmp_path / "grid", 1):
        assert cell.result() is None
        assert train_and_score(cell) == 0
        results[cell.variant] = [cell.result()]
    row = compare(grid, results).rows[1]
    assert row.measures.score.name == "accuracy"
    assert row.score.difference is not None
    place = tmp_path / "grid" / "wide" / "seed0" / "result.json"
    place.write_text(json.dumps(json.loads(place.read_text()) | {"accuracy": None}))
    with pytest.raises(UserError, match=r"got `null` - at `\$\.accuracy`"):
        cells(grid, tmp_path / "grid", 1)[1].result()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["partition"], "--slurm 'partition' is not name=value, as in slurm_partition=gpu"),
        (["timeout_min=5", "colour=red"], "colour"),
        (["timeout_min=soon"], "correct --slurm"),
        (["slurm_partition=gpu"], "a job needs a time limit"),
    ],
)
def test_settings_of_a_cluster_that_do_not_exist_are_refused(tmp_path, settings, message):
    with pytest.raises(UserError, match=message):
        Cluster(tmp_path, settings, kind="local")


def test_a_machine_without_slurm_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"launcher slurm: .*are you indeed on a slurm cluster"):
        Cluster(tmp_path, ["timeout_min=5"])


def test_processes_share_the_gpus_out(tmp_path, monkeypatch, grid):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,7")
    # The interpreter is one that writes down what it was given.
    program = tmp_path / "program"
    program.write_text('#!/bin/sh\nsleep 1\necho "$CUDA_VISIBLE_DEVICES" > "$3.seen"\n')
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    launcher = Local(2)
    jobs = [launcher.launch(cell) for cell in cells(grid, tmp_path, 1)]
    assert None not in jobs
    while any(job.poll() is None for job in jobs):
        time.sleep(0.05)
    seen = [path.read_text().strip() for path in sorted(tmp_path.glob("*/seed0.seen"))]
    assert seen == ["4,7", "5"]


def test_a_dry_run_lists_the_variants_and_trains_nothing(grid_file, tmp_path, capsys):
    table3 = REPOSITORY / "configs" / "table3.py"
    assert main(["--config", str(table3), "--workdir", str(tmp_path / "t"), "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "20 variants" in lines[0]
    assert re.search(r"^ *base +63,045,632 +100,000 +4\.92 +25\.8 +65 *$", lines[2])
    assert any(
        re.search(r"^ *B-dk16 +d_k=16 +55,967,744 +100,000 +5\.16 +25\.1 +58 *$", line)
        for line in lines
    )
    assert not (tmp_path / "t").exists()


def test_a_dry_run_of_a_grid_of_ones_own_has_no_column_of_the_paper(grid_file, capsys):
    assert main(["--config", str(grid_file), "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == [
        *("variant", "differs", "in", "parameters", "steps")
    ]


def test_rows_of_seeds_that_overlap_are_refused_by_a_dry_run():
    rows = ["--config", "base", "--vary", "training.seed=0,1", "--dry-run", "--seeds"]
    assert main([*rows, "1"]) == 0
    with pytest.raises(UserError, match="with seed 1 are the same run"):
        main([*rows, "2"])


@pytest.mark.thorough
def test_a_finished_grid_is_listed_and_grows_by_its_directory_alone(finished, capsys):
    assert main([str(finished), "--dry-run"]) == 0
    assert "2 variants, 1 seed(s)" in capsys.readouterr().out
    assert main([str(finished), "--report"]) == 0
    with pytest.raises(UserError, match="rows that this one lacks"):
        main([str(finished), "--config", "quickstart", "--vary", "model.d_ff=32,64"])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--only", "widee"], "no variant of the grid is called 'widee'; did you mean wide?"),
        (["--only", "X-*"], "it has base, wide"),
        ([], "a sweep needs a directory; name one with --workdir"),
        (["--dry-run", "--report"], "give one of --dry-run, --report and --rename"),
        (["--columns", "variant", "score"], "add --report to write it"),
        (["--report", "--columns"], "--columns is empty"),
        (["--again"], "--again scores on test again"),
        (["--again", "--split", "test", "--report"], "--again scores on test again"),
        (["--workdir", "w", "--slurm", "timeout_min=5"], "of Slurm jobs; add --launcher slurm"),
        (["--workdir", "w", "--launcher", "slurm", "--jobs", "2"], "--jobs is for this machine"),
    ],
)
def test_a_bad_command_line_is_refused(grid_file, flags, message):
    with pytest.raises(UserError, match=re.escape(message)):
        main(["--config", str(grid_file), *flags])
