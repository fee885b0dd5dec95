"""Exported programs, which JAX alone runs, find what the model that they were made of finds."""

import dataclasses
import subprocess
import sys

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from jax import export
from safetensors.numpy import load_file

from t2t_jax.interchange.formats import write_model
from t2t_jax.interchange.program import _Programs
from tests.interchange.models import OPTIONS, portable, real_pairs, translator_of
from tests.selection import thorough_after


@pytest.fixture(scope="module", params=thorough_after(1, ["paper", "modern"]))
def exported(request, tmp_path_factory):
    model = portable(OPTIONS[request.param])
    directory = tmp_path_factory.mktemp("program") / "out"
    write_model(model, "program", directory)
    return model, directory


def _load(directory, name):
    program = export.deserialize(bytearray((directory / f"{name}.jax").read_bytes()))
    assert program.platforms == ("cpu", "cuda", "tpu")
    return program


def _padded(model, lines):
    rows = np.zeros((8, model.config.data.max_length), np.int32)
    for row, tokens in zip(rows, model.vocabulary.encode(lines), strict=False):
        row[: len(tokens)] = tokens
    return rows


def test_the_search_finds_the_same_tokens(exported):
    model, directory = exported
    lines = real_pairs()[0][:7]  # and a row of padding
    found, log_probs = _load(directory, "search").call(
        load_file(directory / "parameters.safetensors"), _padded(model, lines)
    )
    ours = translator_of(model).nbest(lines, 1)
    for tokens, log_prob, (best,) in zip(found[:7], log_probs, ours, strict=False):
        assert tuple(int(token) for token in tokens if token) == best.tokens
        np.testing.assert_allclose(log_prob, best.log_prob, rtol=1e-4)
    assert not np.any(found[7])


@pytest.mark.thorough
def test_the_search_keeps_the_constraints_of_the_config():
    model = portable(OPTIONS["paper"])
    [line, *_] = real_pairs()[0]
    [word, *_] = translator_of(model).translate([line])[0].split()
    constraints = {"decoding.forbidden": (word,), "decoding.no_repeat_ngram_size": 1}
    model = dataclasses.replace(model, config=model.config.replace(constraints))
    flat = flatten_dict(translator_of(model).params, sep=".")
    found, _ = jax.jit(_Programs.of(model).search)(flat, _padded(model, [line]))
    [[best]] = translator_of(model).nbest([line], 1)
    assert tuple(int(token) for token in found[0] if token) == best.tokens
    assert word not in best.text.split()
    assert len(set(best.tokens)) == len(best.tokens)


def test_the_steps_make_a_greedy_search(exported):
    model, directory = exported
    lines = real_pairs()[0][:8]
    parameters = load_file(directory / "parameters.safetensors")
    state = _load(directory, "encode").call(parameters, _padded(model, lines))
    step = jax.jit(_load(directory, "step").call)
    tokens, found = np.full(8, 2, np.int32), []
    for position in range(12):
        logits, state = step(parameters, state, tokens, np.int32(position))
        tokens = np.argmax(logits, axis=-1).astype(np.int32)
        found.append(tokens)
    ours = translator_of(model).nbest(lines, 1, beam_size=1)
    for row, (best,) in zip(np.array(found).T, ours, strict=True):
        length = min(12, len(best.tokens))
        assert tuple(row[:length]) == best.tokens[:length]


def test_the_readme_of_the_directory_translates_without_the_package(exported):
    _, directory = exported
    readme = (directory / "README.md").read_text(encoding="utf-8")
    program = "\n".join(line[4:] for line in readme.splitlines() if line.startswith("    "))
    assert "t2t_jax" not in program
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=directory,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1
