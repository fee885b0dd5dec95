"""Encoders alone learn to tag, to classify, to fill in words and to recognise images."""

import io
import itertools
import json

import jax
import numpy as np
import pytest

import t2t_jax
from t2t_jax import Config, UserError, evaluate
from t2t_jax.__main__ import main
from t2t_jax.data.corpus import open_corpus
from t2t_jax.extras.encoders.tasks import MASKED, TAGGING
from t2t_jax.workdir import read_config, read_scores
from tests.commands import families
from tests.tiny import tiny_sizes
from tests.trained import records_of

TAGS = {"the": "DT", "a": "DT", "dog": "NN", "house": "NN", "old": "JJ", "red": "JJ", "runs": "VB"}
MODEL = {
    **families.MODEL,
    **tiny_sizes(32, (1, 1)),
    "model.norm_order": "pre",
    "model.dropout_rate": 0.0,
    "model.compute_dtype": "float32",
    "training.num_train_steps": 60,
    "training.warmup_steps": 10,
    "training.peak_learning_rate": 1e-2,
    "training.label_smoothing": 0.0,
    "training.log_every_steps": 20,
    "checkpoint.every_steps": 30,
    "checkpoint.every_minutes": None,
    "evaluation.every_steps": 60,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Sentences, with a tag for each word and a label: the number of their nouns."""
    place = tmp_path_factory.mktemp("labelled")
    rng = np.random.default_rng(0)
    for split, count in (("train", 200), ("dev", 20), ("test", 12)):
        lines = [list(rng.choice(list(TAGS), rng.integers(2, 7))) for _ in range(count)]
        tags = [[TAGS[word] for word in line] for line in lines]
        labels = ["some" if "NN" in line else "none" for line in tags]
        for suffix, text in (("txt", lines), ("tags", tags)):
            written = "".join(" ".join(line) + "\n" for line in text)
            (place / f"{split}.{suffix}").write_text(written)
        (place / f"{split}.label").write_text("".join(f"{label}\n" for label in labels))
    return place


def config_of(folder, task, **changes):
    own = {
        "model.architecture": "encoder_only",
        "data.task": task,
        "data.corpus": f"text:{folder}",
        "data.cache_dir": str(folder / "cache"),
        "model.share_embeddings": task == "masked_language_modelling",
    }
    return Config().replace(MODEL).replace(own | changes)


@pytest.fixture(scope="module")
def tagger(folder, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("tagger") / "run"
    assert (
        t2t_jax.train(config_of(folder, "tagging", **{"data.batching": "pack"}), workdir).exit_code
        == 0
    )
    return workdir


def test_a_tagger_learns_the_tag_of_every_word(tagger, folder, capsys, monkeypatch):
    model = t2t_jax.load(tagger)
    assert model.vocabulary.labels == ("DT", "JJ", "NN", "VB")
    found = evaluate(model, split="test")
    assert found.scores.accuracy == 100
    assert found.loss.tokens == found.scores.num_labels
    assert found.hypotheses == (folder / "test.tags").read_text().splitlines()
    assert read_config(tagger).model.source_vocab_size == model.vocabulary.source_size == 40

    assert main(["evaluate", "--workdir", str(tagger), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] == 100
    assert read_scores(tagger)[-1]["num_labels"] == found.scores.num_labels

    lines = "the old dog runs\n\n  \na red   house\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
    assert main(["predict", str(tagger)]) == 0
    assert capsys.readouterr().out == "DT JJ NN VB\n\n\nDT JJ NN\n"
    with pytest.raises(UserError, match="line 3 has 40002 subwords"):  # blank lines count
        TAGGING.lines(t2t_jax.load(tagger), ["dog", " ", "dog " * 40_000])


def test_tags_do_not_depend_on_what_else_is_tagged(tagger):
    model = t2t_jax.load(tagger)
    lines = ["the dog", "", "a red old house runs", "dog"]
    assert TAGGING.lines(model, lines) == [*(TAGGING.lines(model, [line])[0] for line in lines)]
    assert TAGGING.lines(model, [" "]) == [""]


def test_probabilities_are_written_beside_the_labels(tagger, tmp_path):
    source, output = tmp_path / "in", tmp_path / "out"
    source.write_text("the dog\n")
    arguments = ["--input", str(source), "--output", str(output), "--probabilities"]
    assert main(["predict", str(tagger), *arguments]) == 0
    label, number = output.read_text().split()[0].split(":")
    assert label == "DT"
    assert 0.25 < float(number) <= 1


@pytest.mark.thorough
def test_a_classifier_learns_the_label_of_a_sentence(folder, tmp_path, capsys):
    assert t2t_jax.train(config_of(folder, "classification"), tmp_path / "run").exit_code == 0
    model = t2t_jax.load(tmp_path / "run")
    assert evaluate(model, split="test").scores.accuracy > 90
    source = tmp_path / "in"
    source.write_text("the dog runs\n\nthe old red runs\n")
    assert main(["predict", str(tmp_path / "run"), "--input", str(source)]) == 0
    assert capsys.readouterr().out.splitlines()[-3:] == ["some", "", "none"]
    assert main(["report", "--workdir", str(tmp_path / "run")]) == 0
    assert "predicts no labels" in capsys.readouterr().out


@pytest.fixture(scope="module")
def masked(folder, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("masked") / "run"
    config = config_of(folder, "masked_language_modelling", **{"data.masked_share": 0.3})
    assert t2t_jax.train(config, workdir).exit_code == 0
    return workdir


def test_the_order_seed_chooses_the_hidden_subwords(folder):
    config = config_of(folder, "masked_language_modelling", **{"training.seed": 3})
    corpus = open_corpus(config.data)
    vocabulary = MASKED.vocabulary(config, corpus)
    for fields, expected in (({}, 3), ({"training.order_seed": 4}, 4), ({"training.seed": 5}, 5)):
        changed = config.replace(fields)
        assert MASKED.training_examples(changed, corpus, vocabulary).seed == expected


@pytest.mark.thorough
def test_hidden_words_are_filled_in(masked, capsys, monkeypatch):
    model = t2t_jax.load(masked)
    scores = evaluate(model, split="test").scores
    assert scores.num_labels > 10
    assert scores.best == -scores.masked_nll
    assert scores.masked_nll < np.log(40)
    lines = ["the <mask> runs", "", "a red house"]
    filled = MASKED.lines(model, lines)
    assert filled[1:] == ["", "a red house"]
    assert "<mask>" not in filled[0]
    assert filled[0].startswith("the ")
    assert "  " not in filled[0]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("\n".join(lines).encode())))
    assert main(["predict", str(masked)]) == 0
    assert capsys.readouterr().out.splitlines() == filled
    assert main(["evaluate", "--workdir", str(masked)]) == 0
    assert "hidden subwords" in capsys.readouterr().out


@pytest.mark.thorough
def test_a_tagger_starts_from_an_encoder_that_fills_in_words(masked, folder, tmp_path):
    start = {"training.init_from": str(masked), "training.num_train_steps": 1}
    start["training.peak_learning_rate"] = 1e-30
    assert t2t_jax.train(config_of(folder, "tagging", **start), tmp_path / "run").exit_code == 0
    ours, theirs = t2t_jax.load(tmp_path / "run"), t2t_jax.load(masked)
    assert ours.vocabulary.source.fingerprint == theirs.vocabulary.fingerprint
    for name in ("encoder", "embedding"):
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6),
            ours.params[name],
            theirs.params[name],
        )
    assert ours.params["output_projection"]["embedding"].shape == (4, 32)
    other = config_of(folder, "tagging", **start, **{"model.d_ff": 48})
    with pytest.raises(UserError, match="another model"):
        t2t_jax.train(other, tmp_path / "other")


@pytest.mark.thorough
@pytest.mark.parametrize("task", ["tagging", "masked_language_modelling"])
def test_an_interrupted_run_goes_on_exactly(task, folder, tmp_path):
    def logged(workdir):
        records = (records_of(workdir, "train"), records_of(workdir, "dev"))
        return [(record["step"], record["loss"]) for record in itertools.chain(*records)]

    # The length of the schedule does not depend on how far a run has come.
    steps = {
        "training.log_every_steps": 2,
        "evaluation.every_steps": 8,
        "checkpoint.every_steps": 4,
    }
    steps |= {"training.num_train_steps": 8, "model.dropout_rate": 0.1, "training.ema_decay": 0.9}
    steps |= {"model.compute_dtype": "bfloat16", "parallel.loss_chunks": 2}
    steps |= {"parallel.remat": "layer", "parallel.tokens_per_device": 64}
    whole = config_of(folder, task, **steps)
    assert t2t_jax.train(whole, tmp_path / "whole").exit_code == 0
    part = whole.replace({"training.num_train_steps": 4})
    assert t2t_jax.train(part, tmp_path / "part").exit_code == 0
    assert t2t_jax.train(whole, tmp_path / "part").exit_code == 0
    wanted = logged(tmp_path / "whole")
    found = [one for one in logged(tmp_path / "part") if one in wanted]
    assert found == wanted


@pytest.mark.thorough
def test_images_are_recognised(tmp_path, capsys):
    rng = np.random.default_rng(0)
    # A bright half: the left one, or the right one.
    side = rng.integers(0, 2, 120)
    images = rng.integers(0, 80, (120, 4, 4)).astype(np.uint8)
    for image, right in zip(images, side, strict=True):
        image[:, 2 * right : 2 * right + 2] += 120
    names = np.array(["left", "right"])[side]
    parts = {"x_train": images[:80], "y_train": names[:80], "x_val": images[80:100]}
    parts |= {"y_val": names[80:100], "x_test": images[100:], "y_test": names[100:]}
    np.savez(tmp_path / "images.npz", **parts)
    changes = {
        **families.IMAGES,
        "data.task": "image_classification",
        "data.corpus": f"npz:{tmp_path / 'images.npz'}",
    }
    assert t2t_jax.train(Config().replace(MODEL).replace(changes), tmp_path / "run").exit_code == 0
    assert main(["evaluate", "--workdir", str(tmp_path / "run"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["accuracy"] == 100
    arguments = ["predict", str(tmp_path / "run"), "--input", str(tmp_path / "images.npz")]
    assert main(arguments) == 0
    assert capsys.readouterr().out.split() == names[100:].tolist()
    with pytest.raises(UserError, match="reads images"):
        main(arguments[:2])


@pytest.mark.parametrize(
    ("task", "suffix", "text", "said"),
    [
        ("tagging", "tags", "DT NN\nDT\n", "line 2 in the train split .* needs 2 label"),
        ("classification", "label", "a\n\n", "line 2 in the train split .* needs 1 label"),
        ("classification", "label", "\n\n", "has no labels"),
    ],
)
def test_lines_with_other_numbers_of_labels_are_named(task, suffix, text, said, tmp_path):
    (tmp_path / "train.txt").write_text("the dog\na house\n")
    (tmp_path / f"train.{suffix}").write_text(text)
    with pytest.raises(UserError, match=said):
        t2t_jax.train(config_of(tmp_path, task, **{"data.vocab_size": 16}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_labels_that_train_does_not_have_count_as_mistakes(tagger, folder, tmp_path):
    for suffix in ("txt", "tags"):
        (tmp_path / f"train.{suffix}").write_text((folder / f"train.{suffix}").read_text())
    (tmp_path / "test.txt").write_text("the dog\n")
    (tmp_path / "test.tags").write_text("DT NNP\n")
    model = t2t_jax.load(tagger)
    corpus = open_corpus(config_of(tmp_path, "tagging").data)
    found = evaluate(model, corpus, "test")
    assert found.loss.tokens == 1
    assert found.loss.sentence_tokens.tolist() == [1]
    assert found.scores.accuracy == 50


def test_trees_have_tags_and_the_bundled_corpus_languages(tmp_path):
    (tmp_path / "train.mrg").write_text("(S (NP (DT The) (NN dog)) (VP (VBZ barks)) (. .))\n")
    trees = open_corpus(config_of(tmp_path, "tagging", **{"data.corpus": f"trees:{tmp_path}"}).data)
    assert trees.lines("train") == (["The dog barks ."], ["DT NN VBZ ."])
    both = open_corpus(config_of(tmp_path, "classification", **{"data.corpus": "bundled:"}).data)
    lines, labels = both.lines("dev")
    assert labels[:4] == ["en", "de", "en", "de"]
    assert len(lines) == len(labels)
    with pytest.raises(UserError, match="has no labels"):
        open_corpus(config_of(tmp_path, "tagging", **{"data.corpus": "bundled:"}).data)


@pytest.mark.thorough
def test_a_tagger_goes_out_and_comes_in_again(tagger, tmp_path):
    out, run = str(tmp_path / "out"), str(tmp_path / "run")
    assert main(["export", str(tagger), out, "--to", "safetensors"]) == 0
    assert main(["import", "safetensors", out, run]) == 0
    lines = ["the old dog runs", "a house"]
    assert TAGGING.lines(t2t_jax.load(run), lines) == TAGGING.lines(t2t_jax.load(tagger), lines)


@pytest.mark.thorough
def test_other_uses_of_such_models_are_refused(tagger, masked):
    with pytest.raises(UserError, match="t2t-jax predict"):
        t2t_jax.load(tagger).translate(["a dog"])
    with pytest.raises(UserError, match="has no <mask>"):
        MASKED.lines(t2t_jax.load(tagger), ["a <mask>"])
    with pytest.raises(UserError, match="one encoder at a time"):
        t2t_jax.load([tagger, tagger])
