"""GPT-2, BERT and ViT of transformers go in, compute the same, and go out again."""

import json
import shutil
from itertools import count
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from t2t_jax import UserError, load
from t2t_jax.__main__ import main
from t2t_jax.batch import EOS_ID, PAD_ID, Batch, one_a_row
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.decoding.translator import Translator
from t2t_jax.interchange.formats import read_model, write_model
from t2t_jax.tasks.image_classification import TASK as IMAGES
from t2t_jax.tasks.language_modelling import generate
from t2t_jax.tasks.masked_language_modelling import fill
from tests.interchange.models import altered_json, translator_of
from tests.selection import thorough_after

_GOLDENS = Path(__file__).parents[1] / "goldens" / "pretrained"
_KINDS = "gpt2", "bert", "vit"


@pytest.fixture(scope="module")
def models():
    return {kind: read_model(kind, _GOLDENS / kind) for kind in _KINDS}


def golden(kind: str) -> dict[str, np.ndarray]:
    return dict(np.load(_GOLDENS / kind / "goldens.npz"))


def their_logits(translator: Translator, batch: Batch) -> np.ndarray:
    """The logits of a batch, in the order of the original's entries."""
    logits = np.asarray(jax.jit(translator.model.logits)(translator.params, batch))
    order = np.array(translator.vocabulary.order)
    return logits[:, :, np.argsort(order)[(order < 0).sum() :]]


def ours(ids: np.ndarray, vocabulary: Vocabulary) -> np.ndarray:
    return np.array([vocabulary.order.index(token) for token in ids.tolist()])


def test_gpt2_has_the_logits_of_transformers(models):
    translator, wanted = translator_of(models["gpt2"]), golden("gpt2")
    for n in range(4):
        ids = ours(wanted[f"ids_{n}"], translator.vocabulary)
        assert ids[0] == EOS_ID
        targets = one_a_row(jnp.array([[*ids[1:], EOS_ID]]))
        batch = Batch(one_a_row(jnp.zeros((1, 0), jnp.int32)), targets)
        found = their_logits(translator, batch)[0]
        np.testing.assert_allclose(found, wanted[f"logits_{n}"], rtol=1e-4, atol=1e-4)


def test_bert_has_the_logits_of_transformers(models):
    translator, wanted = translator_of(models["bert"]), golden("bert")
    for n in range(4):
        ids = ours(wanted[f"ids_{n}"], translator.vocabulary)
        inputs = one_a_row(jnp.array([ids]))
        found = their_logits(translator, Batch(inputs, inputs))[0]
        np.testing.assert_allclose(found, wanted[f"logits_{n}"], rtol=1e-4, atol=1e-4)


def test_vit_has_the_logits_of_transformers(models):
    translator, wanted = translator_of(models["vit"]), golden("vit")
    images = list(wanted["images"])
    examples = IMAGES.unlabelled(translator.config, translator.vocabulary, images, count(1))
    from t2t_jax.data.batching import Batches

    batches = Batches(examples, translator.config.data, seed=0)
    rows = batches.chosen(0).examples
    logits = jax.jit(translator.model.logits)(translator.params, batches(0))
    found = np.asarray(logits)[: len(rows), 0]
    np.testing.assert_allclose(found, wanted["logits"][rows], rtol=1e-4, atol=1e-4)
    labels = IMAGES.predicted(translator, images)
    names = np.array(["cat", "dog", "tree"])[wanted["logits"].argmax(-1)]
    assert [label.name for [label] in labels] == names.tolist()


@pytest.mark.parametrize("kind", ["gpt2", "bert"])
def test_text_is_split_as_by_transformers(models, kind):
    vocabulary = models[kind].vocabulary
    lines = [
        "The file could not be opened.",
        "No devices were found on this network",
        "a small house, and a café",
        "devices",
    ]
    for n, ids in enumerate(vocabulary.encode(lines)):
        wanted = golden(kind)[f"ids_{n}"].tolist()
        rest = wanted[1:] if kind == "gpt2" else wanted[1:-1]
        assert [vocabulary.order[token] for token in ids[:-1]] == rest
        assert ids[-1] == EOS_ID
    back = vocabulary.decode(vocabulary.encode(lines))
    assert (
        back == lines
        if kind == "gpt2"
        else [line.replace(" ", "") for line in back]
        == [
            "thefilecouldnotbeopened.",
            "nodeviceswerefoundonthisnetwork",
            "asmallhouse,andacafe",
            "devices",
        ]
    )


@pytest.mark.parametrize("kind", ["gpt2", "bert"])
def test_spellings_make_up_the_text(models, kind):
    vocabulary = models[kind].vocabulary
    line = "the small café"
    [ids] = vocabulary.encode([line])
    spelt = b"".join(map(vocabulary.spelling, ids)).decode().strip()
    assert spelt == (line if kind == "gpt2" else "the small cafe")
    assert vocabulary.spelling(PAD_ID) == vocabulary.spelling(EOS_ID) == b""


