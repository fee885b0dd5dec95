"""The commands of `eval.py` beyond translation, and ensembles."""

import json
import re
import shutil
from datetime import date

import jax
import pytest

from t2t_jax.commands import streams
from t2t_jax.commands.entry import entry_command
from t2t_jax.commands.evaluate import which_average
from t2t_jax.data.trees import parse_trees
from t2t_jax.workdir import read_scores
from tests.commands.untrained import SOURCES, TARGETS, make_run
from tests.refusals import refused

SENTENCES = ["The dog sleeps .", "", "Rain ( wind ) barks", "Cats"]


@pytest.fixture(scope="module")
def parser(folder):
    return make_run(folder, "parser", f"trees:{folder}", 60)


def command(*arguments):
    return entry_command([str(argument) for argument in arguments]).run()


def test_score_writes_log_probabilities_that_add_up(workdir, folder, capfdbinary):
    files = ("--source", folder / "test.en", "--target", folder / "test.de")
    assert command("score", "--workdir", workdir, *files, "--subwords") == 0
    lines = capfdbinary.readouterr().out.decode().splitlines()
    assert len(lines) == len(TARGETS)
    for line, target in zip(lines, TARGETS, strict=True):
        total, _, subwords = line.partition(" ||| ")
        pieces = [piece.rpartition("=") for piece in subwords.split(" ")]
        assert float(total) == pytest.approx(sum(float(p[2]) for p in pieces), abs=1e-3)
        assert "".join(p[0] for p in pieces) == "\u2581" + target.replace(" ", "\u2581") + "</s>"


def test_files_of_unequal_length_are_refused(workdir, folder, tmp_path):
    (tmp_path / "short").write_text("der Hund\n")
    with refused(match=r"test\.en has 4 lines, but .*short has 1"):
        command(
            *("score", "--workdir", workdir),
            *("--source", folder / "test.en", "--target", tmp_path / "short"),
        )
    compared = "compare", "--references", folder / "test.de", "--hypotheses", tmp_path / "short"
    with refused(match=r"short and .*test\.de: cannot score 1 translations aga"):
        command(*compared)
    (tmp_path / "one.mrg").write_text("(TOP (S (NN dog)))")
    with refused(match=r"one\.mrg and .*test\.mrg: "):
        command(
            "compare", "--references", folder / "test.mrg", "--hypotheses", tmp_path / "one.mrg"
        )


def test_compare_scores_files_and_tells_the_better_one(folder, tmp_path, capsys):
    (tmp_path / "bad.de").write_text("".join("ganz etwas anderes hier\n" for _ in TARGETS))
    files = (tmp_path / "bad.de", folder / "test.de")
    assert command("compare", "--references", folder / "test.de", "--hypotheses", *files) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert re.search(r" 0\.00 0\.00 \d+\.\d\d .* 100\.00 100\.00 100\.00 0\.\d{4} ", out)
    assert "|tok:13a|" in out
    assert "Moses tokenizer" in out
    assert "approximate randomization" in out


def test_compare_gives_full_marks_to_the_treebank_itself(folder, capsys):
    command("compare", "--references", folder / "dev.mrg", "--hypotheses", folder / "dev.mrg")
    out = " ".join(capsys.readouterr().out.split())
    assert re.search(r" 100\.00 100\.00 100\.00 100\.00 0 0 ", out)
    assert "EVALB, COLLINS.prm" in out


def test_every_sentence_gets_a_tree_of_exactly_its_words(parser, tmp_path, capfd):
    """Whatever an untrained model writes."""
    (tmp_path / "sentences").write_text("".join(f"{line}\n" for line in SENTENCES))
    output = tmp_path / "parsed.mrg"
    command("translate", "--workdir", parser, "--input", tmp_path / "sentences", "--output", output)
    lines = output.read_text().split("\n")
    assert len(lines) == len(SENTENCES) + 1
    assert lines[1] == ""
    expected = [["The", "dog", "sleeps", "."], ["Rain", "-LRB-", "wind", "-RRB-", "barks"]]
    assert [tree.words for tree in parse_trees(lines, output)] == [*expected, ["Cats"]]
    assert re.search(r"[1-3] of 4 trees were repaired", capfd.readouterr().err)


