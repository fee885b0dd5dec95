"""A loop of a user: its loss is that of scoring and falls, and it saves what it has trained."""

import jax
import numpy as np
import optax
import pytest

import t2t_jax
from t2t_jax.data.vocabularies.learning import train_vocabulary
from tests.decoding.random_models import CONFIG, random_translator
from tests.examples.loading import load_example


@pytest.fixture
def example(monkeypatch):
    """The program, with short pairs only."""
    example = load_example("own_loop")
    pairs = [pair for pair in zip(*example.read_pairs(), strict=True) if max(map(len, pair)) < 40]
    monkeypatch.setattr(example, "read_pairs", lambda: tuple(zip(*pairs[:40], strict=True)))
    return example


@pytest.fixture
def translator(example):
    return random_translator(CONFIG, train_vocabulary([example.read_pairs()], 100))


def test_the_loss_begins_at_that_of_scoring_and_falls(example, translator):
    sources, targets = (lines[:8] for lines in example.read_pairs())
    batch = t2t_jax.Batch.of(translator.encode(sources), translator.encode_targets(targets))
    exact = {"label_smoothing": 0.0, "dropout": False}
    module, params = translator.module, translator.params
    params, losses = example.train(module, params, [batch] * 5, optax.adam(0.01), **exact)
    scores = t2t_jax.score(translator, sources, targets)
    tokens = sum(len(score.tokens) for score in scores)
    assert losses[0] == pytest.approx(-sum(score.log_prob for score in scores) / tokens, rel=1e-5)
    assert losses == sorted(losses, reverse=True)
    after = t2t_jax.score(translator.with_params(params), sources, targets)
    assert sum(score.log_prob for score in after) > sum(score.log_prob for score in scores)


def test_the_saved_run_is_the_trained_model(example, translator, tmp_path, monkeypatch, capsys):
    def record(*arguments, train=example.train):
        results.append(train(*arguments))
        return results[0]

    results = []
    monkeypatch.setattr(example, "train", record)
    translator.save(tmp_path / "start")
    example.main(str(tmp_path / "run"), num_train_steps=2, start=str(tmp_path / "start"))
    loaded, [(params, losses)] = t2t_jax.load(tmp_path / "run"), results
    jax.tree.map(np.testing.assert_array_equal, loaded.params, params)
    texts = [model.translate(["Enter your password"])[0] for model in (translator, loaded)]
    about = f"loss {losses[0]:.3f} before the first step, {losses[1]:.3f} before the last"
    assert capsys.readouterr().out.splitlines() == [about, *texts]
