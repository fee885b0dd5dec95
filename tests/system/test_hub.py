"""Runs that open by their names on the hub, which is here a server of this machine."""

import errno
import sys
from contextlib import suppress
from dataclasses import replace

import jax
import numpy as np
import pytest
from huggingface_hub import constants

import t2t_jax
from t2t_jax import UserError
from t2t_jax.__main__ import main
from t2t_jax.commands.train import train_command
from t2t_jax.config import Config, DataConfig
from t2t_jax.data.corpus import open_corpus
from t2t_jax.extras.interchange.formats import write_model
from t2t_jax.run.start import initial_run
from t2t_jax.system.hub import Address, address
from tests.extras.interchange.models import portable
from tests.hub_server import Model, serving
from tests.refusals import refused

NAME = "hf://someone/en-de"
_CANARY = b"cposix\nsystem\n(S'touch /tmp/t2t_jax-canary'\ntR."


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The directories of two exported runs, which differ in the steps of their parameters."""
    folder = tmp_path_factory.mktemp("runs")
    model = portable({})
    for name, steps in (("first", (1, 2)), ("second", (5,))):
        write_model(replace(model, steps=steps), "run", folder / name)
    return [folder / "first", folder / "second"]


def _files(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.fixture
def hub(runs, tmp_path, monkeypatch):
    """A hub with the first run, in a model that has a pickle, too."""
    with serving(monkeypatch, tmp_path / "cache") as server:
        model = server.models["someone/en-de"] = Model()
        model.first = model.commit({**_files(runs[0]), "pytorch_model.bin": _CANARY, "a.pkl": b"1"})
        yield server


def _alike(found, expected):
    jax.tree.map(np.testing.assert_array_equal, found.params, expected.params)
    assert (found.config, found.steps) == (expected.config, expected.steps)


def _refused(message, name=NAME):
    with refused(match=message):
        t2t_jax.load(name)


def test_a_run_opens_by_its_name_and_a_pickle_beside_it_is_never_fetched(
    hub, runs, tmp_path, capsys
):
    _alike(t2t_jax.load(NAME), t2t_jax.load(runs[0]))
    names = {name.rpartition("/")[2] for _, name in hub.asked if "/resolve/" in name}
    assert names == {path.name for path in runs[0].iterdir()}
    assert not [*tmp_path.rglob("*.bin"), *tmp_path.rglob("*.pkl")]
    (tmp_path / "lines").write_text("the dog\n")
    before = {path: path.read_bytes() for path in (tmp_path / "cache").rglob("*") if path.is_file()}
    assert main(["translate", "--workdir", NAME, "--input", str(tmp_path / "lines")]) == 0
    assert capsys.readouterr().out.splitlines() == t2t_jax.load(runs[0]).translate(["the dog"])
    after = {path: path.read_bytes() for path in (tmp_path / "cache").rglob("*") if path.is_file()}
    assert before == after
    initial_run(t2t_jax.load(NAME).config.replace({"training.init_from": NAME}))


def test_a_branch_that_moves_is_followed_and_a_pin_stays(hub, runs):
    first = hub.models["someone/en-de"].first
    assert t2t_jax.load(NAME).steps == (1, 2)
    hub.models["someone/en-de"].commit(_files(runs[1]))
    assert t2t_jax.load(NAME).steps == (5,)
    assert t2t_jax.load(f"{NAME}@{first}").steps == (1, 2)
    hub.models["someone/en-de"].commit(_files(runs[1]), "next")
    assert t2t_jax.load(f"{NAME}@next").steps == (5,)
    _refused(f"{NAME}@none does not exist: the model has no branch, tag or", f"{NAME}@none")


def test_what_the_cache_has_opens_without_a_connection(hub, runs, monkeypatch):
    t2t_jax.load(NAME)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    asked = len(hub.asked)
    assert t2t_jax.load(NAME).steps == (1, 2)
    assert len(hub.asked) == asked
    _refused("cannot be reached, and is not in the cache .*: check the network", "hf://a/other")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    hub.shutdown()
    hub.server_close()
    assert t2t_jax.load(NAME).steps == (1, 2)


@pytest.mark.thorough
def test_a_file_that_was_cut_on_its_way_is_fetched_to_its_end(hub, runs):
    hub.cut["model.safetensors"] = 1
    with suppress(UserError):  # the first versions of the library leave the rest to the next call
        t2t_jax.load(NAME)
    _alike(t2t_jax.load(NAME), t2t_jax.load(runs[0]))


def test_another_hash_is_refused(hub, runs, tmp_path):
    content = bytearray((runs[0] / "model.safetensors").read_bytes())
    content[-1] ^= 1
    hub.instead["model.safetensors"] = bytes(content)
    _refused("model.safetensors is damaged or changed: SHA256SUMS has another hash")


def test_a_file_that_was_cut_in_the_cache_is_refused(hub, tmp_path):
    t2t_jax.load(NAME)
    [file] = (tmp_path / "cache").rglob("model.safetensors")
    file.write_bytes(file.read_bytes()[:1000])
    _refused("model.safetensors is damaged or changed")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"private": True}, "does not exist, or is private: .* hf auth login"),
        ({"gated": True}, "is gated: ask for access on http://.*/someone/en-de, then run: hf auth"),
    ],
)
def test_without_a_right_it_is_refused_and_with_it_opened(hub, change, message, monkeypatch):
    vars(hub.models["someone/en-de"]).update(change)
    monkeypatch.setenv("HF_TOKEN", "wrong")
    _refused(message)
    monkeypatch.setenv("HF_TOKEN", hub.token)
    assert t2t_jax.load(NAME).steps == (1, 2)


def test_what_is_no_run_is_refused(hub):
    hub.models["someone/other"] = Model()
    hub.models["someone/other"].commit({"README.md": b"", "pytorch_model.bin": _CANARY})
    _refused("hf://someone/other has no config.json: t2t-jax publish did not", "hf://someone/other")
    _refused("hf://no/such does not exist, or is private", "hf:/no/such/")
    _refused("hf://no/such does not exist, or is private", "hf://no/such")


def test_the_disk_is_full(hub, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device", "x")

    monkeypatch.setattr("huggingface_hub.snapshot_download", full)
    _refused("cannot be reached: .*No space left on device.*; make room there")


def test_a_run_on_the_hub_is_not_trained_in(hub, tmp_path):
    message = "is on the hub, where runs are read-only; name a directory or a bucket, and upload"
    with pytest.raises(UserError, match=message):
        train_command(["--config", "configs/base.py", "--workdir", "hf://someone/new"])
    with pytest.raises(UserError, match=message):
        t2t_jax.train(Config(), "hf://someone/new")
    assert hub.asked == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("hf://a/b", Address("a/b", None)),
        ("hf://a/b@refs/pr/1", Address("a/b", "refs/pr/1")),
        ("runs/base", None),
        ("s3://a/b", None),
    ],
)
def test_names(name, expected):
    assert address(name) == expected
    assert expected is None or str(expected) == name


@pytest.mark.parametrize("name", ["hf://a", "hf://a/b/c", "hf://a/b@", "hf://../b", "hf://a/b\n"])
def test_what_names_no_model_is_refused(name):
    with pytest.raises(UserError, match="names no model; give hf://NAME/MODEL"):
        address(name)


def test_without_the_library_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    _refused(r"hf://someone/en-de needs huggingface_hub, .*pip install .*\[hub\]'")


def test_shards_are_those_of_a_data_set(hub, tmp_path):
    lines = {"en": b"one\ntwo\n", "de": b"eins\nzwei\n"}
    files = {f"text/train-{n}.{name}": text for n in (0, 1) for name, text in lines.items()}
    files |= {"text/validation-0.en": b"three\n", "text/validation-0.de": b"drei\n", "large": b""}
    hub.models["datasets/me/pairs"] = model = Model()
    model.commit(files)
    place = "hf://datasets/me/pairs{}/text/{{split}}-*.{{language}}"

    def corpus(place):
        name = f"shards:{place}"
        return open_corpus(DataConfig(corpus=name, cache_dir=str(tmp_path / "cache")))

    found = corpus(place.format(""))
    assert found.lines("train") == (["one", "two"] * 2, ["eins", "zwei"] * 2)
    assert found.lines("dev") == (["three"], ["drei"])
    assert not any(path.endswith("/large") for _, path in hub.asked)
    assert corpus(place.format("@main")).fingerprint("train") == found.fingerprint("train")
    with pytest.raises(UserError, match="hf://datasets/me/none does not exist, or is private"):
        corpus("hf://datasets/me/none/*.tsv")
    with pytest.raises(UserError, match="names no files; give hf://datasets/NAME/DATASET/PATH"):
        corpus("hf://me/none/*.tsv")
    with pytest.raises(UserError, match="matches no file"):
        corpus("hf://datasets/me/pairs/none-*.tsv")
