"""Publishing: a run goes to the hub, or elsewhere, and opens there by its name."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from huggingface_hub import ModelCard, constants

import t2t_jax
from t2t_jax.__main__ import main
from t2t_jax.config.file import load_config
from t2t_jax.extras.interchange.publishing import card
from t2t_jax.extras.interchange.publishing.card import check_licence, licence_of
from t2t_jax.system.hub import RUN_FILES, STATE_FILES
from t2t_jax.workdir import record_scores
from tests.hub_server import Model
from tests.programs import ROOT
from tests.refusals import refused

_NAME = "hf://someone/en-de"
_RELEASED = ROOT / "tests/goldens/runs/0.2.0"
_LICENCE = ["--licence", "CC-BY-4.0"]
_LINES = ["The file is open.", "No devices were found."]
_SCORE = {
    "corpus": "text:/home/someone/secret/news*2+text:/data/web",
    "split": "test",
    "num_sentences": 12,
    "checkpoints": [800],
    "decoding": {"beam_size": 4, "length_penalty": 0.6},
    "bleu": 21.5,
    "bleu_signature": "nrefs:1|version:2.6.0",
    "date": "2026-11-26",
    "hardware": "2 × NVIDIA H200",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that a released version wrote, whose text is below a directory of its machine."""
    workdir = tmp_path_factory.mktemp("run") / "run"
    shutil.copytree(_RELEASED / "run", workdir)
    record_scores(workdir, _SCORE)
    return str(workdir)


def _alike(name, run):
    found, expected = t2t_jax.load(name), t2t_jax.load(run)
    jax.tree.map(np.testing.assert_array_equal, found.params, expected.params)
    assert found.nbest(_LINES, 2) == expected.nbest(_LINES, 2)


def test_a_run_goes_to_the_hub_and_opens_by_its_name(run, hub, capsys):
    assert main(["publish", run, _NAME, *_LICENCE, "--private"]) == 0
    name = capsys.readouterr().out.split()[0]
    model = hub.models["someone/en-de"]
    assert name == f"{_NAME}@{model.refs['main']}"
    assert model.private
    _alike(_NAME, run)
    files = model.commits[model.refs["main"]]
    assert set(files) <= set(RUN_FILES)
    # The same again sends no object again; a branch leaves main as it is.
    asked, main_is = len(hub.asked), model.refs["main"]
    assert main(["publish", run, _NAME, *_LICENCE, "--revision", "next"]) == 0
    assert not [one for one in hub.asked[asked:] if one[0] == "PUT"]
    assert model.refs["main"] == main_is != model.refs["next"]
    # What an earlier state left is removed, and other files of the model stay.
    model.commit({**files, "checkpoints/8/d/1": b"", "log.jsonl": b"", "LICENSE": b"mine"})
    assert main(["publish", run, _NAME, *_LICENCE]) == 0
    assert set(model.commits[model.refs["main"]]) == {*files, "LICENSE"}


def test_the_card_is_what_the_hub_takes_and_has_no_path_of_the_machine(run, hub, tmp_path):
    out = tmp_path / "card"
    assert main(["publish", run, _NAME, *_LICENCE, "--dry-run", str(out)]) == 0
    assert hub.asked == []
    card = ModelCard((out / "README.md").read_text(encoding="utf-8"))
    data = card.data.to_dict()
    assert data["language"] == ["en", "de"]
    assert (data["license"], data["pipeline_tag"]) == ("cc-by-4.0", "translation")
    assert data["library_name"] == "t2t_jax"
    [result] = card.data.eval_results
    assert (result.metric_type, result.metric_value) == ("bleu", 21.5)
    assert result.metric_args == {"signature": "nrefs:1|version:2.6.0"}
    assert result.dataset_type == "text-news-2-text-web"
    assert licence_of(str(card)) == "cc-by-4.0"
    text = card.text
    for part in (
        "from en to de",
        "d_model | 3.1 | 512 | 32 |",
        "| steps | 100,000 | 800 |",
        "text:news × 2 + text:web",
        "nrefs:1|version:2.6.0",
        "`t2t-jax evaluate RUN --split test`, 2026-11-26, 2 × NVIDIA H200",
        (Path(run) / "corpus.sha256").read_text().strip(),
        f't2t_jax.load("{_NAME}")',
        f"t2t-jax translate --workdir {_NAME} --input FILE",
        "Inputs of more than 1,024 subwords",
    ):
        assert part in text
    assert "secret" not in str(card)
    assert "$" not in text


def test_the_metadata_of_a_card_have_the_scores_of_the_published_parameters(run, tmp_path):
    """Neither those of others nor those of a part of the set."""
    other = tmp_path / "run"
    shutil.copytree(run, other)
    record_scores(other, _SCORE | {"bleu": 99.0, "num_sentences": 5})
    record_scores(other, _SCORE | {"bleu": 98.0, "ema_decays": [0.9]})
    record_scores(other, _SCORE | {"bleu": 97.0, "checkpoints": [400]})
    (other / "README.md").write_text("---\nlicense: mit\n---\n")  # a page of the user's own
    with refused("needs a license"):
        main(["publish", str(other), str(tmp_path / "out")])
    assert main(["publish", str(other), str(tmp_path / "out"), *_LICENCE]) == 0
    card = ModelCard((tmp_path / "out/README.md").read_text(encoding="utf-8"))
    assert [one.metric_value for one in card.data.eval_results] == [21.5]


