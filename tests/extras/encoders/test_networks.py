"""An encoder alone: where labels are predicted from, and that rows do not see each other."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t_jax.batch import Batch, Patches, Sequence, one_a_row
from t2t_jax.config import Config
from t2t_jax.extras.encoders.networks import target_indices
from t2t_jax.modules.cached_decoding import NetworkScoring
from t2t_jax.modules.models import make_model
from tests.commands import families
from tests.selection import thorough_after
from tests.tiny import first_parameters

TEXT = {
    "model.architecture": "encoder_only",
    "model.d_model": 16,
    "model.num_heads": 4,
    "model.d_ff": 24,
    "model.num_encoder_layers": 2,
    "model.share_embeddings": False,
    "model.source_vocab_size": 30,
    "model.output_bias": True,
    "data.task": "tagging",
}
_OF_TEXT = "model.share_embeddings", "model.source_vocab_size"
IMAGES = {path: value for path, value in TEXT.items() if path not in _OF_TEXT} | {
    **families.IMAGES,
    "data.task": "image_classification",
}
KINDS = {
    "plain": TEXT,
    "normalised": TEXT | {"model.embedding_norm": True},
    "rotary": TEXT | {"model.position": "rotary", "model.norm_order": "pre"},
    "alibi": TEXT | {"model.position": "alibi", "model.norm_order": "deep"},
    "window": TEXT | {"model.attention_window": 3, "model.position": "relative_bias"},
}


def made(changes):
    config = Config().replace(changes)
    model = make_model(config, 5, None)
    params = first_parameters(model)
    return model, params


@partial(jax.jit, static_argnums=0)
def log_probs(model, params, batch):
    return jax.nn.log_softmax(model.apply({"params": params}, batch, deterministic=True))


def sentence(tokens, positions, labels):
    inputs = one_a_row(jnp.array([tokens], jnp.int32))
    sides = (np.array([x], np.int32) for x in (labels, [1] * len(labels), positions))
    return Batch(inputs, Sequence(*sides))


@pytest.mark.parametrize("kind", thorough_after(1, KINDS))
def test_sentences_of_a_row_are_predicted_as_if_each_were_alone(kind):
    model, params = made(KINDS[kind])
    first = sentence([2, 9, 8, 7, 1], [1, 3], [4, 0])
    second = sentence([2, 11, 12, 1], [0, 1, 2], [1, 2, 3])
    alone = [np.asarray(log_probs(model, params, one))[0] for one in (first, second)]

    def joined(a, b, pad):
        fields = [np.concatenate([x[0], y[0], [0] * pad]) for x, y in zip(a, b, strict=True)]
        fields[1] = np.concatenate([np.ones(a[0].size), np.full(b[0].size, 2), np.zeros(pad)])
        return Sequence(*(np.array(x, np.int32)[None] for x in fields))

    row = Batch(joined(first.inputs, second.inputs, 3), joined(first.targets, second.targets, 2))
    assert target_indices(row).tolist() == [[1, 3, 5, 6, 7, 0, 0]]
    together = np.asarray(log_probs(model, params, row))[0]
    np.testing.assert_allclose(together[:2], alone[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(together[2:5], alone[1], rtol=1e-4, atol=1e-5)
    losses = partial(model.apply, label_smoothing=0.1, deterministic=True, method="losses")
    smoothed, nll = jax.jit(losses)({"params": params}, row)
    wanted = [-alone[0][0, 4], -alone[0][1, 0], *(-alone[1][n, n + 1] for n in range(3))]
    np.testing.assert_allclose(nll[0, :5], wanted, rtol=1e-4, atol=1e-5)
    assert smoothed.shape == nll.shape


def test_an_encoder_looks_to_both_sides():
    model, params = made(TEXT)
    one = log_probs(model, params, sentence([2, 9, 8, 7, 1], [1], [0]))
    other = log_probs(model, params, sentence([2, 9, 8, 6, 1], [1], [0]))
    assert np.abs(one - other).max() > 1e-3


def test_images_of_a_row_are_predicted_as_if_each_were_alone():
    model, params = made(IMAGES)
    rng = np.random.default_rng(0)
    values = rng.integers(0, 256, (2, 5, 4)).astype(np.uint8)
    values[:, 0] = 0

    def batch(values, segments, positions):
        patches = Patches(values, segments, positions)
        number = np.arange(segments.max(), dtype=np.int32)[None]
        labels = number + 1, number * 0
        return Batch(patches, Sequence(labels[1], labels[0], labels[1]))

    places = np.arange(5, dtype=np.int32)[None]
    ones = np.ones((1, 5), np.int32)
    alone = [log_probs(model, params, batch(values[n : n + 1], ones, places)) for n in (0, 1)]
    row = batch(
        values.reshape(1, 10, 4),
        np.concatenate([ones, 2 * ones], axis=1),
        np.concatenate([places, places], axis=1),
    )
    together = log_probs(model, params, row)
    np.testing.assert_allclose(together[0], np.stack(alone)[:, 0, 0], rtol=1e-4, atol=1e-5)


def test_what_stands_at_the_class_token_is_not_read():
    model, params = made(IMAGES)
    example = model.example()
    changed = example.inputs._replace(values=example.inputs.values.at[:, 0].set(200))
    found = [log_probs(model, params, Batch(x, example.targets)) for x in (example.inputs, changed)]
    np.testing.assert_array_equal(*found)


def test_attention_is_that_of_the_encoder_and_sums_to_one():
    model, params = made(TEXT)
    scoring = NetworkScoring(model)
    batch = sentence([2, 9, 8, 7, 1], [1, 3], [4, 0])
    weights = jax.jit(partial(scoring.attention_weights))(params, batch)
    assert weights.keys() == {"encoder"}
    assert weights["encoder"].shape == (2, 1, 4, 5, 5)
    np.testing.assert_allclose(weights["encoder"].sum(-1), 1, rtol=1e-5)
