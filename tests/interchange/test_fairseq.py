"""Imported checkpoints of fairseq: what fairseq itself computed and found with them."""

import argparse
import json
import pickle
import shutil
import zipfile
from functools import cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sacremoses

import t2t_jax
from t2t_jax import UserError
from t2t_jax.batch import Batch, one_a_row
from t2t_jax.decoding.translations import Hypothesis
from t2t_jax.interchange import fairseq
from t2t_jax.interchange.fairseq import read
from t2t_jax.interchange.portable import PortableModel
from t2t_jax.interchange.runs import write_run
from t2t_jax.interchange.torch_file import tensors_of
from t2t_jax.modules.models import make_model
from tests.interchange.models import translator_of
from tests.selection import thorough_after

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


@pytest.mark.parametrize("name", thorough_after(1, _MODELS))
def test_logits_are_those_of_fairseq(name):
    model, (logits, text) = imported(name), golden(name)
    translator = translator_of(model)
    network = make_model(model.config, len(model.vocabulary), None)
    sources = padded(model.vocabulary.encode(text["sources"]))
    targets = padded(model.vocabulary.encode_targets(text["targets"]))
    batch = Batch(one_a_row(sources), one_a_row(targets))
    apply = jax.jit(partial(network.apply, deterministic=True))
    own = apply({"params": translator.params}, batch)
    order = [*_SPECIAL, *range(4, logits.shape[-1])]
    there = np.asarray(targets != 0)
    np.testing.assert_allclose(
        np.asarray(own)[there], logits[:, :, order][there], rtol=1e-5, atol=1e-5
    )


def padded(rows: list[list[int]]) -> jax.Array:
    longest = max(map(len, rows))
    return jnp.array([row + [0] * (longest - len(row)) for row in rows], jnp.int32)


@pytest.mark.parametrize("name", thorough_after(1, _MODELS))
def test_greedy_search_finds_what_that_of_fairseq_finds(name):
    model, (_, text) = imported(name), golden(name)
    found = translator_of(model).nbest(text["sources"], 1, beam_size=1)
    assert [subwords(model, best) for (best,) in found] == text["greedy"]


@pytest.mark.thorough
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


def test_options_become_fields_of_the_config():
    assert imported("wmt14").config.model.share_embeddings
    assert imported("wmt14").config.model.position == "sinusoidal_t2t"
    assert imported("wmt14").steps == (180,)
    iwslt = imported("iwslt").config.model
    assert (iwslt.norm_order, iwslt.feed_forward, iwslt.position) == ("pre", "gelu", "learned")
    assert iwslt.source_vocab_size == 168
    assert iwslt.max_positions == 50  # the table of sources has 60
    assert iwslt.share_target_embedding
    assert iwslt.embedding_norm
    assert not imported("old").config.model.share_target_embedding
    assert not imported("flores").config.model.scale_embeddings
    assert imported("flores").config.model.position == "none"


def test_an_imported_run_translates(tmp_path):
    write_run(imported("wmt14"), tmp_path / "run", {"format": "fairseq"})
    (_, text) = golden("wmt14")
    translator = t2t_jax.load(tmp_path / "run")
    (line,) = translator.translate(text["sources"][:1], length_penalty=0.0)
    subwords, _ = text["beam"][0]
    words = " ".join([*subwords, ""]).replace("@@ ", "").split()
    assert line == sacremoses.MosesDetokenizer("de").detokenize(words)


class Code:
    """An object whose pickle creates a file when it is read by others."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self):
        return Path.touch, (self.canary,)


def save(content: object, path: Path) -> Path:
    """Write a file as `torch.save` does, of what has no tensors."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(content, protocol=2))
    return path


def test_code_in_a_checkpoint_is_not_executed(tmp_path):
    canary = tmp_path / "canary"
    file = save({"model": {}, "args": Code(canary)}, tmp_path / "model.pt")
    with pytest.raises(
        UserError, match=r"model\.pt has code, which calls .* nothing of it was exec"
    ):
        read(file)
    assert not canary.exists()


