"""Altered files of models: refused by name in one line, or taken for what they are."""

import json
import os
import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

from t2t_jax import UserError
from t2t_jax.extras.interchange.formats import read_model, write_model
from t2t_jax.extras.interchange.run import write_run
from tests.extras.interchange.models import (
    MODELS,
    altered_json,
    assert_same_arrays,
    copied,
    golden_model,
    portable,
)

_BIAS = "model.decoder.layers.1.fc2.bias"
_HOSTILE = (None, True, "", "16", [], ["a"], {"a": 1}, 0, -1, 10**9, 10**30, 0.5, float("nan"))


def altered(node: Any) -> Iterator[Any]:
    """A tree of JSON with each of its values in turn replaced by each of those that are hostile."""
    yield from _HOSTILE
    children = dict(node.items() if isinstance(node, dict) else enumerate(node or ()))
    for key in list(children)[:30]:
        if isinstance(children[key], dict | list):
            inner: Iterator[Any] = altered(children[key])
        else:
            inner = iter(_HOSTILE)
        for value in inner:
            new = {**node} if isinstance(node, dict) else [*node]
            new[key] = value
            yield new


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "file"),
    [
        ("gpt2", "config.json"),
        ("nllb", "config.json"),
        ("shared", "config.json"),
        ("shared", "tokenizer_config.json"),
        ("gpt2", "tokenizer.json"),
    ],
)
def test_no_value_of_a_field_is_more_than_one_line(kind, file, tmp_path):
    place = copied(kind, tmp_path)
    content = json.loads((place / file).read_text(encoding="utf-8"))
    if file == "tokenizer.json":  # a few entries stand for all
        content = {name: content[name] for name in content if name != "post_processor"}
    refusals = []
    for new in altered(content):
        (place / file).write_text(json.dumps(new), encoding="utf-8")
        try:
            golden_model(kind, place)
        except UserError as error:
            refusals.append(str(error))
    assert len(refusals) >= len(_HOSTILE) - 1
    for told in refusals:
        assert str(place) in told
        assert len(told.splitlines()) == 1
        assert len(told) < 600


@pytest.mark.parametrize(
    ("kind", "changes", "said"),
    [
        ("gpt2", {"n_embd": None}, r"Expected `int`, got `null` - at `\$\.n_embd`"),
        ("gpt2", {"n_layer": 10**9}, r"Expected `int` <= 10000 - at `\$\.n_layer`"),
        ("gpt2", {"layer_norm_epsilon": [1e-12]}, r"got `array` - at `\$\.layer_norm_epsilon`"),
        ("gpt2", {"n_inner": "64"}, r"Expected `int \| null`, got `str` - at `\$\.n_inner`"),
        ("gpt2", {"attn_pdrop": float("nan")}, r"Expected `float` >= 0.0 - at `\$\.attn_pdrop`"),
        ("nllb", {"d_model": 64}, r"model\.shared\.weight of shape"),
        ("shared", {"d_model": "32"}, r"Expected `int`, got `str` - at `\$\.d_model`"),
        ("shared", {"dropout": None}, r"Expected `float`, got `null` - at `\$\.dropout`"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "only False"),
        ("gpt2", {"vocab_size": 7}, "7 entries"),
        ("gpt2", {"n_head": 5}, "num_heads=5"),
        ("m2m100", {"model_type": "mt5"}, "not 'm2m_100'"),
        ("m2m100", {"activation_function": "mish"}, "mish"),
        ("m2m100", {"decoder_ffn_dim": 64}, "decoder_ffn_dim=64"),
        ("m2m100", {"tie_word_embeddings": False}, "only True"),
        ("m2m100", {"vocab_size": 300}, "an id of its own below vocab_size=300"),
        ("mbart50", {"pad_token_id": 2}, "special ids"),
        ("mbart", {"normalize_before": False}, "only True"),
        ("bart", {"normalize_before": True}, "only False"),
        ("bart", {"max_position_embeddings": 64}, "max_position_embeddings=64"),
        ("nllb", {"encoder_attention_heads": 8, "decoder_attention_heads": 8, "d_model": 8}, "16"),
    ],
)
def test_a_value_is_named_with_its_field_and_what_it_may_be(kind, changes, said, tmp_path):
    place = copied(kind, tmp_path)
    altered_json(place / "config.json", **changes)
    with pytest.raises(UserError, match=said):
        golden_model(kind, place)


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json"])
def test_a_hundred_thousand_levels_are_refused(file, tmp_path):
    place = copied("gpt2", tmp_path)
    (place / file).write_text('{"a":' * 100_000, encoding="utf-8")
    with pytest.raises(UserError, match=rf"{file} is damaged, .* nested too deeply"):
        golden_model("gpt2", place)


