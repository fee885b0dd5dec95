"""Imported checkpoints of fairseq: what fairseq itself computed and found with them."""

import json
import pickle
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import t2t_jax
from t2t_jax import UserError
from t2t_jax.batch import Batch, one_a_row
from t2t_jax.decoding.translator import Hypothesis
from t2t_jax.interchange.fairseq import read
from t2t_jax.interchange.portable import PortableModel
from t2t_jax.interchange.runs import write_run
from t2t_jax.modules.models import make_model
from tests.interchange.models import translator_of

_PLACE = Path(__file__).parents[1] / "goldens"
_MODELS = ("wmt14", "iwslt", "old", "flores")
# Ids of padding, end, begin and unknown in fairseq, which come first here.
_SPECIAL = [1, 2, 0, 3]


@cache
def imported(name: str) -> PortableModel:
    return read(_PLACE / "fairseq" / name)


@cache
def golden(name: str) -> tuple[np.ndarray, dict]:
    with np.load(_PLACE / "fairseq_goldens.npz") as arrays:
        return arrays[f"{name}/logits"], json.loads(str(arrays[f"{name}/text"]))


@pytest.mark.parametrize("name", _MODELS)
def test_lines_are_split_as_fairseq_splits_them(name):
    vocabulary, (_, text) = imported(name).vocabulary, golden(name)
    sources, targets = (
        vocabulary.encode(text["sources"]),
        vocabulary.encode_targets(text["targets"]),
    )
    assert [row[:-1] for row in vocabulary.pieces(sources)] == text["source_subwords"]
    assert [row[:-1] for row in vocabulary.target_pieces(targets)] == text["target_subwords"]


@pytest.mark.parametrize("name", _MODELS)
def test_logits_are_those_of_fairseq(name):
    model, (logits, text) = imported(name), golden(name)
    translator = translator_of(model)
    network = make_model(model.config, len(model.vocabulary), None)
    sources = padded(model.vocabulary.encode(text["sources"]))
    targets = padded(model.vocabulary.encode_targets(text["targets"]))
    batch = Batch(one_a_row(sources), one_a_row(targets))
    own = network.apply({"params": translator.params}, batch, deterministic=True)
    order = [*_SPECIAL, *range(4, logits.shape[-1])]
    there = np.asarray(targets != 0)
    np.testing.assert_allclose(
        np.asarray(own)[there], logits[:, :, order][there], rtol=1e-5, atol=1e-5
    )


def padded(rows: list[list[int]]) -> jax.Array:
    longest = max(map(len, rows))
    return jnp.array([row + [0] * (longest - len(row)) for row in rows], jnp.int32)


@pytest.mark.parametrize("name", _MODELS)
def test_greedy_search_finds_what_that_of_fairseq_finds(name):
    model, (_, text) = imported(name), golden(name)
    found = translator_of(model).nbest(text["sources"], 1, beam_size=1)
    assert [subwords(model, best) for (best,) in found] == text["greedy"]


@pytest.mark.parametrize("name", _MODELS)
def test_beam_search_finds_the_best_by_the_log_probabilities_of_fairseq(name):
    model, (_, text) = imported(name), golden(name)
    assert model.config.decoding.beam_size == 5
    found = translator_of(model).nbest(text["sources"], 1, length_penalty=0.0)
    for (best,), (expected, log_prob) in zip(found, text["beam"], strict=True):
        assert subwords(model, best) == expected
        np.testing.assert_allclose(best.log_prob, log_prob, rtol=1e-4, atol=1e-5)


def subwords(model: PortableModel, hypothesis: Hypothesis) -> list[str]:
    (pieces,) = model.vocabulary.target_pieces([hypothesis.tokens])
    return [piece for piece in pieces if piece != "</s>"]
