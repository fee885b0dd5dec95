"""Encoder-decoders of transformers go in, compute the same, and go out again."""

import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from t2t_jax import UserError, load, score, train
from t2t_jax.__main__ import main
from t2t_jax.batch import BOS_ID, EOS_ID, Batch, one_a_row
from t2t_jax.config import DataConfig
from t2t_jax.data.corpus import open_corpus
from t2t_jax.extras.inspect.beam_record import record_search
from t2t_jax.extras.interchange.formats import read_model, write_model
from t2t_jax.extras.interchange.places import new_order
from t2t_jax.extras.interchange.vocabularies.framed import FramedVocabulary
from tests.extras.interchange.models import (
    GOLDENS,
    MODELS,
    altered_json,
    copied,
    golden_model,
    translator_of,
)
from tests.selection import thorough_after

_SEQ2SEQ = GOLDENS / "seq2seq"
_KINDS = [name for name, (folder, _) in MODELS.items() if folder == "seq2seq"]
_SEARCHES = ("greedy", 1), ("beam", 4)
_OTHERS = {"m2m100": ("en", "fr"), "nllb": ("eng", "fra"), "mbart50": ("en", "fr")}
_LINES = 4


def golden(kind: str) -> dict[str, np.ndarray]:
    return dict(np.load(_SEQ2SEQ / kind / "goldens.npz"))


def lines(side: int) -> list[str]:
    return list(open_corpus(DataConfig()).lines("dev")[side])[:_LINES]


def order_of(vocabulary: FramedVocabulary) -> list[int]:
    """Their id of each of our entries."""
    return new_order([""] * len(vocabulary), vocabulary.first)[1].tolist()


@pytest.fixture(scope="module")
def models():
    return {kind: golden_model(kind) for kind in _KINDS}


@pytest.mark.parametrize("kind", thorough_after(2, _KINDS))
def test_texts_and_logits_are_those_of_transformers(models, kind):
    translator, wanted = translator_of(models[kind]), golden(kind)
    order = order_of(translator.vocabulary)
    pad = order[0]
    sources, targets = translator.encode(lines(0)), translator.encode_targets(lines(1))
    for line in range(_LINES):
        source = [one for one in wanted["sources"][line].tolist() if one != pad]
        target = wanted["targets"][line].tolist()[: wanted["lengths"][line]]
        assert [order[one] for one in sources[line]] == source
        assert [order[one] for one in targets[line]][: len(target)] == target
        cut = targets[line][: len(target)]
        batch = Batch(one_a_row(jnp.array([sources[line]])), one_a_row(jnp.array([cut])))
        [found] = np.asarray(jax.jit(translator.model.logits)(translator.params, batch))
        theirs = wanted["logits"].reshape(-1, len(order))
        start = int(wanted["lengths"][:line].sum())
        theirs = theirs[start : start + len(target)]
        np.testing.assert_allclose(found, theirs[:, order], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "search", "beam_size"),
    [
        *((_KINDS[0], *how) for how in _SEARCHES),
        *(
            pytest.param(kind, *how, marks=pytest.mark.thorough)
            for kind in _KINDS[1:]
            for how in _SEARCHES
        ),
        *((kind, "other", 1) for kind in _OTHERS),
    ],
)
def test_tokens_are_those_of_generate(models, kind, search, beam_size):
    translator, wanted = translator_of(models[kind]), golden(kind)
    if search == "other":
        translator = translator.between(*_OTHERS[kind])
    order = order_of(translator.vocabulary)
    found = translator.nbest(lines(0), 1, beam_size=beam_size, max_extra_length=5)
    for [best], row in zip(found, wanted[search].tolist(), strict=True):
        assert [order[one] for one in best.tokens] == [one for one in row if one != order[0]]


@pytest.mark.parametrize("kind", thorough_after(1, ["m2m100", "mbart", "bart"]))
def test_scores_are_those_of_the_search_and_leave_the_mark_out(models, kind):
    translator = translator_of(models[kind])
    [[found]] = translator.nbest(lines(0)[:1], 1, beam_size=1, max_extra_length=100)
    source, target = translator.encode(lines(0)[:1]), list(found.tokens)
    batch = Batch(one_a_row(jnp.array(source)), one_a_row(jnp.array([target])))
    losses = -np.asarray(translator.model.losses(translator.params, batch, 0.0)[1])[0]
    begin = len(translator.vocabulary.target_begin)
    assert found.log_prob == pytest.approx(losses[begin:].sum(), rel=1e-4)
    [line] = score(translator, lines(0)[:1], lines(1)[:1])
    assert line.token_log_probs[:begin] == (0.0,) * begin
    assert all(one < 0 for one in line.token_log_probs[begin:])
    assert score(translator, ["a"], [""])[0].tokens == (EOS_ID,)