def test_a_tokenizer_cuts_and_fills_no_line_and_draws_no_splits(tmp_path):
    place, lines = copied("gpt2", tmp_path), ["the small house"] * 50
    whole = golden_model("gpt2", place).vocabulary.encode(lines)
    file = str(place / "tokenizer.json")
    tokenizer = Tokenizer.from_file(file)
    tokenizer.enable_truncation(max_length=2)
    tokenizer.enable_padding(length=1_000)
    tokenizer.model.dropout = 0.5
    tokenizer.save(file)
    assert golden_model("gpt2", place).vocabulary.encode(lines) == whole


@pytest.mark.parametrize(
    ("kind", "changes", "said"),
    [
        ("nllb", {"unk_token": "[NONE]"}, "no tokenizer of the library tokenizers: .*NONE"),
        ("gpt2", {"continuing_subword_prefix": "zzzz"}, "continuing_subword_prefix together with"),
    ],
)
def test_a_tokenizer_that_fails_or_panics_is_refused(kind, changes, said, tmp_path):
    place = copied(kind, tmp_path)
    content = json.loads((place / "tokenizer.json").read_text(encoding="utf-8"))
    content["model"] |= changes
    (place / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(UserError, match=said):
        golden_model(kind, place)


@pytest.mark.parametrize(
    ("kind", "file"),
    [
        ("gpt2", "config.json"),
        ("gpt2", "tokenizer.json"),
        ("gpt2", "model.safetensors"),
        ("nllb", "model.safetensors.index.json"),
        ("nllb", "pytorch_model.bin"),
        ("shared", "vocab.json"),
        ("shared", "source.spm"),
        ("shared", "tokenizer_config.json"),
        ("safetensors", "model.safetensors"),
        ("safetensors", "config.json"),
        ("safetensors", "vocabulary.model"),
    ],
)
def test_a_named_pipe_is_not_waited_for(kind, file, tmp_path):
    place = tmp_path / "model"
    if kind == "safetensors":
        write_model(portable({}), "safetensors", place)
    else:
        place = copied(kind, tmp_path)
    if kind == "nllb":
        (place / "model.safetensors").unlink()
    (place / file).unlink(missing_ok=True)
    os.mkfifo(place / file)
    with pytest.raises(UserError, match=rf"{file}.* (not a regular file|pipe)|has no {file}"):
        read_model(MODELS.get(kind, ("", kind))[1], place)


def in_two_files(place: Path) -> dict[str, str]:
    """Put the tensors of a model into two files; returns which file has each."""
    tensors = load_file(place / "model.safetensors")
    (place / "model.safetensors").unlink()
    names = sorted(tensors)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for part, own in parts.items():
        save_file({name: tensors[name] for name in own}, place / part)
    places = {name: part for part, own in parts.items() for name in own}
    write_index(place, places)
    return places


def write_index(place: Path, places: dict[str, Any]) -> None:
    index = {"metadata": {"total_size": 1}, "weight_map": places}
    (place / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


@pytest.mark.parametrize("kind", ["gpt2", "nllb", "shared"])
def test_tensors_in_several_files_are_those_in_one(kind, tmp_path):
    place = copied(kind, tmp_path)
    in_two_files(place)
    whole, found = golden_model(kind), golden_model(kind, place)
    assert_same_arrays(found.arrays, whole.arrays)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda places: places.update(x="a.safetensors"), "disagree on the array 'x'; copy both"),
        (lambda places: places.pop("transformer.ln_f.bias"), "'transformer.ln_f.bias'; copy both"),
        (lambda places: places.update(x="../a.safetensors"), "not a file in the same directory"),
        (lambda places: places.update(x="/dev/zero"), "not a file in the same directory"),
        (lambda places: places.update(x="a\nb"), "not a file in the same directory"),
        (lambda places: places.update(x=".."), "cannot be read"),
        (lambda places: places.update(x=300 * "x"), "cannot be read: File name too long"),
        (lambda places: places.update(x="c.safetensors"), "c.safetensors cannot be read"),
        (lambda places: places.update(x=7), r"Expected `str`, got `int` - at `\$\.weight_map"),
    ],
)
def test_an_index_that_says_something_else_is_refused(change, said, tmp_path):
    place = copied("gpt2", tmp_path)
    places = in_two_files(place)
    change(places)
    write_index(place, places)
    with pytest.raises(UserError, match=said):
        golden_model("gpt2", place)


