"""Benchmarks run, and their figures agree with each other; how large they are is not tested."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from t2t_jax.config.file import load_config
from t2t_jax.modules.cost import model_flops_per_step, num_parameters
from t2t_jax.system.host import instruction_sets, processor_name

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def config(tiny_run):
    """The config of the tiny run."""
    return load_config(str(tiny_run.folder / "tiny.py"))


def _columns(tiny_run, program, *flags):
    """What a benchmark prints for each column of its table."""
    command = [f"benchmarks/{program}.py", f"--config={tiny_run.folder / 'tiny.py'}", *flags]
    done = subprocess.run(
        [sys.executable, *command, "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    columns = [json.loads(line) for line in done.stdout.splitlines()]
    for column in columns:
        low, middle, high = (column[f"seconds_{name}"] for name in ("min", "median", "max"))
        assert 0 < low <= middle <= high
        assert column["processor"] == processor_name()
        assert column["instruction_sets"].split() == [*instruction_sets()]
    return columns


def _agrees_with_rate(column, amount, rate):
    return column[rate] * column["seconds_median"] == pytest.approx(amount)


def test_training_steps_are_counted_in_tokens_and_operations(tiny_run, config):
    flags = ["--shapes", "4x8", "--repeats", "3", "--model.dropout-rate", "0"]
    (column,) = _columns(tiny_run, "train_step", *flags)
    assert (column["rows"], column["length"]) == (4, 8)
    assert (column["target_tokens"], column["tokens"]) == (32, 64)
    assert _agrees_with_rate(column, 32, "target_tokens_per_second")
    assert _agrees_with_rate(column, 64, "tokens_per_second")
    assert column["parameters"] == num_parameters(config.model, 300)
    assert column["model_flops"] == model_flops_per_step(
        config.model, 300, 32, 32, source_length=8, target_length=8
    )
    peak_seconds = column["model_flops"] / column["matrix_flops_per_second"]
    assert column["mfu"] * column["seconds_median"] == pytest.approx(peak_seconds)
    assert 0 < column["mfu"] <= 1.5
    # Parameters and Adam's two moments, in float32, are arguments of the program.
    assert column["process_bytes"] > column["program_bytes"] > 3 * 4 * column["parameters"]


def test_a_profile_tells_all_the_time_there_is_by_parts(tiny_run):
    flags = ["--shape", "4x8", "--batch-size", "3", "--beam-size", "2", "--repeats", "1"]
    training, search = _columns(tiny_run, "where_time_goes", *flags)
    for column in (training, search):
        shares = {name: share for name, share in column.items() if " " in name or "-" in name}
        assert sum(shares.values()) == pytest.approx(1)
        assert min(shares.values()) >= 0
        assert shares["products of the logits"] > 0
        assert shares["attention itself"] > 0
    assert training["top-k"] == 0 < search["top-k"]


def test_searches_are_counted_over_the_grid(tiny_run):
    flags = ["--batch-sizes", "3", "--beam-sizes", "1", "2", "--source-length", "5"]
    columns = _columns(tiny_run, "decode", *flags, "--target-length", "7", "--repeats", "1")
    assert [(column["beam_size"], column["batch_size"]) for column in columns] == [(1, 3), (2, 3)]
    for column in columns:
        assert column["tokens"] == 7 * column["batch_size"]
        assert _agrees_with_rate(column, column["tokens"], "tokens_per_second")
        assert _agrees_with_rate(column, column["batch_size"], "sentences_per_second")


def test_batches_hold_the_corpus_and_padding(tiny_run, config):
    encoded, *made = _columns(tiny_run, "data", "--repeats", "2")
    assert encoded["lines"] == 2 * 400
    assert _agrees_with_rate(encoded, 800, "lines_per_second")
    assert [(column["measured"], column["how"]) for column in made] == [
        ("bucket", "alone"),
        ("bucket", "prefetch"),
        ("pack", "alone"),
        ("pack", "prefetch"),
    ]
    bound = config.data.target_tokens_per_step
    for column in made:
        assert 0 < column["pairs"] <= 400
        assert column["target_tokens"] < column["tokens"] <= encoded["tokens"]
        assert _agrees_with_rate(column, column["pairs"], "pairs_per_second")
        assert _agrees_with_rate(column, column["target_tokens"], "target_tokens_per_second")
        positions = column["target_tokens"] / (1 - column["target_padding"])
        assert positions == pytest.approx(round(positions))
        assert positions <= bound * column["steps"]


def test_a_shape_that_is_none_is_refused_in_one_line(tiny_run):
    command = ["benchmarks/train_step.py", f"--config={tiny_run.folder / 'tiny.py'}"]
    done = subprocess.run(
        [sys.executable, *command, "--shapes", "4y8"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == "error: --shapes 4y8 is not rows x tokens; write it as 32x64\n"
