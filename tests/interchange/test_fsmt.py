"""Models of fairseq as transformers has them: their text, their matrices, and what is refused.

`test_seq2seq.py` compares their logits and searches with those of transformers.
"""

import json
import shutil
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from t2t_jax import UserError
from t2t_jax.interchange.formats import read_model, write_model
from t2t_jax.interchange.portable import PortableModel
from tests.interchange.models import altered_json, portable

_GOLDENS = Path(__file__).parents[1] / "goldens" / "seq2seq"
_THEIRS = [1, 2, 0, 3]  # the ids of padding, end, begin and unknown in fairseq
_TARGET, _OUTPUT = "model.decoder.embed_tokens.weight", "model.decoder.output_projection.weight"


@cache
def imported(name: str) -> PortableModel:
    return read_model("fsmt", _GOLDENS / name)


def copied(name: str, place: Path) -> Path:
    return Path(shutil.copytree(_GOLDENS / name, place / "model"))


@pytest.mark.parametrize("name", ["fsmt", "fsmt_joint"])
def test_text_is_normalised_split_and_joined_as_by_their_tokenizer(name):
    vocabulary = imported(name).vocabulary
    texts = np.load(_GOLDENS / name / "texts.npz")
    greedy = np.load(_GOLDENS / name / "goldens.npz")["greedy"].tolist()
    ours = {theirs: number for number, theirs in enumerate(_THEIRS)}
    rows = [[ours.get(one, one) for one in row if one != _THEIRS[0]] for row in greedy]
    silent = [[one for one in row if one != vocabulary.unk_id] for row in rows]  # as they skip it
    assert vocabulary.decode(silent) == texts["texts"].tolist()
    odd = [[one for one in row if one != _THEIRS[0]] for row in texts["odd"].tolist()]
    found = vocabulary.encode(texts["odd_lines"].tolist())
    assert [[_THEIRS[one] if one < 4 else one for one in row] for row in found] == odd


def test_equal_matrices_become_one_and_narrow_networks_get_idle_channels(tmp_path):
    model, joint = imported("fsmt"), imported("fsmt_joint")
    assert joint.config.model.share_embeddings
    assert not model.config.model.share_target_embedding
    assert model.config.data.target_language == "de"
    assert model.config.model.d_ff == 48
    narrow = model.arrays["decoder.layers.1.feed_forward.W_1"]
    assert narrow.shape == (16, 48)
    assert narrow[:, :32].all()
    assert not narrow[:, 32:].any()
    place = copied("fsmt", tmp_path)
    tensors = load_file(place / "model.safetensors")
    del tensors[_TARGET]  # as releases write it in which this one is always the output's too
    save_file(tensors, place / "model.safetensors")
    tied = read_model("fsmt", place)
    assert tied.config.model.share_target_embedding
    np.testing.assert_array_equal(tied.arrays["target_embedding"][4:], tensors[_OUTPUT][4:])


@pytest.mark.parametrize("name", ["fsmt", "fsmt_joint"])
def test_what_goes_in_goes_out(name, tmp_path):
    model = imported(name)
    write_model(model, "fsmt", tmp_path / "out")
    again = read_model("fsmt", tmp_path / "out")
    assert again.config == model.config
    assert again.vocabulary.fingerprint == model.vocabulary.fingerprint
    assert again.arrays.keys() == model.arrays.keys()
    for own, array in model.arrays.items():
        np.testing.assert_array_equal(again.arrays[own], array, err_msg=own)
    before = load_file(_GOLDENS / name / "model.safetensors")
    after = load_file(tmp_path / "out" / "model.safetensors")
    for own in after.keys() & before.keys():
        is_wider = after[own].shape != before[own].shape
        assert is_wider == (name == "fsmt" and "decoder" in own and (".fc1" in own or "2.w" in own))
        if not is_wider:
            np.testing.assert_array_equal(after[own], before[own], err_msg=own)
    for file in ("vocab-src.json", "vocab-tgt.json"):
        theirs, found = (
            (place / file).read_text("utf-8") for place in (_GOLDENS / name, tmp_path / "out")
        )
        assert json.loads(found) == json.loads(theirs)
    merges = [place / "merges.txt" for place in (_GOLDENS / name, tmp_path / "out")]
    assert merges[0].read_bytes() == merges[1].read_bytes()


@pytest.mark.parametrize(
    ("file", "fields", "said"),
    [
        ("config.json", {"model_type": "bart"}, "only 'fsmt'"),
        ("config.json", {"decoder_attention_heads": 2}, "decoder_attention_heads=2"),
        ("config.json", {"src_vocab_size": 9}, "vocab-src.json does not give each of 9 entries"),
        ("config.json", {"pad_token_id": 2}, r"\[2, 2\] as ids of padding and end"),
        ("config.json", {"decoder_start_token_id": 9}, "decoder_start_token_id=9"),
        ("config.json", {"langs": ["en"]}, "are not two"),
        ("tokenizer_config.json", {"do_lower_case": True}, "do_lower_case=True"),
    ],
)
def test_other_models_are_refused(file, fields, said, tmp_path):
    place = copied("fsmt", tmp_path)
    altered_json(place / file, **fields)
    with pytest.raises(UserError, match=said):
        read_model("fsmt", place)


def test_damaged_merges_and_trained_positions_are_named(tmp_path):
    place = copied("fsmt", tmp_path)
    (place / "merges.txt").write_text("a b\nc\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"merges\.txt is damaged: merge number 1 is 'c'"):
        read_model("fsmt", place)
    shutil.copy(_GOLDENS / "fsmt" / "merges.txt", place)
    tensors = load_file(place / "model.safetensors")
    tensors["model.encoder.embed_positions.weight"][5] += 0.1
    save_file(tensors, place / "model.safetensors")
    with pytest.raises(UserError, match="other numbers than sinusoids"):
        read_model("fsmt", place)


def test_a_vocabulary_that_prepares_text_otherwise_is_refused(tmp_path):
    fairseq = read_model("fairseq", _GOLDENS.parent / "fairseq" / "wmt14")
    with pytest.raises(UserError, match="whose vocabulary has normalizes=False"):
        write_model(fairseq, "fsmt", tmp_path / "out")
    with pytest.raises(UserError, match="a SharedVocabulary in place of a MosesVocabulary"):
        write_model(portable({}), "fsmt", tmp_path / "out")
    assert not list(tmp_path.iterdir())
