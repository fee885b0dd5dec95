"""Graphs of ONNX, run by onnxruntime alone, compute what the model that they were made of does."""

import json
import subprocess
import sys
from functools import cache
from itertools import islice

import jaxtyping
import numpy as np
import onnxruntime
import pytest

from t2t_jax import UserError
from t2t_jax.batch import Batch, one_a_row, padded
from t2t_jax.config import DataConfig
from t2t_jax.data.corpus import open_corpus
from t2t_jax.interchange.formats import write_model
from tests.interchange.models import OPTIONS, portable, translator_of
from tests.selection import thorough_after

REFUSED = {"model.attention_window": 4, "decoding.forbidden": ("Haus",)}
_CARRIED = {
    **{name: fields for name, fields in OPTIONS.items() if fields.keys().isdisjoint(REFUSED)},
    "pruned": {"model.encoder_heads": 2, "model.cross_heads": 1},
    "wide-in-mup": {"model.parametrisation": "mup", "model.base_width": 8},
    "deep-in-complete": {"model.parametrisation": "complete", "model.norm_order": "pre"},
}


class _Engine:
    """The graphs of a directory, as a program without this package would use them."""

    def __init__(self, directory):
        self.about = json.loads((directory / "model.json").read_text())
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._encoder, self._decoder = (
            onnxruntime.InferenceSession(directory / self.about[name], options)
            for name in ("encoder", "decoder")
        )

    def greedy(self, sources, steps):
        """The tokens, logits and cross-attention of each step."""
        memory = self._encoder.run(self.about["memory"], {"sources": sources})
        state = dict(zip(self.about["memory"], memory, strict=True))
        cache = {
            f"past.{name}": np.zeros([len(sources), *shape], np.float32)
            for name, shape in self.about["cache"].items()
        }
        tokens, found = np.zeros(len(sources), np.int32), []
        for _ in range(steps):
            given = {"tokens": tokens, **state, **cache}
            logits, attention, *arrays = self._decoder.run(None, given)
            tokens, cache = (
                logits.argmax(-1).astype(np.int32),
                dict(zip(cache, arrays, strict=True)),
            )
            found.append((tokens, logits, attention))
        return [np.stack(each, axis=1) for each in zip(*found, strict=True)]

    def translations(self, sources):
        """The tokens of each row up to its end of sentence, which is among them."""
        lengths = (sources != 0).sum(1) + self.about["search"]["max_extra_length"]
        rows = self.greedy(sources, lengths.max())[0]
        cut = (row[:length].tolist() for row, length in zip(rows, lengths, strict=True))
        end = self.about["ids"]["end"]
        return [tuple(row[: row.index(end) + 1] if end in row else row) for row in cut]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A function that writes a model, once for all tests of it, and returns its directory too."""

    @cache
    def written(name, dtype=None):
        model, directory = portable(_CARRIED[name]), tmp_path_factory.mktemp("onnx") / "out"
        write_model(model, "onnx", directory, dtype)
        return model, directory, _Engine(directory)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # sizes are symbols
        yield written


def _lines(count):
    sources, _ = open_corpus(DataConfig()).lines("train")
    return [*islice(sources, count)]


def _padded(model, lines):
    rows = model.vocabulary.encode(lines)
    return padded(rows, len(rows), max(map(len, rows)))


def _found(model, lines):
    return [best.tokens for (best,) in translator_of(model).nbest(lines, 1, beam_size=1)]


@pytest.mark.parametrize("name", thorough_after(1, _CARRIED))
def test_every_step_has_the_logits_and_the_attention_of_the_model(name, written):
    model, _, engine = written(name)
    sources, translator = _padded(model, _lines(3)), translator_of(model)
    tokens, logits, attention = engine.greedy(sources, 9)
    targets = one_a_row(tokens)._replace(segments=np.ones_like(tokens))  # none of it is padding
    batch = Batch(one_a_row(sources), targets)
    ours = translator.model.logits(translator.params, batch)
    np.testing.assert_allclose(logits, ours, atol=2e-6 * max(10, np.abs(ours).max()))
    maps = translator.model.attention_weights(translator.params, batch)["cross"]
    np.testing.assert_allclose(attention, np.einsum("nbhts->btnhs", maps), atol=1e-5)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("paper", 100),
        pytest.param("modern", 1000, marks=pytest.mark.thorough),
    ],
)
def test_greedy_search_finds_the_same_tokens(name, count, written):
    model, _, engine = written(name)
    lines = _lines(count)
    assert engine.translations(_padded(model, lines)) == _found(model, lines)


def test_integers_of_8_bits_find_nearly_the_same(written):
    model, _, engine = written("paper", "int8")
    sources, translator = _padded(model, _lines(20)), translator_of(model)
    tokens, logits, _ = engine.greedy(sources, 20)
    targets = one_a_row(tokens)._replace(segments=np.ones_like(tokens))
    ours = translator.model.logits(translator.params, Batch(one_a_row(sources), targets))
    assert np.mean(np.argmax(ours, -1) == tokens) > 0.95
    assert np.corrcoef(np.ravel(ours), np.ravel(logits))[0, 1] > 0.999


@pytest.mark.parametrize("dtype", thorough_after(1, [None, "int8"]))
def test_the_readme_of_the_directory_translates_without_the_package(dtype, written):
    model, directory, _ = written("paper", dtype)
    readme = (directory / "README.md").read_text(encoding="utf-8")
    program = "\n".join(line[4:] for line in readme.splitlines() if line.startswith("    "))
    assert "jax" not in program
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=directory, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    if dtype is None:
        [[best]] = translator_of(model).nbest(["Hello, world!"], 1, beam_size=1)
        assert done.stdout == f"{best.text}\n"


@pytest.mark.parametrize(("field", "value"), REFUSED.items())
def test_what_graphs_do_not_have_is_refused_by_name(field, value, tmp_path):
    with pytest.raises(UserError, match=f"onnx cannot have this model, which has {field}="):
        write_model(portable({field: value}), "onnx", tmp_path / "out")
