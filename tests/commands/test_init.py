"""The files with which a project on an own corpus begins."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from t2t_jax.__main__ import main
from t2t_jax.commands.entry import entry_command
from t2t_jax.config.file import load_config
from t2t_jax.extras.launch.launch_command import LaunchCommand
from tests.programs import run_program
from tests.refusals import refused

SENTENCES = {"fr": "la maison rouge de {}\n", "de": "das rote Haus von {}\n"}
NAMES = ["Anna", "Bert", "Clara", "David", "Emma", "Franz", "Greta", "Hans"]
SMALL = {
    "data.vocab-size": 140,
    "data.max-length": 16,
    "model.d-model": 16,
    "model.num-heads": 2,
    "model.d-ff": 32,
    "model.num-encoder-layers": 1,
    "model.num-decoder-layers": 1,
    "data.source-tokens-per-step": 64,
    "data.target-tokens-per-step": 64,
    "training.num-train-steps": 2,
}


@pytest.fixture
def project(tmp_path):
    assert main(["init", str(tmp_path / "mine"), "--source", "fr"]) == 0
    return tmp_path / "mine"


def test_the_config_is_for_the_text_and_the_languages(project, monkeypatch):
    monkeypatch.chdir(project)
    data = load_config("config.py").data
    assert (data.corpus, data.source_language, data.target_language) == ("text:corpus", "fr", "de")
    assert sorted(path.name for path in project.iterdir()) == [
        *("README.md", "config.py", "corpus", "run.sh")
    ]
    for path in project.glob("*.*"):
        assert "@{" not in path.read_text(encoding="utf-8")


def test_the_script_is_for_every_shell_and_its_commands_are_commands(project, monkeypatch):
    monkeypatch.chdir(project)
    assert os.access("run.sh", os.X_OK)
    if shutil.which("shellcheck"):
        done = subprocess.run(["shellcheck", "run.sh"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
    texts = (project / name for name in ("run.sh", "README.md", "config.py"))
    lines = "\n".join(path.read_text(encoding="utf-8") for path in texts)
    calls = re.findall(r"^(?:echo .*\| | +)?t2t-jax (\w+ .*)$", lines, re.MULTILINE)
    monkeypatch.setattr("t2t_jax.commands.config.stored_config", lambda workdir: None)
    found = [shlex.split(call.replace('"$@"', ""), comments=True) for call in calls]
    assert {words[0] for words in found} == {
        *("train", "evaluate", "translate", "watch", "serve", "config")
    }
    for words in found:
        assert not isinstance(entry_command(words), LaunchCommand)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "t2t-jax init lacks DIR; see --help"),
        (["mine"], "mine already has config.py, README.md, run.sh; move these, or"),
        (["mine/run.sh"], "cannot write mine/run.sh"),
        (["new", "--source", "a/b"], "--source 'a/b' is not a language"),
        (["new", "--target", "en"], "--source and --target are both 'en'; give two languages"),
        (["s3://bucket/new"], "is in a bucket; name a directory of this machine"),
    ],
)
def test_what_is_in_the_way_is_refused_and_stays(project, arguments, message, monkeypatch):
    monkeypatch.chdir(project.parent)
    before = {path: path.read_bytes() for path in project.glob("*.*")}
    with refused(match=message):
        main(["init", *arguments])
    assert {path: path.read_bytes() for path in project.glob("*.*")} == before
    assert not Path("new").exists()


@pytest.mark.thorough
def test_the_script_trains_scores_and_translates(project):
    for split in "train", "dev", "test":
        for language, sentence in SENTENCES.items():
            text = "".join(sentence.format(f"{a} {b}") for a in NAMES for b in NAMES)
            (project / "corpus" / f"{split}.{language}").write_text(text)
    programs = project / "bin"
    programs.mkdir()
    (programs / "t2t-jax").write_text(f'#!/bin/sh\nexec {sys.executable} -m t2t_jax "$@"\n')
    (programs / "t2t-jax").chmod(0o755)
    flags = [word for name, value in SMALL.items() for word in (f"--{name}", str(value))]
    path = f"{programs}:{os.environ['PATH']}"
    cache = ["--data.cache-dir", project / "cache"]
    done = run_program(project / "run.sh", *flags, *cache, PATH=path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "sacreBLEU" in done.stdout
    assert (project / "translations.de").read_text(encoding="utf-8").count("\n") == 64
