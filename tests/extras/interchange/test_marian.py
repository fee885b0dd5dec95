"""An exported Marian model: what transformers computed with the same arrays."""

import dataclasses
import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from t2t_jax import score
from t2t_jax.batch import PAD_ID
from t2t_jax.extras.interchange.formats import read_model, write_model
from tests.extras.interchange.models import OPTIONS, portable, real_pairs, translator_of
from tests.programs import ROOT
from tests.selection import thorough_after

_GOLDENS = json.loads((ROOT / "tests/goldens" / "marian_goldens.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", thorough_after(2, _GOLDENS))
def test_transformers_computes_the_same(name, tmp_path):
    golden, model = _GOLDENS[name], portable(OPTIONS[name])
    write_model(model, "marian", tmp_path / "out")
    arrays = load_file(tmp_path / "out" / "model.safetensors")
    assert arrays.keys() == golden["sums"].keys()
    for array, (total, weighted) in zip(arrays.values(), golden["sums"].values(), strict=True):
        flat = array.astype(np.float64).ravel()
        np.testing.assert_allclose(flat.sum(), total, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(flat @ np.arange(1, flat.size + 1), weighted, rtol=1e-4, atol=1)
    translator, lines = translator_of(model), len(golden["sources"])
    sources, targets = (side[:lines] for side in real_pairs())
    assert translator.encode(sources) == golden["sources"]
    for own, log_probs in zip(
        score(translator, sources, targets), golden["log_probs"], strict=True
    ):
        np.testing.assert_allclose(own.token_log_probs, log_probs, rtol=2e-5, atol=2e-5)
    greedy = translator.nbest(sources, 1, beam_size=1)
    for (best,), tokens in zip(greedy, golden["greedy"], strict=True):
        shorter = min(len(best.tokens), len(tokens))
        assert list(best.tokens[:shorter]) == tokens[:shorter]


@pytest.mark.parametrize("name", thorough_after(3, _GOLDENS))
def test_ctranslate2_computes_the_same_of_what_its_own_converter_reads(name):
    model, wanted = portable(OPTIONS[name]), _GOLDENS[name]["converted"]
    bias = model.arrays.get("output_bias", np.zeros(len(model.vocabulary), np.float32)).copy()
    bias[PAD_ID] = -1e4  # the converter leaves padding out
    config = model.config.replace({"model.output_bias": True})
    arrays = {**model.arrays, "output_bias": bias}
    without = dataclasses.replace(model, config=config, arrays=arrays)
    sources, targets = (side[: len(wanted)] for side in real_pairs())
    found = score(translator_of(without), sources, targets)
    for own, log_probs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(own.token_log_probs, log_probs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("start", ["begin", "end", "padding"])
def test_padding_comes_last_and_a_target_begins_with_zeros(start, tmp_path):
    model = portable({"model.start_token": start})
    write_model(model, "marian", tmp_path / "out")
    files = [tmp_path / "out" / name for name in ("vocab.json", "config.json")]
    ids, config = (json.loads(file.read_text(encoding="utf-8")) for file in files)
    last = len(model.vocabulary) - 1
    assert (ids["<pad>"], ids["</s>"], config["pad_token_id"]) == (last, 0, last)
    embedding = load_file(tmp_path / "out" / "model.safetensors")["model.shared.weight"]
    assert not embedding[config["decoder_start_token_id"]].any()
    again = read_model("marian", tmp_path / "out")
    sources, targets = (side[:4] for side in real_pairs())
    found = (score(translator_of(one), sources, targets) for one in (model, again))
    for own, other in zip(*found, strict=True):
        np.testing.assert_allclose(own.token_log_probs, other.token_log_probs, atol=1e-4)