@pytest.mark.parametrize("kind", _KINDS)
def test_what_goes_in_goes_out(models, kind, tmp_path):
    out = tmp_path / "out"
    write_model(models[kind], kind, out)
    before = load_file(_GOLDENS / kind / "model.safetensors")
    after = load_file(out / "model.safetensors")
    if kind == "bert":  # one vector is added to those of the positions
        types = before.pop("bert.embeddings.token_type_embeddings.weight")
        before["bert.embeddings.position_embeddings.weight"] += types[0]
        assert not after.pop("bert.embeddings.token_type_embeddings.weight").any()
    assert before.keys() == after.keys()
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], array, err_msg=name)
    theirs = json.loads((_GOLDENS / kind / "config.json").read_text())
    if kind == "vit":
        shape = "1, {num_channels}, {image_size}, {image_size}".format(**theirs)
        assert f"torch.rand({shape})" in (out / "README.md").read_text()
    for name, value in json.loads((out / "config.json").read_text()).items():
        assert theirs.get(name) in (value, None), name
    again = read_model(kind, out)
    assert again.config == models[kind].config
    assert again.vocabulary.fingerprint == models[kind].vocabulary.fingerprint


@pytest.mark.parametrize("kind", thorough_after(1, _KINDS))
def test_an_imported_model_is_a_run(models, kind, tmp_path, capsys):
    run = tmp_path / "run"
    assert main(["import", kind, str(_GOLDENS / kind), str(run)]) == 0
    translator = load(run)
    assert "is a run" in capsys.readouterr().out
    if kind == "gpt2":
        [text] = generate(translator, ["the small"], max_tokens=3, beam_size=1)
        assert isinstance(text, str)
        assert main(["export", str(run), str(tmp_path / "out"), "--to", "gpt2"]) == 0
    elif kind == "bert":
        [line] = fill(translator, ["the [MASK] file"])
        assert line.split()[0] == "the"
        assert line.split()[-1] == "file"
        assert "[MASK]" not in line
    else:
        images = tmp_path / "images.npz"
        np.savez(images, x_test=golden("vit")["images"])
        assert main(["predict", str(run), "--input", str(images)]) == 0
        assert set(capsys.readouterr().out.split()) <= {"cat", "dog", "tree"}


def test_padding_is_never_generated(models):
    translator = translator_of(models["gpt2"])
    texts = generate(translator, [""] * 3, max_tokens=20, temperature=2.0, beam_size=1)
    assert len(texts) == 3
    assert translator.params["output_bias"][PAD_ID] == -1e9


@pytest.mark.parametrize(
    ("kind", "changes", "said"),
    [
        ("gpt2", {"model_type": "bloom"}, "only 'gpt2'"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "only False"),
        ("gpt2", {"activation_function": "mish"}, "mish"),
        ("gpt2", {"vocab_size": 7}, "7 entries"),
        ("bert", {"is_decoder": True}, "only False"),
        ("bert", {"num_attention_heads": 5}, "num_heads=5"),
        ("vit", {"id2label": {"1": "a"}}, "id2label"),
        ("vit", {"patch_size": 5}, "patch_size=5"),
    ],
)
def test_other_models_are_refused(kind, changes, said, tmp_path):
    place = tmp_path / "model"
    shutil.copytree(_GOLDENS / kind, place)
    altered_json(place / "config.json", **changes)
    with pytest.raises(UserError, match=said):
        read_model(kind, place)


@pytest.mark.parametrize(
    ("kind", "name"), [("gpt2", "transformer.h.1.ln_1.bias"), ("vit", "classifier.bias")]
)
def test_a_missing_tensor_is_named(kind, name, tmp_path):
    place = tmp_path / "model"
    shutil.copytree(_GOLDENS / kind, place)
    tensors = load_file(place / "model.safetensors")
    del tensors[name]
    save_file(tensors, place / "model.safetensors")
    with pytest.raises(UserError, match=name):
        read_model(kind, place)


def test_a_missing_tokenizer_says_how_it_is_made(tmp_path):
    place = tmp_path / "model"
    shutil.copytree(_GOLDENS / "bert", place)
    (place / "tokenizer.json").unlink()
    with pytest.raises(UserError, match="AutoTokenizer"):
        read_model("bert", place)


def test_other_runs_cannot_go_out(models, tmp_path):
    for kind, other in (("gpt2", "bert"), ("bert", "vit"), ("vit", "gpt2")):
        with pytest.raises(UserError, match="cannot have this model"):
            write_model(models[kind], other, tmp_path / "out")
