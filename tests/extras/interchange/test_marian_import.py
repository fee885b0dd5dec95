"""Marian models of transformers go in, compute the same, and go out again."""

import json
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t_jax import Translator, load
from t2t_jax.__main__ import main
from t2t_jax.batch import Batch, one_a_row
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.extras.interchange.formats import read_model, write_model
from tests.extras.interchange.models import (
    GOLDENS,
    altered_json,
    assert_same_arrays,
    copied,
    real_pairs,
    translator_of,
)
from tests.extras.interchange.test_seq2seq import trained_on
from tests.refusals import refused
from tests.selection import thorough_after

_OPUS = GOLDENS / "opus"
_KINDS = "shared", "separate"


def _their_ids(kind: str, side: int) -> dict[str, int]:
    file = "target_vocab.json" if kind == "separate" and side else "vocab.json"
    ids: dict[str, int] = json.loads((_OPUS / kind / file).read_text(encoding="utf-8"))
    return ids


def _renamed(ids: np.ndarray, kind: str, side: int, vocabulary: Vocabulary) -> np.ndarray:
    """Their ids as ours, subword by subword."""
    theirs = {number: piece for piece, number in _their_ids(kind, side).items()}
    size = len(vocabulary) if side else vocabulary.source_size
    name = vocabulary.target_pieces if side else vocabulary.pieces
    ours = {piece: number for number, piece in enumerate(name([range(size)])[0])}
    return np.vectorize(lambda number: ours[theirs[number]])(ids)


@pytest.fixture(scope="module", params=_KINDS)
def imported(request: pytest.FixtureRequest) -> tuple[str, Translator, dict[str, np.ndarray]]:
    """A model's name, the model, and what transformers computed with it."""
    kind: str = request.param
    golden = dict(np.load(_OPUS / kind / "goldens.npz"))
    return kind, translator_of(read_model("marian", _OPUS / kind)), golden


def test_logits_are_those_of_transformers(imported):
    kind, translator, golden = imported
    vocabulary = translator.vocabulary
    sources, targets = (
        _renamed(golden[name], kind, side, vocabulary)
        for side, name in enumerate(("sources", "targets"))
    )
    batch = Batch(one_a_row(jnp.array(sources)), one_a_row(jnp.array(targets)))
    logits = jax.jit(translator.model.logits)(translator.params, batch)
    order = _renamed(np.arange(len(vocabulary)), kind, 1, vocabulary)
    for own, theirs, line in zip(np.asarray(logits), golden["logits"], targets, strict=True):
        real = line != 0
        np.testing.assert_allclose(own[real][:, order], theirs[real], rtol=1e-5, atol=2e-5)


def test_sources_are_split_as_by_transformers(imported):
    kind, translator, golden = imported
    lines = real_pairs()[0][: len(golden["sources"])]
    ids = _renamed(golden["sources"], kind, 0, translator.vocabulary)
    assert translator.encode(lines) == [[*row[row != 0].tolist()] for row in ids]


@pytest.mark.parametrize(
    ("search", "beam_size"),
    [("greedy", 1), ("beam", 4), pytest.param("averaged", 4, marks=pytest.mark.thorough)],
)
def test_tokens_are_those_of_generate(imported, search, beam_size):
    kind, translator, golden = imported
    lines = real_pairs()[0][: len(golden["sources"])]
    penalty = 1.0 if search == "averaged" else 0.0
    options = {"beam_size": beam_size, "length_penalty": penalty, "max_extra_length": 5}
    found = translator.nbest(lines, 1, **options)
    wanted = _renamed(golden[search], kind, 1, translator.vocabulary)
    for (best,), tokens in zip(found, wanted, strict=True):
        assert list(best.tokens) == tokens[tokens != 0].tolist()


@pytest.mark.parametrize("kind", _KINDS)
def test_what_was_imported_goes_out_and_in_again_unchanged(kind, tmp_path):
    model = read_model("marian", _OPUS / kind)
    write_model(model, "marian", tmp_path / "out")
    again = read_model("marian", tmp_path / "out")
    assert again.vocabulary.serialized == model.vocabulary.serialized
    assert_same_arrays(again.arrays, model.arrays)
    assert again.config.model == model.config.model


