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
    sources, targets = vocabulary.encode(text["sources"]), vocabulary.encode_targets(
        text["targets"]
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
@pytest.mark.parametrize("search", ["greedy", "beam"])
def test_the_search_finds_what_that_of_fairseq_finds(name, search):
    model, (_, text) = imported(name), golden(name)
    found = translator_of(model).nbest(
        text["sources"], 1, beam_size=1 if search == "greedy" else 5, length_penalty=0.0
    )
    tokens = [best.tokens for (best,) in found]
    pieces = model.vocabulary.target_pieces(tokens)
    assert [[p for p in row if p != "</s>"] for row in pieces] == text[search]
