"""GPT-2 of transformers goes in, computes the same, and goes out again."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from t2t_jax import UserError, load
from t2t_jax.__main__ import main
from t2t_jax.batch import EOS_ID, PAD_ID, Batch, one_a_row
from t2t_jax.extras.interchange.formats import read_model, write_model
from t2t_jax.tasks.language_modelling import generate
from tests.extras.interchange.models import (
    GOLDENS,
    assert_same_arrays,
    copied,
    portable,
    translator_of,
)

_GPT2 = GOLDENS / "pretrained" / "gpt2"
_LINES = [
    "The file could not be opened.",
    "No devices were found on this network",
    "a small house, and a café",
    "devices",
]


@pytest.fixture(scope="module")
def model():
    return read_model("gpt2", _GPT2)


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    return dict(np.load(_GPT2 / "goldens.npz"))


def test_logits_are_those_of_transformers(model, golden):
    translator, order = translator_of(model), model.vocabulary.order
    by_their_ids = np.argsort(order)[order.count(-1) :]
    for n in range(len(_LINES)):
        ids = [order.index(token) for token in golden[f"ids_{n}"].tolist()]
        assert ids[0] == EOS_ID
        targets = one_a_row(jnp.array([[*ids[1:], EOS_ID]]))
        batch = Batch(one_a_row(jnp.zeros((1, 0), jnp.int32)), targets)
        [logits] = np.asarray(jax.jit(translator.model.logits)(translator.params, batch))
        theirs = golden[f"logits_{n}"]
        np.testing.assert_allclose(logits[:, by_their_ids], theirs, rtol=1e-4, atol=1e-4)


def test_text_is_split_as_by_transformers(model, golden):
    vocabulary = model.vocabulary
    for n, ids in enumerate(vocabulary.encode(_LINES)):
        assert [vocabulary.order[token] for token in ids[:-1]] == golden[f"ids_{n}"][1:].tolist()
        assert ids[-1] == EOS_ID
    assert vocabulary.decode(vocabulary.encode(_LINES)) == _LINES


def test_spellings_make_up_the_text(model):
    vocabulary, line = model.vocabulary, "the small café"
    [ids] = vocabulary.encode([line])
    assert b"".join(map(vocabulary.spelling, ids)).decode() == line
    assert vocabulary.spelling(PAD_ID) == vocabulary.spelling(EOS_ID) == b""


def test_what_goes_in_goes_out(model, tmp_path):
    out = tmp_path / "out"
    write_model(model, "gpt2", out)
    before, after = load_file(_GPT2 / "model.safetensors"), load_file(out / "model.safetensors")
    assert_same_arrays(after, before)
    theirs = json.loads((_GPT2 / "config.json").read_text())
    for name, value in json.loads((out / "config.json").read_text()).items():
        assert theirs.get(name) in (value, None), name
    again = read_model("gpt2", out)
    assert again.config == model.config
    assert again.vocabulary.fingerprint == model.vocabulary.fingerprint


def test_an_imported_model_is_a_run(tmp_path, capsys):
    run = tmp_path / "run"
    assert main(["import", "gpt2", str(_GPT2), str(run)]) == 0
    assert "is a run" in capsys.readouterr().out
    [text] = generate(load(run), ["the small"], max_tokens=3, beam_size=1)
    assert isinstance(text, str)
    assert main(["export", str(run), str(tmp_path / "out"), "--to", "gpt2"]) == 0


def test_padding_is_never_generated(model):
    translator = translator_of(model)
    texts = generate(translator, [""] * 3, max_tokens=20, temperature=2.0, beam_size=1)
    assert len(texts) == 3
    assert translator.params["output_bias"][PAD_ID] == -1e9


def test_a_missing_tokenizer_says_how_it_is_made(tmp_path):
    place = copied("gpt2", tmp_path)
    (place / "tokenizer.json").unlink()
    with pytest.raises(UserError, match="AutoTokenizer"):
        read_model("gpt2", place)


def test_other_models_cannot_go_out(tmp_path):
    with pytest.raises(UserError, match="cannot hold this model"):
        write_model(portable({}), "gpt2", tmp_path / "out")