def with_tensors(kind: str, tmp_path: Path, change: Callable[[dict[str, np.ndarray]], Any]) -> Path:
    place = copied(kind, tmp_path)
    tensors = load_file(place / "model.safetensors")
    change(tensors)
    save_file(tensors, place / "model.safetensors")
    return place


def _with(name: str, value: float) -> Callable[[dict[str, np.ndarray]], None]:
    def change(tensors: dict[str, np.ndarray]) -> None:
        array = tensors[name].astype(np.float64 if value == 1e300 else np.float32)
        array.flat[-1] = value
        tensors[name] = array

    return change


def _cast(name: str, dtype: type) -> Callable[[dict[str, np.ndarray]], None]:
    return lambda tensors: tensors.update({name: tensors[name].astype(dtype)})


@pytest.mark.parametrize(
    ("kind", "change", "said"),
    [
        ("gpt2", _with("transformer.ln_f.bias", np.nan), "NaN or .* the array transformer.ln_f.b"),
        ("gpt2", _with("transformer.h.1.ln_1.bias", np.inf), "infinity in the array transf"),
        ("shared", _with("final_logits_bias", 1e300), "infinity in the array final_logits_bias"),
        ("gpt2", _cast("transformer.ln_f.bias", np.int8), "dtype int8 in the array transformer.ln"),
        (
            "gpt2",
            lambda tensors: tensors.update({"lm_head.weight": np.ones((320, 32), np.float32)}),
            "an array lm_head.weight that differs from the shared embedding",
        ),
        *(
            (kind, lambda tensors: tensors.update(adapter=np.ones(2)), "has the array adapter, wh")
            for kind in ("gpt2", "nllb", "shared")
        ),
        (
            "gpt2",
            lambda tensors: tensors.update({"x\x1b[2J\n": np.ones(2)}),
            r"has the array x\\x1b\[2J\\n, which",
        ),
        *(
            (kind, lambda tensors: tensors.pop(_BIAS), re.escape(_BIAS))
            for kind in ("m2m100", "mbart", "bart")
        ),
    ],
)
def test_tensors_that_no_model_has_are_refused_by_name(kind, change, said, tmp_path):
    with pytest.raises(UserError, match=said):
        golden_model(kind, with_tensors(kind, tmp_path, change))


@pytest.mark.parametrize("dtype", ["F8_E4M3", "F8_E5M2"])
def test_numbers_of_eight_bits_are_refused_by_name(dtype, tmp_path):
    place = copied("gpt2", tmp_path)
    about = {"classifier.bias": {"dtype": dtype, "shape": [4], "data_offsets": [0, 4]}}
    header = json.dumps(about).encode()
    content = struct.pack("<Q", len(header)) + header + bytes(4)
    (place / "model.safetensors").write_bytes(content)
    with pytest.raises(UserError, match=rf"dtype {dtype} in the array 'classifier.bias'; import"):
        golden_model("gpt2", place)


def test_a_run_of_arrays_of_other_sizes_names_the_file(tmp_path):
    place = copied("gpt2", tmp_path)
    altered_json(place / "config.json", n_inner=7)
    model = golden_model("gpt2", place)
    with pytest.raises(UserError, match=rf"{place}: the array .* to another model"):
        write_run(model, tmp_path / "run", {"format": "gpt2", "path": str(place)})
    assert not (tmp_path / "run").exists()