def test_parseval_of_a_model_counts_what_was_repaired_and_is_recorded(parser, capsys):
    assert command("evaluate", "--workdir", parser, "--split", "dev", "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["num_sentences"] == 3
    assert 0 <= summary["f1"] <= 100
    assert summary["num_repaired"] <= 3
    assert summary["signature"] == "EVALB, COLLINS.prm"
    assert read_scores(parser)[-1] == summary
    command("evaluate", "--workdir", parser, "--split", "dev")
    assert "f1_short" in capsys.readouterr().out


def test_scores_before_and_after_averaging_are_printed_and_recorded(workdir, capsys):
    command("evaluate", "--workdir", workdir, "--before-averaging", "--json")
    alone, averaged = map(json.loads, capsys.readouterr().out.splitlines())
    assert alone["checkpoints"] == [6]
    assert averaged["checkpoints"] == [3, 6]
    assert alone["nll"] != averaged["nll"]
    assert read_scores(workdir)[-2:] == [alone, averaged]
    assert averaged["test_set"].endswith(" test")
    assert date.fromisoformat(averaged["date"]) >= date(2026, 11, 26)
    assert averaged["hardware"].startswith(f"{jax.local_device_count()} × ")


def test_several_splits_are_scored_in_one_call(workdir, capsys, tmp_path):
    command(
        "evaluate", "--workdir", workdir, "--split", "test", "dev", "--json", "--beam-size", "1"
    )
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["split"] for record in records] == ["test", "dev"]
    assert read_scores(workdir)[-2:] == records
    with refused("--split names 2; score one split at a time"):
        command(
            "evaluate", "--workdir", workdir, "--split", "test", "dev", "--output", tmp_path / "o"
        )
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("steps", "decays", "cells"),
    [
        ([3, 6], [], ("2", "checkpoints of step 3, 6")),
        ([], [], ("", "saved parameters, whose steps are unknown")),
        ([6], [0.5], ("", "moving average of the parameters, decay 0.5, after step 6")),
        (
            [6, 6],
            [0.5, 0.9],
            ("", "moving average of the parameters, decay 0.5, 0.9, after step 6, 6"),
        ),
        (
            [3, 6, 6],
            [0.5],
            ("3", "checkpoints of step 3, 6, 6; 1 of the models by a moving average, decay 0.5"),
        ),
    ],
)
def test_the_table_of_scores_says_which_average_was_scored(steps, decays, cells):
    assert which_average({"checkpoints": steps, "ema_decays": decays}) == cells


def test_a_run_directory_that_cannot_be_written_is_scored_all_the_same(workdir, tmp_path, capsys):
    published = tmp_path / "published"
    shutil.copytree(workdir, published, ignore=shutil.ignore_patterns("scores.jsonl", "report.md"))
    for name in ("scores.jsonl", "report.md"):  # nothing can be written over a directory
        (published / name).mkdir()
    assert command("evaluate", "--workdir", published, "--json") == 0
    assert json.loads(capsys.readouterr().out)["num_sentences"] == 4
    assert command("report", "--workdir", published) == 0


def test_an_ensemble_of_different_vocabularies_is_refused(workdir, folder):
    smaller = make_run(folder, "smaller", f"text:{folder}", 50)
    with refused(match="different vocabularies"):
        command("translate", "--workdir", workdir, smaller, "--input", folder / "test.en")


@pytest.fixture
def with_a_long_line(tmp_path, monkeypatch):
    """A file of five lines, which are read two at a time, with a long one at its end."""
    monkeypatch.setattr(streams, "_LINES_AT_ONCE", 2)
    path = tmp_path / "lines"
    path.write_text("\n".join([*SOURCES[:2], "", *SOURCES[:1], " ".join(SOURCES * 9)]) + "\n")
    return path


def test_a_long_line_is_refused_before_the_first_is_translated(
    workdir, with_a_long_line, capfdbinary
):
    flags = ("--max-source-length", 12, "--long-lines", "refuse")
    with refused(match=r"line 5 has \d+ subwords, more than .*=12"):
        command("translate", "--workdir", workdir, "--input", with_a_long_line, *flags)
    assert capfdbinary.readouterr().out == b""


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_that_is_none_is_refused(workdir, with_a_long_line, seed):
    files = ("--workdir", workdir, "--input", with_a_long_line)
    with refused(match=rf"seed={seed} is outside \[0, 4294967295\]"):
        command("translate", *files, "--seed", seed)