def test_a_published_run_is_copied_with_its_card(run, hub, tmp_path):
    assert main(["publish", run, _NAME, *_LICENCE]) == 0
    assert main(["publish", _NAME, str(tmp_path / "mine")]) == 0
    files = hub.models["someone/en-de"].commits[hub.models["someone/en-de"].refs["main"]]
    assert {path.name: path.read_bytes() for path in (tmp_path / "mine").iterdir()} == files
    _alike(tmp_path / "mine", run)
    with refused("has no checkpoint to resume from; omit --with-state"):
        main(["publish", _NAME, str(tmp_path / "state"), "--with-state"])
    with refused("is published, and has one set of parameters; omit --av"):
        main(["publish", _NAME, str(tmp_path / "other"), "--average", "1"])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([_NAME], "needs a license; set --licence, such as apache-2.0, mit"),
        ([_NAME, "--licence", "apache2.0"], "licence apache2.0; did you mean apache-2.0?"),
        (["OUT", *_LICENCE, "--private"], "--private is for hf://NAME/MODEL, not for"),
        (["OUT", *_LICENCE, "--revision", "a"], "--revision is for hf://NAME/MODEL, not for"),
        (["TAKEN", *_LICENCE], "taken exists and is not empty; choose another directory"),
        ([f"{_NAME}@next", *_LICENCE], "names a revision; set the branch to write with --revision"),
        (["hf://en-de", *_LICENCE], "hf://en-de names no model"),
        ([_NAME, *_LICENCE, "--step", "7"], "has no step 7"),
        (
            [_NAME, *_LICENCE, "--with-state", "--average", "1"],
            "publishes the run unchanged; omit --average, --step and --dtype",
        ),
    ],
)
def test_a_mistake_is_one_line_and_publishes_nothing(flags, message, run, hub, tmp_path):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/mine").write_text("mine")
    places = {"OUT": str(tmp_path / "out"), "TAKEN": str(tmp_path / "taken")}
    with refused(match=message):
        main(["publish", run, *(places.get(one, one) for one in flags)])
    assert not hub.models
    assert not (tmp_path / "out").exists()


@pytest.mark.thorough
def test_no_right_to_write_and_a_public_model_are_refused(run, hub, monkeypatch):
    hub.models["someone/en-de"] = Model()
    with refused("exists and is public; make it private on the hub"):
        main(["publish", run, _NAME, *_LICENCE, "--private"])
    monkeypatch.setenv("HF_TOKEN", "wrong")
    with refused("denies access; run: hf auth login"):
        main(["publish", run, "hf://other/en-de", *_LICENCE])
    with refused("denies access; run: hf auth login"):
        main(["publish", run, _NAME, *_LICENCE])
    assert len(hub.models["someone/en-de"].commits) == 1


def test_a_corpus_below_another_one_is_named_without_either_directory():
    text = "text:/home/someone/wmt, and of text:/home/someone/wmt/secret/news"
    corpora = text.split(", and of ")
    for order in (corpora, corpora[::-1]):
        assert card._without_directories(text, order) == "text:wmt, and of text:news"


def test_every_licence_is_one_that_the_hub_lists():
    assert check_licence("GPL-3.0") == "gpl-3.0"
    assert check_licence("openrail++") == "openrail++"
    assert licence_of("# A model\n\nlicense: mit\n") is None


@pytest.mark.thorough
def test_killed_while_uploading_and_again(run, hub, tmp_path):
    hub.may_store.clear()
    environment = {
        **os.environ,
        "HF_ENDPOINT": constants.ENDPOINT,
        "HF_HUB_CACHE": str(tmp_path / "cache"),
        "HF_HUB_DISABLE_XET": "1",
        "TMPDIR": str(tmp_path),
    }
    command = [sys.executable, "-m", "t2t_jax", "publish", run, _NAME, *_LICENCE]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as program:
        assert hub.uploading.wait(60)
        program.kill()
    hub.may_store.set()
    model = hub.models["someone/en-de"]
    assert list(model.commits.values()) == [{}]
    assert subprocess.run(command, env=environment, capture_output=True).returncode == 0
    assert len(model.commits) == 2
    _alike(_NAME, run)


@pytest.mark.thorough
def test_a_training_goes_on_elsewhere_exactly(tiny_run, hub, tmp_path, capsys):
    """What a fetched state goes on to is what the run itself goes on to."""
    config = load_config(str(tiny_run.folder / "tiny.py")).replace(tiny_run.without_dev)
    half = config.replace({"training.num_train_steps": 6})
    run, mine = tmp_path / "run", tmp_path / "mine"
    assert t2t_jax.train(half, run).exit_code == 0
    assert main(["publish", str(run), _NAME, *_LICENCE, "--with-state"]) == 0
    files = hub.models["someone/en-de"].commits[hub.models["someone/en-de"].refs["main"]]
    patterns = tuple(one.rstrip("*") for one in (*RUN_FILES, *STATE_FILES))
    assert all(name.startswith(patterns) for name in files)
    assert {name.split("/")[1] for name in files if name.startswith("checkpoints/")} == {"6"}
    assert t2t_jax.load(_NAME).steps == t2t_jax.load(run).steps
    assert not [name for _, name in hub.asked if "/resolve/" in name and "checkpoints" in name]
    assert main(["publish", _NAME, str(mine), "--with-state"]) == 0
    for workdir in (run, mine):
        assert t2t_jax.train(config, workdir).exit_code == 0
    assert tiny_run.losses(mine) == tiny_run.losses(run)
    found, expected = (t2t_jax.load(workdir, average=1) for workdir in (mine, run))
    assert found.steps == expected.steps == (12,)
    jax.tree.map(np.testing.assert_array_equal, found.params, expected.params)
    assert t2t_jax.load(mine).steps == (12,)
    # It is a run like any other now, and is published as one.
    assert not {"model.safetensors", "SHA256SUMS", "README.md"} & {*os.listdir(mine)}
    with refused("needs a license"):
        main(["publish", str(mine), str(tmp_path / "again")])