def test_the_positions_of_marian_can_be_asked_for():
    model = read_model("marian", _OPUS / "shared", positions="marian")
    assert model.config.model.position == "sinusoidal_t2t"
    ours = read_model("marian", _OPUS / "shared").arrays["embedding"]
    sines, cosines = np.split(model.arrays["embedding"], 2, axis=1)
    np.testing.assert_array_equal(ours[:, ::2], sines)
    np.testing.assert_array_equal(ours[:, 1::2], cosines)


@pytest.mark.thorough
def test_an_imported_run_translates_and_trains_on(tmp_path):
    run, positions = tmp_path / "run", ["--positions", "marian"]
    assert main(["import", "marian", str(_OPUS / "shared"), str(run), *positions]) == 0
    lines = ["Cancel", "", "Open the file"]
    before = load(run).translate(lines, beam_size=1)
    assert len(before) == 3
    assert before[1] == ""
    assert load(run).config.model.compute_dtype == "float32"  # also where bfloat16 is faster
    trained_on(run, tmp_path / "tuned", tmp_path / "corpus", ("en", "de"), 50)


def _with_generation(place: Path, settings: dict[str, object]) -> None:
    (place / "generation_config.json").write_text(json.dumps(settings), encoding="utf-8")


@pytest.mark.parametrize(
    ("settings", "fields"),
    [
        ({"num_beams": 6, "max_length": 512}, {"beam_size": 6, "max_extra_length": 511}),
        ({"num_beams": 2, "length_penalty": 0.5}, {"length_penalty": 0.5, "beam_size": 2}),
        ({}, {"beam_size": 1, "length_penalty": 1.0, "beam_rule": "transformers"}),
        ({"max_length": 512, "max_new_tokens": 40}, {"max_extra_length": 40}),
        ({"min_length": 3}, {"min_length": 2}),
        ({"min_new_tokens": 3, "no_repeat_ngram_size": 2}, {"min_length": 3}),
        ({"no_repeat_ngram_size": 2}, {"no_repeat_ngram_size": 2}),
        ({"bad_words_ids": [[531], [0]]}, {"forbidden_ids": (0,)}),
        ({"suppress_tokens": [1]}, {"forbidden_ids": (0, 2)}),
        ({"do_sample": True, "top_p": 0.5}, {"temperature": 1.0, "top_k": 50, "top_p": 0.5}),
        ({"temperature": 0.5}, {"temperature": 0.0}),
        ({"_from_model_config": True, "use_cache": True, "repetition_penalty": 1.0}, {}),
        ({"early_stopping": True, "num_beams": 1, "eos_token_id": [0]}, {}),
    ],
)
def test_a_search_is_that_of_the_generation_config(settings, fields, tmp_path, capsys):
    place = copied("shared", tmp_path)
    _with_generation(place, settings)
    decoding = read_model("marian", place).config.decoding
    assert {name: getattr(decoding, name) for name in fields} == fields
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"num_beams": 2, "early_stopping": True}, "early_stopping=True"),
        ({"num_beams": 2, "early_stopping": "never"}, "early_stopping='never'"),
        ({"bad_words_ids": [[531], [7, 8]]}, "bad_words_ids=[[531], [7, 8]]"),
        ({"suppress_tokens": [5, 0]}, "suppress_tokens=[5, 0]"),  # 0 is the end
        ({"repetition_penalty": 1.2}, "repetition_penalty=1.2"),
        ({"num_beams": 2, "do_sample": True}, "do_sample=True"),
        ({"length_penalty": -1.0}, "length_penalty=-1.0"),
        ({"forced_bos_token_id": 7, "not_yet_known": "x"}, "=7 and not_yet_known='x'"),
        ({"renormalize_logits": True, "min_new_tokens": 2}, "renormalize_logits=True"),
    ],
)
@pytest.mark.parametrize("file", ["generation_config.json", "config.json"])
def test_a_setting_without_a_counterpart_is_named(file, settings, named, tmp_path, capsys):
    place = copied("shared", tmp_path)
    if file == "config.json":  # where transformers looks if there is no other file
        (place / "generation_config.json").unlink()
        altered_json(place / file, **settings)
        named = named.partition(" and not_yet_known")[0]  # it has fields of the network too
    else:
        _with_generation(place, settings)
    read_model("marian", place)
    [line] = capsys.readouterr().err.splitlines()
    assert named in line
    assert "no counterpart" in line