def test_damaged_and_foreign_files_are_refused(tmp_path):
    for name in ("wmt14", "iwslt"):  # the older format and the newer
        whole = (_PLACE / "fairseq" / name / "checkpoint_best.pt").read_bytes()
        for size in (0, 100, len(whole) // 2, len(whole) - 10):
            cut = tmp_path / "cut.pt"
            cut.write_bytes(whole[:size])
            with pytest.raises(UserError, match=r"cut\.pt is damaged, or no file of PyTorch"):
                read(cut)
    bert = save({"bert.embeddings.word_embeddings.weight": 1.0}, tmp_path / "bert.bin")
    with pytest.raises(UserError, match=r"bert\.bin is no checkpoint of fairseq"):
        read(bert)
    itself = argparse.Namespace(arch="transformer")
    itself.itself = itself
    with pytest.raises(UserError, match=r"model\.pt is damaged, .*: it holds itself"):
        read(save({"model": {}, "args": itself}, tmp_path / "model.pt"))
    with pytest.raises(UserError, match=r"missing\.pt cannot be read"):
        read(tmp_path / "missing.pt")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"arch": "lstm"}, "arch='lstm'"),
        ({"arch": "bert_base"}, "arch='bert_base'"),
        ({"arch": "transformer_lm_big"}, "arch='transformer_lm_big'"),
        ({"adaptive_softmax_cutoff": "1000,2000"}, "adaptive_softmax_cutoff='1000,2000'"),
        ({"cross_self_attention": True}, "cross_self_attention=True"),
        ({"quant_noise_pq": 0.1}, "quant_noise_pq=0.1"),
        ({"task": "multilingual_translation"}, "task='multilingual_translation'"),
        ({"activation_fn": "gelu_accurate"}, "activation_fn='gelu_accurate'"),
        ({"decoder_embed_dim": 256}, "decoder_embed_dim=256 beside 512 of the encoder"),
        ({"decoder_output_dim": 256}, "decoder_output_dim=256 beside 512 of the encoder"),
        ({"encoder_normalize_before": True, "decoder_normalize_before": False}, "normalize_before"),
        ({"scale_heads": True, "no_cross_attention": True}, "no_cross_attention=True and scale_"),
    ],
)
def test_what_the_package_does_not_have_is_refused_by_name(options, named, tmp_path):
    args = argparse.Namespace(**{"arch": "transformer", "encoder_layerdrop": 0.1, **options})
    file = save({"model": {}, "args": args}, tmp_path / "model.pt")
    with pytest.raises(UserError, match=r"model\.pt has .* which no model of t2t_jax has") as error:
        read(file)
    assert named in str(error.value)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"encoder_layers": "6"}, "'encoder_layers' is '6', expected int from 1 to 10,000"),
        ({"encoder_embed_dim": 10**30}, "'encoder_embed_dim' is 1000"),
        ({"dropout": [0.1]}, "'dropout' is .*, expected float from 0 to 1"),
        ({"activation_fn": {}}, "'activation_fn' is {}, expected str"),
        ({"source_lang": 7, "target_lang": "de"}, "'source_lang' is 7, expected str"),
        ({"source_lang": "../../x", "target_lang": "de"}, "outside of its directory"),
        ({"source_lang": "x" * 1_000, "target_lang": "de"}, "which no file is called"),
    ],
)
def test_options_of_another_kind_are_refused_by_name(options, named, tmp_path):
    args = argparse.Namespace(**{"arch": "transformer", **options})
    file = save({"model": {}, "args": args}, tmp_path / "model.pt")
    with pytest.raises(UserError, match=named) as refusal:
        read(file)
    assert len(str(refusal.value)) < 600


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x.pop("encoder.layers.0.fc1.bias"), "no array encoder.layers.0.fc1.bias"),
        (lambda x: x.update({"decoder.crf.weight": np.ones(2)}), "the array decoder.crf.weight"),
        (
            lambda x: x.update({"decoder.output_projection.weight": np.ones((200, 16))}),
            "another array decoder.output_projection.weight",
        ),
    ],
)
def test_other_arrays_than_those_of_the_model_are_refused(change, message, monkeypatch):
    def changed(found, path):
        arrays = tensors_of(found, path)
        change(arrays)
        return {name: np.asarray(array, np.float32) for name, array in arrays.items()}

    monkeypatch.setattr(fairseq, "tensors_of", changed)
    with pytest.raises(UserError, match=message):
        read(_PLACE / "fairseq" / "wmt14")


