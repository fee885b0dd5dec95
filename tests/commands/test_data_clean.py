"""The command that cleans parallel text, from files to files."""

import gzip
import json
import re
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t2t_jax.__main__ import main
from t2t_jax.commands import data_clean
from t2t_jax.config import DataConfig
from t2t_jax.data.cleaning.clean import CleaningState, clean_pairs
from t2t_jax.data.cleaning.pairs import Side
from t2t_jax.data.cleaning.rules import PairCleaning
from t2t_jax.data.corpus import open_corpus
from t2t_jax.errors import UserError
from t2t_jax.run.loading import load

RUN = Path(__file__).parents[1] / "goldens/runs/0.2.0/run"
PAIRS = [
    ("Open the file 12", "Öffne die Datei 12"),
    ("", "leer"),
    ("Open the file 12!", "öffne die Datei 12"),
    ("Close the window", "Schließ das Fenster 3"),
    ("bad bytes", "\udcff\udcfe"),
    ("Held out here.", "Etwas anderes"),
    ("It's raining.\r", "Es regnet.\u2028"),
]


@pytest.fixture
def corpus(tmp_path):
    """A directory of parallel text with some faults, one side of which is packed."""
    folder = tmp_path / "web"
    folder.mkdir()
    english, german = (
        "".join(f"{pair[side]}\n" for pair in PAIRS).encode(errors="surrogateescape")
        for side in (0, 1)
    )
    (folder / "train.en.gz").write_bytes(gzip.compress(english))
    (folder / "train.de").write_bytes(german)
    (folder / "dev.en.gz").write_bytes(gzip.compress(b"held out here\n"))
    (folder / "dev.de").write_text("Zurückgehalten <b>\n")
    (folder / "news.en").write_text("a\n")
    (folder / "news.de").write_text("b\n")
    (folder / "SOURCES.md").write_text("# From the web\n")
    return folder


def clean(*arguments):
    return main(["data", "clean", *map(str, arguments)])


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_corpus_is_cleaned_and_read_again_and_says_how_it_was_made(corpus, tmp_path, capsys):
    out = tmp_path / "clean"
    assert clean(corpus, out) == 0
    cleaned = open_corpus(DataConfig(corpus=f"text:{out}"))
    kept = (["Open the file 12", "It's raining."], ["Öffne die Datei 12", "Es regnet.\u2028"])
    assert cleaned.lines("train") == kept
    assert cleaned.lines("dev") == (["held out here"], ["Zurückgehalten <b>"])
    assert cleaned.lines("news") == (["a"], ["b"])
    report = json.loads((out / "report.json").read_text("utf-8"))
    assert report["skipped"] == {"not_utf8": {"lines": 1, "first": "train.de line 5"}}
    assert report["read"] == {"pairs": 6, "source_words": 16, "target_words": 17}
    assert report["kept"] == {"pairs": 2, "source_words": 6, "target_words": 6}
    dropped = {name: of["pairs"] for name, of in report["dropped"].items() if of["pairs"]}
    assert dropped == {"empty": 1, "numbers": 1, "held-out": 1, "near-duplicates": 1}
    assert report["dropped"]["numbers"]["samples"] == [
        {"source": "Close the window", "target": "Schließ das Fenster 3"}
    ]
    sources = (out / "SOURCES.md").read_text("utf-8")
    assert report["hash"] in sources
    assert sources.endswith("\n# From the web\n")
    printed = capsys.readouterr().out
    assert re.search(r"^near-duplicates +1 +1$", printed, re.MULTILINE)
    assert "2 of 6 pairs are kept (33.3%), with 6 and 6 words; train on them with --da" in printed
    table = (out / "report.md").read_text("utf-8")
    assert "| numbers | 1 | 1 | Drop a pair whose numbers differ" in table
    assert "| not utf8 | 1 | 1 | Skip lines at fault; first train.de line 5. |" in table


def test_the_same_text_and_rules_give_the_same_bytes_wherever_they_are(corpus, tmp_path):
    moved = shutil.copytree(corpus, tmp_path / "elsewhere")
    outs = [tmp_path / name for name in ("one", "two", "other")]
    assert clean(corpus, outs[0]) == clean(f"text:{moved}", outs[1]) == 0
    assert clean(corpus, outs[2], "--without", "numbers") == 0
    one, two, other = map(contents, outs)
    assert one == two
    hashes = [json.loads(found["report.json"])["hash"] for found in (one, other)]
    assert hashes[0] != hashes[1]
    assert b"Close" in other["train.en"]


def test_two_files_are_cleaned_in_other_languages(corpus, tmp_path):
    files = corpus / "train.en.gz", corpus / "train.de"
    out = tmp_path / "clean"
    assert clean(*files, out, "--target-language", "nl", "--rules", "empty", "length") == 0
    assert {path.name for path in out.iterdir()} == {
        *("train.en", "train.nl", "report.json", "report.md", "SOURCES.md")
    }
    assert len((out / "train.nl").read_text("utf-8").split("\n")) == 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["{web}"],
            "is not a directory of parallel text, two files, or shards, and a directory to",
        ),
        (["{web}", "{web}"], "web exists and is not empty; choose another directory"),
        (["{web}/none", "out"], "corpus directory {web}/none does not exist"),
        (["{web}/train.en.gz", "{web}/no.de", "out"], "no.de"),
        (["{web}/train.en.gz", "{web}/dev.de", "out"], "has 7 lines, but {web}/dev.de has 1"),
        (["{web}", "out", "--target-language", "fr"], "has {web}/train.en.gz, but no train.fr"),
        (["shards:{web}/dev.de*2", "out"], "has weights, or text that is no shards"),
        (["shards:{web}/dev.de+text:{web}", "out"], "clean each corpus by itself"),
        (["{web}", "out", "--rules", "lenght"], "there is no rule 'lenght' of cleaning; did you m"),
        (["{web}", "out", "--max-words", "0"], "min_words=1 and max_words=0 keep nothing"),
        (["{web}", "out", "--forward", "r"], "--backward is missing; the score needs runs of both"),
        (["{web}", "out", "--min-score", "0.1", "--rules", "cross-entropy"], "needs two runs"),
    ],
)
def test_what_cannot_be_cleaned_is_refused_and_nothing_is_written(
    corpus, tmp_path, monkeypatch, arguments, message
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=re.escape(message.format(web=corpus))):
        clean(*(one.format(web=corpus) for one in arguments))
    assert [*tmp_path.iterdir()] == [corpus]


