"""The neutral form: a run goes out and comes in again as it was."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import t2t_jax
from t2t_jax.__main__ import main
from t2t_jax.extras.interchange.formats import read_model, write_model
from t2t_jax.extras.interchange.run import write_run
from t2t_jax.tasks.language_modelling import generate
from t2t_jax.workdir import check_workdir
from tests.extras.interchange.models import OPTIONS, portable, real_pairs, translator_of
from tests.refusals import refused
from tests.selection import thorough_after

_LINES = real_pairs()[0][:6]


@pytest.mark.parametrize("name", thorough_after(1, ["modern", "paper", "untied"]))
def test_a_model_comes_back_as_a_run_that_translates_alike(name, tmp_path):
    model = portable(OPTIONS[name])
    write_model(model, "safetensors", tmp_path / "out")
    write_run(read_model("safetensors", tmp_path / "out"), tmp_path / "run", {"from": "a test"})
    loaded = t2t_jax.load(tmp_path / "run")
    assert loaded.config == model.config
    assert loaded.steps == (7,)
    assert loaded.nbest(_LINES, 2) == translator_of(model).nbest(_LINES, 2)


def test_the_commands_bring_a_model_out_and_in_bit_for_bit(tmp_path, capsys):
    write_run(portable({}), tmp_path / "run", {})
    run, out, again, last = (str(tmp_path / name) for name in ("run", "out", "again", "last"))
    assert main(["export", run, "--to", "safetensors", out]) == 0
    assert main(["import", "safetensors", out, again]) == 0
    assert main(["export", again, "--to", "safetensors", last]) == 0
    with refused("last exists and is not empty; choose another"):
        main(["export", run, "--to", "safetensors", last])
    assert f"{again} is a run with the model from {out}" in capsys.readouterr().out
    for file in Path(out).iterdir():
        assert file.read_bytes() == (Path(last) / file.name).read_bytes()


def test_an_imported_run_is_not_trained_on_in_its_place(tmp_path):
    model = portable({})
    write_run(model, tmp_path / "run", {})
    with refused("holds a model that was imported"):
        check_workdir(model.config, tmp_path / "run")


def _with_other_arrays(out):
    save_file({"a": np.zeros(1)}, out / "model.safetensors")


def _with_another_vocabulary(out):
    file = out / "model.safetensors"
    about = {"version": 1, "steps": [], "vocabulary": "none"}
    save_file(load_file(file), file, {"t2t_jax": json.dumps(about)})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda out: (out / "model.safetensors").write_bytes(b"12"), "or no safetensors file"),
        (lambda out: (out / "model.safetensors").unlink(), "not a directory that t2t-jax export"),
        (lambda out: (out / "config.json").write_text("{}"), "config lacks the section"),
        (lambda out: (out / "vocabulary.model").write_bytes(b"?"), "not a SentencePiece model"),
        (_with_other_arrays, "was not written by t2t-jax export"),
        (_with_another_vocabulary, "is not the vocabulary that"),
    ],
)
def test_damaged_models_are_refused_in_one_line(damage, message, tmp_path):
    out = tmp_path / "out"
    write_model(portable({}), "safetensors", out)
    damage(out)
    with refused(match=message):
        main(["import", "safetensors", str(out), str(tmp_path / "run")])
    assert not (tmp_path / "run").exists()


_TEXT = {"model.architecture": "decoder_only", "data.task": "language_modelling"}


@pytest.mark.thorough
def test_a_language_model_comes_back_and_continues_text_alike(tmp_path):
    model = portable(_TEXT | {"model.position": "rotary", "model.norm_order": "pre"})
    write_model(model, "safetensors", tmp_path / "out")
    write_run(read_model("safetensors", tmp_path / "out"), tmp_path / "run", {"from": "a test"})
    prompts = ["The file", "No"]
    expected = generate(translator_of(model), prompts, max_tokens=8)
    assert generate(t2t_jax.load(tmp_path / "run"), prompts, max_tokens=8) == expected