def test_a_prefix_follows_the_mark_of_the_language(models):
    translator = translator_of(models["nllb"])
    [[found]] = translator.nbest(["Open the file"], 1, prefixes=["Datei"], beam_size=2)
    begun = translator.encode_targets(["Datei"])[0][:-1]
    assert list(found.tokens[: len(begun)]) == begun
    assert begun[0] == translator.vocabulary.marks["deu_Latn"]
    assert found.text.startswith("Datei")


def test_a_recorded_search_is_given_the_mark_too(models):
    translator = translator_of(models["nllb"])
    [[found]] = translator.nbest(["Open the file"], 1, beam_size=2)
    assert record_search(translator, "Open the file", beam_size=2).winner == found.tokens


def test_each_part_of_a_long_line_has_the_marks(models):
    translator = translator_of(models["m2m100"])
    decoding = translator.configured(max_source_length=8).decoding
    vocabulary = translator.vocabulary
    found = [part.tokens for part in translator.parts(["Open the file. Close it."], decoding)]
    assert len(found) > 2
    assert all(row[0] == vocabulary.marks["en"] and row[-1] == EOS_ID for row in found)
    assert max(map(len, found)) <= 8
    [whole] = translator.encode(["Open the file. Close it."])
    assert [token for row in found for token in row[1:-1]] == whole[1:-1]


@pytest.mark.parametrize("kind", _KINDS)
def test_what_goes_in_goes_out(models, kind, tmp_path):
    form, out = MODELS[kind][1], tmp_path / "out"
    write_model(models[kind], form, out)
    before = load_file(_SEQ2SEQ / kind / "model.safetensors")
    after = load_file(out / "model.safetensors")
    assert before.keys() == after.keys()
    for name, array in before.items():
        given = array[2:] if "embed_positions" in name else array  # positions count from 2
        np.testing.assert_array_equal(after[name][-len(given) :], given, err_msg=name)
    for file in ("config.json", "generation_config.json", "vocab.json"):
        if (_SEQ2SEQ / kind / file).exists():
            theirs = json.loads((_SEQ2SEQ / kind / file).read_text("utf-8"))
            for name, value in json.loads((out / file).read_text("utf-8")).items():
                if name != "forced_eos_token_id":  # which only ends an output that is cut
                    assert theirs.get(name) in (value, None), (file, name)
    again = read_model(form, out)
    assert again.config == models[kind].config
    assert again.vocabulary.fingerprint == models[kind].vocabulary.fingerprint


@pytest.mark.thorough
def test_an_imported_run_translates_into_several_languages_and_trains_on(tmp_path, capfd):
    run, tuned, corpus = tmp_path / "run", tmp_path / "tuned", tmp_path / "corpus"
    names = ["--source-language", "eng", "--target-language", "deu"]
    assert main(["import", "m2m100", str(_SEQ2SEQ / "nllb"), str(run), *names]) == 0
    text, found = tmp_path / "text", {}
    text.write_text("Open the file\n\n", encoding="utf-8")
    for language in ("deu", "fra_Latn"):
        other = ["--input", str(text), "--target-language", language, "--beam-size", "1"]
        capfd.readouterr()
        assert main(["translate", str(run), *other]) == 0
        found[language] = capfd.readouterr().out
        assert found[language].count("\n") == 2
    assert found["deu"] != found["fra_Latn"]
    trained_on(run, tuned, corpus, ("eng", "fra"), 60)
    assert load(tuned).vocabulary.pair == ("eng_Latn", "fra_Latn")


def trained_on(run: Path, tuned: Path, corpus: Path, languages: tuple[str, str], steps: int):
    """Train a run that starts from an imported one, on a few lines in a directory to be made."""
    corpus.mkdir()
    for side, language in enumerate(languages):
        for split in ("train", "dev"):
            (corpus / f"{split}.{language}").write_text(
                "".join(f"{line}\n" for line in lines(side)), encoding="utf-8"
            )
    changes = {
        "data.corpus": f"text:{corpus}", "data.source_language": languages[0],
        "data.target_language": languages[1], "data.max_length": 128,
        "data.source_tokens_per_step": 256, "data.target_tokens_per_step": 256,
        "training.num_train_steps": steps, "training.warmup_steps": 10,
        "training.init_from": str(run), "training.log_every_steps": 20,
        "evaluation.num_sentences": 1,
    }  # fmt: skip
    assert train(load(run).config.replace(changes), tuned).exit_code == 0
    records = map(json.loads, (tuned / "log.jsonl").read_text("utf-8").splitlines())
    losses = [record["loss"] for record in records if "loss" in record]
    assert losses[-1] < 0.8 * losses[0]


def test_entries_without_a_mark_of_a_language_are_refused(tmp_path):
    place = copied("m2m100", tmp_path)
    named = {"additional_special_tokens": [{"content": 5}, {"content": ["__de__"]}, "<mine>"]}
    (place / "special_tokens_map.json").write_text(json.dumps(named), encoding="utf-8")
    with pytest.raises(UserError, match="no language tag, which every m2m_100 has"):
        read_model("m2m100", place)


