"""A run that starts from another's parameters and vocabulary."""

import shutil

import jax
import numpy as np
import pytest

import t2t_jax
from t2t_jax import UserError
from t2t_jax.data.corpus import open_corpus
from t2t_jax.run.start import initial_vocabulary
from t2t_jax.tasks.translation import TASK
from t2t_jax.workdir import StoredRun, read_vocabulary


@pytest.fixture(scope="module")
def config(tiny_run):
    one_step = {"training.num_train_steps": 1, "checkpoint.every_steps": 1}
    return tiny_run.config.replace(one_step | tiny_run.without_dev)


@pytest.fixture(scope="module")
def base(config, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("base") / "run"
    assert t2t_jax.train(config, workdir).exit_code == 0
    return workdir


@pytest.mark.thorough
def test_it_begins_with_them_and_goes_on_without_the_other_run(config, base, tmp_path, capsys):
    shutil.copytree(base, tmp_path / "base")
    own = {
        "training.init_from": str(tmp_path / "base"),
        "training.learning_rate_factor": 0.0,  # a step changes nothing
        "model.dropout_rate": 0.3,
        "data.max_length": 32,
    }
    tuned = config.replace(own)
    assert t2t_jax.train(tuned, tmp_path / "tuned").exit_code == 0
    start = f"starts with the parameters and the vocabulary of {tmp_path / 'base'}"
    assert start in capsys.readouterr().out
    expected = t2t_jax.load(tmp_path / "base")
    shutil.rmtree(tmp_path / "base")
    longer = tuned.replace({"training.num_train_steps": 2})
    assert t2t_jax.train(longer, tmp_path / "tuned").exit_code == 0
    found = t2t_jax.load(tmp_path / "tuned", average=1)
    assert found.steps == (2,)
    assert found.config == longer
    jax.tree.map(np.testing.assert_array_equal, found.params, expected.params)
    assert read_vocabulary(tmp_path / "tuned").serialized == expected.vocabulary.serialized


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model.d_model": 32}, r"has another model \(model.d_model 16 -> 32\)"),
        ({"data.vocab_size": 299}, r"has another model \(data.vocab_size 300 -> 299\)"),
        ({"training.init_from": "nowhere"}, "nowhere does not exist|nowhere/vocab"),
        ({"training.init_step": 7}, "has no checkpoint of step 7; it has"),
        ({"data.protected_tokens": ("<2de>", "<2fr>")}, "=<2de> <2fr> cannot be added to the voc"),
    ],
)
def test_another_model_is_refused_before_anything_is_written(
    config, base, tmp_path, fields, message
):
    changed = config.replace({"training.init_from": str(base), **fields})
    with pytest.raises(UserError, match=message):
        t2t_jax.train(changed, tmp_path / "tuned")
    assert not (tmp_path / "tuned").exists()


def test_protected_tokens_come_with_the_vocabulary_that_has_them(config, tmp_path):
    corpus = open_corpus(config.data)
    tokens = {"data.protected_tokens": ("<2de>", "<2fr>")}
    learned = TASK.vocabulary(config.replace(tokens), corpus)
    run = StoredRun(tmp_path, config.replace(tokens), learned, {})
    for asked in (["<2fr>"], []):
        other = config.replace({"data.protected_tokens": asked})
        found = TASK.vocabulary(other, corpus, initial_vocabulary(other, run))
        assert found.fingerprint == learned.fingerprint
    other = config.replace({"data.protected_tokens": ["<2de>", "<2it>"]})
    with pytest.raises(UserError, match=r"protected_tokens=<2it> cannot be added"):
        initial_vocabulary(other, run)


def test_a_step_of_no_run_is_refused(config):
    with pytest.raises(UserError, match="name that run with training"):
        config.replace({"training.init_step": 7})