@settings(max_examples=15, deadline=None)
@given(st.lists(st.sampled_from(PAIRS), max_size=40), st.integers(1, 5), st.data())
def test_shards_are_cleaned_as_the_whole_text_is(tmp_path_factory, pairs, num, data):
    """Whatever the cuts, the shards hold what a pass over all pairs in memory keeps."""
    pairs = [pair for pair in pairs if pair[1].isprintable()]
    folder = tmp_path_factory.mktemp("web")
    cuts = sorted(data.draw(st.integers(0, len(pairs))) for _ in range(num - 1))
    for n, (a, b) in enumerate(pairwise([0, *cuts, len(pairs)])):
        lines = (json.dumps({"s": s, "t": t}) + "\n" for s, t in pairs[a:b])
        (folder / f"train-{n}.jsonl").write_text("".join(lines), encoding="utf-8")
    (folder / "dev-0.jsonl").write_text('{"s": "held out here", "t": "anders"}\n')
    pattern, out = f"shards:{folder}/{{split}}-*.jsonl", folder / "clean"
    rules = "--rules", "standard", "same-target", "--without", "deviation"
    assert clean(pattern, out, "--fields", "s", "t", *rules) == 0
    report = json.loads((out / "report.json").read_text("utf-8"))

    cleaning = PairCleaning(("en", "de"), rules=report["rules"])
    cleaning.held_out = tuple(Side([line]).near_keys for line in ("held out here", "anders"))
    chunk = [s.rstrip("\r") for s, _ in pairs], [t.rstrip("\u2028") for _, t in pairs]
    kept, counts = clean_pairs(chunk, cleaning, CleaningState())
    cleaned = open_corpus(DataConfig(corpus=f"shards:{out}/{{split}}-*.{{language}}.gz"))
    assert len(cleaned.parts["train"].shards) == num
    assert cleaned.lines("train") == kept
    assert cleaned.lines("dev") == (["held out here"], ["anders"])
    assert tuple(report["read"].values()) == counts.read
    assert tuple(report["kept"].values()) == counts.kept
    for name, found in counts.dropped.items():
        samples = [{"source": s, "target": t} for _, s, t in found.samples]
        expected = {"pairs": found.pairs, "alone": found.alone, "samples": samples}
        assert report["dropped"][name] == expected


def test_a_line_at_fault_is_left_out_of_training_alone(corpus, tmp_path):
    (corpus / "dev.de").write_bytes(b"\xff\n")
    with pytest.raises(UserError, match=r"dev.de line 1 is not utf8; only lines of train are left"):
        clean(corpus, tmp_path / "clean")
    assert [*tmp_path.iterdir()] == [corpus]


def test_interrupted_work_leaves_nothing(corpus, tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("t2t_jax.data.cleaning.stream.cleaning_report", stop)
    with pytest.raises(KeyboardInterrupt):
        clean(corpus, tmp_path / "clean")
    assert [*tmp_path.iterdir()] == [corpus]


def test_a_share_keeps_the_pairs_of_the_highest_scores(corpus, tmp_path, monkeypatch):
    scored = []

    def scorer(sources, targets):
        scored.extend(sources)
        return np.array([len(source) / 100 for source in sources])

    monkeypatch.setattr(data_clean.DataCleanCommand, "_scorer", lambda self: scorer)
    out = tmp_path / "clean"
    assert clean(corpus, out, "--rules", "empty", "--keep-share", "0.6") == 0
    kept = open_corpus(DataConfig(corpus=f"text:{out}")).lines("train")[0]
    assert kept == ["Open the file 12", "Open the file 12!", "Close the window"]
    assert len(scored) == 5  # once each, and no empty one
    assert json.loads((out / "report.json").read_text())["limits"]["keep_share"] == 0.6


@pytest.mark.thorough
def test_two_runs_score_pairs_in_both_directions(corpus, tmp_path, monkeypatch):
    backward = shutil.copytree(RUN, tmp_path / "backward")
    config = json.loads((backward / "config.json").read_text())
    config["data"] |= {"source_language": "de", "target_language": "en"}
    (backward / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr("t2t_jax.run.loading.load", lambda run, load=load: load(RUN))
    runs = ["--forward", RUN, "--backward", backward]
    with pytest.raises(UserError, match="backward translates de to en, and not en to de; give"):
        clean(corpus, tmp_path / "no", "--forward", backward, "--backward", RUN, "--min-score", "0")
    assert clean(corpus, tmp_path / "clean", *runs, "--keep-share", "0.5") == 0
    report = json.loads((tmp_path / "clean/report.json").read_text())
    assert report["runs"] == {"forward": str(RUN), "backward": str(backward)}
    assert report["dropped"]["cross-entropy"]["pairs"] == 1