@pytest.mark.parametrize("kind", ["bart", "gpt2"])
def test_a_missing_library_is_no_damage_of_a_file(kind, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UserError, match=r"needs tokenizers.*interchange") as refused:
        golden_model(kind)
    assert "copy it again" not in str(refused.value)


@pytest.mark.parametrize("name", ["pad_token_id", "decoder_start_token_id"])
def test_sinusoids_that_begin_elsewhere_are_refused(name, tmp_path):
    place, other = copied("nllb", tmp_path), 0 if name == "pad_token_id" else 1
    for file in ("config.json", "generation_config.json"):
        altered_json(place / file, **{name: other})
    with pytest.raises(UserError, match=f"{name}={other}, but t2t_jax supports only"):
        read_model("m2m100", place)


def test_a_model_that_starts_with_padding_goes_out_and_in_again(tmp_path):
    place = copied("bart", tmp_path)
    altered_json(place / "generation_config.json", decoder_start_token_id=1)
    model = read_model("bart", place)
    assert model.config.model.start_token == "padding"
    write_model(model, "bart", tmp_path / "out")
    assert read_model("bart", tmp_path / "out").config == model.config


def test_pairs_of_a_vocabulary_are_made_without_reading_it_again(models, monkeypatch):
    vocabulary = models["nllb"].vocabulary
    monkeypatch.setattr(FramedVocabulary, "__init__", lambda *_: pytest.fail("it is read again"))
    other = vocabulary.between("deu", "fra")
    assert vocabulary.between("eng", "deu") is vocabulary
    monkeypatch.undo()
    again = FramedVocabulary(other.serialized)
    assert again.pair == other.pair == ("deu_Latn", "fra_Latn")
    assert again.encode(["file"]) == other.encode(["file"]) != vocabulary.encode(["file"])
    assert again.encode_targets(["file"]) == other.encode_targets(["file"])
    assert other.between("eng", "deu").serialized == vocabulary.serialized
    assert other.speller is vocabulary


def test_languages_are_named_by_codes_of_the_model(models, tmp_path):
    vocabulary = models["nllb"].vocabulary
    assert vocabulary.between("fra", "eng_Latn").pair == ("fra_Latn", "eng_Latn")
    with pytest.raises(UserError, match="no language 'en' here; there are deu_Latn, eng_Latn"):
        vocabulary.between("en", "deu")
    place = copied("nllb", tmp_path)
    (place / "tokenizer_config.json").unlink()
    (place / "generation_config.json").unlink()
    with pytest.raises(UserError, match="--target-language, such as deu_Latn"):
        read_model("m2m100", place)
    model = read_model("m2m100", place, target_language="fra")
    assert model.config.data.source_language == "eng_Latn"
    assert model.vocabulary.pair == ("eng_Latn", "fra_Latn")
    (place / "tokenizer_config.json").write_text('{"legacy_behaviour": true}', encoding="utf-8")
    legacy = read_model("m2m100", place, target_language="fra").vocabulary
    assert legacy.encode(["file"])[0][-2:] == [EOS_ID, legacy.marks["eng_Latn"]]


def test_a_sentencepiece_model_splits_as_the_tokenizer_does(models, tmp_path):
    place = copied("mbart50", tmp_path)
    (place / "tokenizer.json").unlink()
    vocabulary, theirs = read_model("mbart", place).vocabulary, models["mbart50"].vocabulary
    assert vocabulary.first == theirs.first
    assert vocabulary.marks == theirs.marks
    given = [*lines(0), "Zahlen: 1.234,5 – «ß»", "", "  two   spaces"]
    rows = vocabulary.encode(given)
    assert rows == theirs.encode(given)
    assert vocabulary.decode(rows) == theirs.decode(rows)
    ids = range(len(vocabulary))
    unknown = vocabulary.unk_id
    assert [vocabulary.spelling(one) for one in ids if one != unknown] == [
        theirs.spelling(one) for one in ids if one != unknown
    ]
    write_model(read_model("mbart", place), "mbart", tmp_path / "out")
    assert read_model("mbart", tmp_path / "out").vocabulary.fingerprint == vocabulary.fingerprint


def test_a_model_that_starts_with_its_language_has_that_one_alone(models):
    vocabulary = models["mbart"].vocabulary
    assert vocabulary.encode(["file"])[0][-2:] == [EOS_ID, vocabulary.marks["en_XX"]]
    assert vocabulary.between("fr", "de").pair == ("fr_XX", "de_DE")
    with pytest.raises(UserError, match="import it again with --target-language ro"):
        vocabulary.between("en", "ro")
    other = golden_model("mbart", target_language="ro")
    assert other.config.model.start_token == "begin"
    assert other.vocabulary.marks["ro_RO"] == BOS_ID