_WRONG_SEARCHES = [
    ({"num_beams": 0}, r"generation_config.json: decoding\.beam_size=0"),
    ({"num_beams": "6"}, "num_beams"),
    ({"max_length": 1}, r"generation_config.json: decoding\.max_extra_length=0"),
    ({"bad_words_ids": [[999]]}, r"has \[999\] in bad_words_ids"),
    ({"bad_words_ids": [7]}, r"got `int` - at `\$\.bad_words_ids\[0\]`"),
    ({"bad_words_ids": [[]]}, r"length >= 1 - at `\$\.bad_words_ids\[0\]`"),
    ({"suppress_tokens": [True]}, r"got `bool` - at `\$\.suppress_tokens\[0\]`"),
]


def test_another_end_of_sentence_in_the_generation_config_is_named(tmp_path, capsys):
    place = copied("shared", tmp_path)
    _with_generation(place, {"eos_token_id": [0, 5]})
    read_model("marian", place)
    assert "eos_token_id=[0, 5], for which" in capsys.readouterr().err


@pytest.mark.parametrize(("words", "number"), [([[531]], 1), ([[531], [7]], 2), ([[7, 8]], 0)])
def test_logits_that_are_normalised_again_give_forbidden_entries_no_probability(
    words, number, tmp_path
):
    place = copied("shared", tmp_path)
    settings = {"renormalize_logits": True, "bad_words_ids": words, "num_beams": 3}
    _with_generation(place, settings)
    before, after = (read_model("marian", one) for one in (_OPUS / "shared", place))
    expected = before.arrays["output_bias"].copy()
    expected[[*after.config.decoding.forbidden_ids]] = -1e4
    assert np.count_nonzero(expected == -1e4) == number
    np.testing.assert_array_equal(after.arrays["output_bias"], expected)


def test_languages_of_three_letters_can_be_given_other_names(tmp_path):
    names = ["--source-language", "en", "--target-language", "de"]
    model, run = str(_OPUS / "shared"), tmp_path / "run"
    assert read_model("marian", _OPUS / "shared").config.data.source_language == "eng"
    assert main(["import", "marian", model, str(run), *names]) == 0
    data = load(run).config.data
    assert (data.source_language, data.target_language) == ("en", "de")


def _of_type(model_type: str, place: Path) -> None:
    config = {"model_type": model_type, "hidden_size": 32}
    (place / "config.json").write_text(json.dumps(config), encoding="utf-8")


def _truncated(place: Path) -> None:
    file = place / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])


def _without_an_entry(place: Path) -> None:
    (place / "vocab.json").write_text('{"<unk>": 1, "</s>": 0}', encoding="utf-8")


def _no_weights(place: Path) -> None:
    (place / "model.safetensors").unlink()


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (partial(_of_type, "bert"), r"config.json: version 0\.3 removed BERT models; the git tag"),
        (partial(_of_type, "bloom"), "model of type 'bloom', not 'marian'; .* safetensors, marian"),
        (_truncated, "model.safetensors is damaged"),
        (_without_an_entry, "does not give each of"),
        (_no_weights, "has neither model.safetensors nor pytorch_model.bin"),
        *((partial(_with_generation, settings=wrong), why) for wrong, why in _WRONG_SEARCHES),
    ],
)
def test_what_is_damaged_foreign_or_hostile_is_refused(damage, why, tmp_path):
    place = copied("shared", tmp_path)
    damage(place)
    with refused(match=why):
        main(["import", "marian", str(place), str(tmp_path / "run")])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", thorough_after(1, _KINDS))
def test_ctranslate2_finds_the_same_with_what_was_imported(kind, tmp_path):
    ctranslate2 = pytest.importorskip("ctranslate2")
    model = read_model("marian", _OPUS / kind)
    write_model(model, "safetensors", tmp_path / "neutral")
    write_model(read_model("safetensors", tmp_path / "neutral"), "ctranslate2", tmp_path / "out")
    golden = np.load(_OPUS / kind / "goldens.npz")
    vocabulary = model.vocabulary
    wanted = _renamed(golden["greedy"], kind, 1, vocabulary)
    lines = real_pairs()[0][: len(wanted)]
    sources = vocabulary.pieces([row[:-1] for row in vocabulary.encode(lines)])
    engine = ctranslate2.Translator(str(tmp_path / "out"), intra_threads=1)
    for source, tokens in zip(sources, wanted, strict=True):
        [found] = engine.translate_batch(
            [source], beam_size=1, min_decoding_length=0, max_decoding_length=len(source) + 6
        )
        [own] = vocabulary.target_pieces([tokens[tokens > 1].tolist()])
        assert found.hypotheses[0] == own
