"""Pairs of which a model writes one side."""

import gzip
import json

import pytest

import t2t_jax
from t2t_jax.commands.entry import entry_command
from t2t_jax.config import DataConfig
from t2t_jax.data.corpus import open_corpus
from t2t_jax.errors import UserError
from t2t_jax.run import synthetic
from tests.commands.test_commands import SOURCES, TARGETS, make_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that translates from English to German, and a text of its source language."""
    folder = tmp_path_factory.mktemp("synthetic")
    for split in ("train", "dev"):
        for language, lines in (("en", SOURCES), ("de", TARGETS)):
            (folder / f"{split}.{language}").write_text("".join(f"{line}\n" for line in lines))
    text = [*SOURCES, "", "the house " * 80, *SOURCES[:2]]
    (folder / "mono.en").write_text("".join(f"{line}\n" for line in text))
    return make_run(folder, "run", f"text:{folder}", 55)


def make(name, run, out, *flags):
    files = ("--text", run.parent / "mono.en", "--out", out, "--rules", "empty", "length")
    command = [str(one) for one in ("data", name, run, *files, *flags)]
    return entry_command(command).run()


@pytest.mark.parametrize("name", ["backtranslate", "distill"])
def test_the_model_writes_the_sources_or_the_targets(run, tmp_path, monkeypatch, capsys, name):
    monkeypatch.setattr(synthetic, "LINES", 3)
    tag = ("--tag", "<BT>") if name == "backtranslate" else ()
    out = tmp_path / "made"
    assert make(name, run, out, *tag) == 0
    translated = t2t_jax.load(run).translate(
        text := (run.parent / "mono.en").read_text().splitlines()
    )
    pairs = [
        (f"<BT> {ours}", real) if tag else (real, ours)
        for ours, real in zip(translated, text, strict=True)
        if ours.strip() and real.strip() and len(real.split()) <= 150 and len(ours.split()) <= 150
    ]
    languages = ("de", "en") if tag else ("en", "de")
    config = DataConfig(f"shards:{out}/{{split}}-*.{{language}}.gz", *languages)
    assert [*zip(*open_corpus(config).lines("train"), strict=True)] == pairs
    assert len(pairs) < len(text)
    printed = capsys.readouterr().out
    assert f"{len(pairs)} of {len(text)} pairs are kept" in " ".join(printed.split())
    assert ("--data.protected-tokens '<BT>'" in " ".join(printed.split())) == bool(tag)


def test_what_is_made_is_not_made_again_and_goes_on(run, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(synthetic, "LINES", 3)
    assert make("distill", run, tmp_path / "whole") == 0
    whole = capsys.readouterr().out
    real, made = synthetic.clean_pairs, []

    def until_killed(*given):
        made.append(given[0])
        if len(made) == 2:
            raise KeyboardInterrupt
        return real(*given)

    out = tmp_path / "killed"
    with monkeypatch.context() as patched:
        patched.setattr(synthetic, "clean_pairs", until_killed)
        with pytest.raises(KeyboardInterrupt):
            make("distill", run, out)
    first = out / "train-00000.de.gz"
    before = first.stat().st_mtime_ns
    assert make("distill", run, out) == 0
    assert first.stat().st_mtime_ns == before
    assert capsys.readouterr().out.replace("killed", "whole") == whole
    for path in (tmp_path / "whole").iterdir():
        assert (out / path.name).read_bytes() == path.read_bytes()
    assert gzip.decompress(first.read_bytes())
    about = json.loads((out / "synthetic.json").read_text())
    assert about["steps"] == [3, 6]


def test_other_settings_and_other_directories_are_refused(run, tmp_path):
    out = tmp_path / "made"
    assert make("distill", run, out) == 0
    with pytest.raises(UserError, match="made has pairs that were made with another seed, tag; ch"):
        make("distill", run, out, "--seed", 1, "--tag", "<BT>")
    with pytest.raises(UserError, match="exists and is not empty; choose another directory"):
        make("distill", run, run.parent)
    with pytest.raises(
        UserError, match="--tag 'a b' is not one token without spaces, such as <BT>"
    ):
        make("distill", run, tmp_path / "new", "--tag", "a b")
