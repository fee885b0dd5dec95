"""A model for an extended vocabulary: new rows are means, and old logits stay as they were."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from t2t_jax.batch import Batch, one_a_row
from t2t_jax.config import DataConfig
from t2t_jax.data.corpus import open_corpus
from t2t_jax.data.vocabularies.extending import Extension, extend_vocabulary
from t2t_jax.interchange.extended import extended_model
from tests.interchange.models import OPTIONS, portable, real_pairs, translator_of, vocabulary
from tests.selection import thorough_after

_TEXT = {"model.architecture": "decoder_only", "data.task": "language_modelling"}
MODELS = {
    "shared": ({}, {"embedding"}),
    "untied": (
        OPTIONS["untied"],
        {"source_embedding", "target_embedding", "output_projection"},
    ),
    "with bias": (OPTIONS["tied-target"], {"source_embedding", "target_embedding", "output_bias"}),
    "decoder alone": (_TEXT, {"embedding"}),
}
"""The fields of models, and the parameters that have entries of the vocabulary."""


@functools.cache
def extension() -> Extension:
    """Three real new subwords, with what they take the place of by hand."""
    found = extend_vocabulary(vocabulary(), open_corpus(DataConfig()).pairs("test"), 3)
    return found._replace(replaced=[[5, 7], [9], [4, 4, 10]], shares=[0.5, 1.0, 0.125])


@pytest.mark.parametrize("name", MODELS)
def test_new_rows_are_the_means_of_those_that_they_replace(name):
    fields, of_entries = MODELS[name]
    model = portable(fields)
    found = extended_model(model, extension())
    assert found.arrays.keys() == model.arrays.keys()
    grown = {key for key in found.arrays if found.arrays[key].shape != model.arrays[key].shape}
    assert grown == of_entries
    for key, old in model.arrays.items():
        new = found.arrays[key]
        assert new.dtype == np.float32
        np.testing.assert_array_equal(new[: len(old)], old)
        by_hand = [(old[5] + old[7]) / 2, old[9], (2 * old[4] + old[10]) / 3]
        if key == "output_bias":
            by_hand += np.log([0.5, 1.0, 0.125])
        if key in of_entries:
            np.testing.assert_allclose(new[len(old) :], by_hand, rtol=1e-6)
    assert found.config == model.config.replace({"data.vocab_size": 503})
    assert found.vocabulary is extension().vocabulary
    assert found.steps == model.steps


@pytest.mark.parametrize("name", ["shared", "with bias"])
def test_the_logits_of_old_entries_are_the_same_bits(name):
    models = [portable(MODELS[name][0])]
    models.append(extended_model(models[0], extension()))
    tokens = one_a_row(jnp.arange(4, 36).reshape(2, 16))
    before, after = (
        translator_of(model).model.logits(translator_of(model).params, Batch(tokens, tokens))
        for model in models
    )
    np.testing.assert_array_equal(after[..., :500], before)
    assert np.isfinite(after).all()
    shares = 1.0 if name == "shared" else np.array(extension().shares)
    means = np.stack([before[..., ids].mean(-1) for ids in extension().replaced], -1)
    np.testing.assert_allclose(after[..., 500:], means + np.log(shares), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", thorough_after(1, ["with bias", "shared"]))
def test_a_greedy_search_for_text_without_new_subwords_finds_the_same(name):
    real = extend_vocabulary(vocabulary(), open_corpus(DataConfig()).pairs("test"), 100)
    model = portable(MODELS[name][0])
    lines = [line for line in real_pairs()[0] if max(real.vocabulary.encode([line])[0]) < 500]
    assert len(lines) > 5
    before, after = (
        translator_of(one).translate(lines, beam_size=1)
        for one in (model, extended_model(model, real))
    )
    assert after == before
