"""CTranslate2, an engine that is not ours, computes the same with what was exported."""

import dataclasses
import json
import re
from pathlib import Path

import ctranslate2
import numpy as np
import pytest

from t2t_jax import UserError, score
from t2t_jax.batch import EOS_ID
from t2t_jax.extras.interchange.formats import write_model
from tests.extras.interchange.models import OPTIONS, portable, real_pairs, subwords, translator_of
from tests.programs import run_python
from tests.selection import thorough_after

REFUSED = {
    "additive": "model.attention_kind='additive' in place of 'scaled_dot_product' or 'dot_product'",
    "query-key-norm": "model.query_key_norm=True in place of False",
    "window": "model.attention_window=4 in place of None",
    "narrow-keys": "model.d_v=None in place of 2",
}


@pytest.mark.parametrize(
    "name", thorough_after(5, [name for name in OPTIONS if name not in REFUSED])
)
def test_ctranslate2_finds_translations_as_probable(name, tmp_path):
    _check_scores(portable(OPTIONS[name]), *real_pairs(), tmp_path / "out")


def _check_scores(model, sources, targets, path):
    """Compare the log-probabilities of CTranslate2 with ours, token by token."""
    write_model(model, "ctranslate2", path)
    engine = ctranslate2.Translator(str(path), intra_threads=1)
    theirs = engine.score_batch(subwords(model, sources), subwords(model, targets))
    ours = score(translator_of(model), sources, targets)
    for line, expected in zip(theirs, ours, strict=True):
        np.testing.assert_allclose(line.log_probs, expected.token_log_probs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_norms_of_a_deep_norm_keep_their_epsilon(norm, tmp_path):
    fields = {"model.norm": norm, "model.norm_order": "deep", "model.norm_epsilon": 1e-3}
    model = portable({**fields, "model.share_embeddings": False})
    small = {name: array * 0.03 for name, array in model.arrays.items() if ".norm." in name}
    # The first norm of a stack has another epsilon, which counts little beside a large variance.
    small |= {name: 30 * model.arrays[name] for name in ("source_embedding", "target_embedding")}
    model = dataclasses.replace(model, arrays={**model.arrays, **small})
    _check_scores(model, *(side[:8] for side in real_pairs()), tmp_path / "out")


@pytest.mark.parametrize("name", ["paper", "modern"])
def test_ctranslate2_finds_the_same_subwords(name, tmp_path):
    model = portable(OPTIONS[name])
    sources, _ = real_pairs()
    write_model(model, "ctranslate2", tmp_path / "out")
    engine = ctranslate2.Translator(str(tmp_path / "out"), intra_threads=1)
    ours = translator_of(model).nbest(sources, 1, beam_size=1)
    theirs = engine.translate_batch(
        subwords(model, sources), beam_size=1, max_decoding_length=80, min_decoding_length=0
    )
    for found, (best,) in zip(theirs, ours, strict=True):
        (own,) = model.vocabulary.pieces([[token for token in best.tokens if token != EOS_ID]])
        assert found.hypotheses[0][: len(own)] == own  # which may have been cut at its longest


def test_the_readme_of_the_directory_translates(tmp_path):
    model = portable(OPTIONS["paper"])
    write_model(model, "ctranslate2", tmp_path / "out")
    readme = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    program = "\n".join(line[4:] for line in readme.splitlines() if line.startswith("    "))
    line = "It's a well-known problem: 3 & 4."
    greedy = re.sub("beam_size=[0-9]+", "beam_size=1", program).replace("Hello, world!", line)
    done = run_python("-c", greedy, code=0, cwd=tmp_path / "out", OMP_NUM_THREADS="1")
    (found,) = done.stdout.splitlines()
    (ours,) = translator_of(model).translate([line], beam_size=1)
    # A model that was never trained writes on to its longest, which is another one.
    assert len(ours) > 20
    assert found[: len(ours) - 10] == ours[:-10]


def test_the_readme_searches_as_the_run_does(tmp_path):
    model = portable({"decoding.min_length": 3, "decoding.no_repeat_ngram_size": 2})
    fields = {"decoding.forbidden_ids": (7, 9), "decoding.temperature": 0.5, "decoding.top_k": 5}
    drawn = dataclasses.replace(model, config=model.config.replace(fields))
    [pieces] = model.vocabulary.pieces([[7, 9]])
    said = []
    for name, one in (("searched", model), ("drawn", drawn)):
        write_model(one, "ctranslate2", tmp_path / name)
        readme = (tmp_path / name / "README.md").read_text(encoding="utf-8")
        settings = re.search(r"translate_batch\(sources, (.*)\)", readme)
        assert settings is not None
        said.append(settings[1])
    usual = "length_penalty=0.6, min_decoding_length=3, no_repeat_ngram_size=2"
    assert said[0] == f"beam_size=4, {usual}"
    suppressed = f"suppress_sequences={[[piece] for piece in pieces]!r}"
    sampling = "sampling_temperature=0.5, sampling_topk=5, sampling_topp=1.0"
    assert said[1] == f"beam_size=1, {usual}, {suppressed}, {sampling}"


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_weights_have_the_dtype_that_was_asked_for(dtype, tmp_path):
    model = portable(OPTIONS["paper"])
    for one in ("float32", dtype):
        write_model(model, "ctranslate2", tmp_path / one, one)
    whole, small = (Path(tmp_path / one / "model.bin").stat().st_size for one in ("float32", dtype))
    assert small < 0.75 * whole
    config = json.loads((tmp_path / dtype / "config.json").read_text())
    assert config["layer_norm_epsilon"] == 1e-6


def test_an_unknown_dtype_is_refused_with_those_there_are(tmp_path):
    with pytest.raises(UserError, match="cannot store parameters in int4; choose float32 or"):
        write_model(portable({}), "ctranslate2", tmp_path / "out", "int4")