def copy_of(name: str, tmp_path: Path) -> Path:
    return Path(shutil.copytree(_PLACE / "fairseq" / name, tmp_path / name))


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("dict.de.txt", None, r"dict\.de\.txt cannot be read"),
        ("dict.de.txt", "a 3\nb\n", r"dict\.de\.txt, line 2, is 'b', no entry with its count"),
        ("dict.de.txt", "a 3\na 3\n", r"dict\.de\.txt, line 2, has the entry 'a' a second time"),
        ("dict.de.txt", "a 3\nb 3\nc 3\nd 3\n", r"best\.pt has a matrix for 184 entries, .* it 8;"),
        ("bpecodes", None, "no file to split text with; leave one: bpecodes"),
        ("bpecodes", "#version: 0.2\na b c\n", "bpecodes is damaged: merge number 0 is 'a b c'"),
        ("bpecodes", "#version: new\na b\n", "bpecodes is damaged: its merges begin with"),
        ("bpecodes", "", "bpecodes is damaged: merge number 0 is ''"),
        ("spm.model", "x", "has bpecodes and spm.model to split text with"),
        ("checkpoint_best.pt", None, "has no checkpoint"),
    ],
)
def test_a_bad_file_beside_the_checkpoint_is_named(file, content, message, tmp_path):
    directory = copy_of("iwslt", tmp_path)
    if content is None:
        (directory / file).unlink()
    else:
        (directory / file).write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=message):
        read(directory)


def test_shared_embeddings_need_one_dictionary(tmp_path):
    directory = copy_of("wmt14", tmp_path)
    lines = (directory / "dict.de.txt").read_text(encoding="utf-8").split("\n")
    swapped = [lines[1], lines[0], *lines[2:]]
    (directory / "dict.de.txt").write_text("\n".join(swapped), encoding="utf-8")
    with pytest.raises(UserError, match="one matrix for both languages, and the dictionaries"):
        read(directory)


def test_an_entry_that_overwrites_takes_the_place_of_the_other(tmp_path):
    directory = copy_of("iwslt", tmp_path)
    lines = (directory / "dict.de.txt").read_text(encoding="utf-8").split("\n")
    entry = lines[0].split(" ")[0]
    lines[4] = f"{entry} 7 #fairseq:overwrite"
    (directory / "dict.de.txt").write_text("\n".join(lines), encoding="utf-8")
    ids = read(directory).vocabulary
    assert ids.target_pieces([[4, 8]]) == [[entry, entry]]
    assert 8 in ids.encode_targets([entry.removesuffix("@@") + "qqq", entry])[entry[-2:] != "@@"]


def test_of_several_checkpoints_the_best_is_read(tmp_path):
    directory = copy_of("iwslt", tmp_path)
    shutil.copy(directory / "checkpoint_best.pt", directory / "checkpoint_last.pt")
    assert read(directory).steps == (180,)
    (directory / "checkpoint_best.pt").rename(directory / "checkpoint1.pt")
    with pytest.raises(UserError, match=r"the checkpoints checkpoint1\.pt, checkpoint_last\.pt;"):
        read(directory)
    assert read(directory / "checkpoint1.pt").steps == (180,)
