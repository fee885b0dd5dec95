"""A student's functions in trained models: right ones change nothing, and bugs cost nats."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import t2t_jax
from t2t_jax import teaching
from t2t_jax.config import Config
from t2t_jax.config.file import load_config
from t2t_jax.extras.teaching.replacement import StudentAttention
from t2t_jax.functional.position import sinusoidal_positions
from t2t_jax.kernels.cached_attention import (
    CachedEntries,
    attention_with_new,
    cached_attention,
    fused_cached_attention,
)

SOURCES = ["Open the file.", "No devices were found.", "The file could not be saved."]
TARGETS = ["Öffne die Datei.", "Es wurden keine Geräte gefunden.", "Die Datei fehlt."]


@pytest.fixture(scope="module")
def demo():
    return t2t_jax.load("demo")


def nats(translator):
    scores = t2t_jax.score(translator, SOURCES, TARGETS)
    return -sum(x.log_prob for x in scores) / sum(len(x.tokens) for x in scores)


def student(*, axis=-1, has_mask=True, power=-0.5, calls=None):
    """Attention with heads before time, and a bias for the demo model's relative positions."""

    def attention(query, key, value, mask, bias):
        if calls is not None:
            calls.append(query.shape)
        scores = query @ key.swapaxes(-1, -2) * query.shape[-1] ** power
        scores = scores if bias is None else scores + bias
        weights = jax.nn.softmax(jnp.where(mask, scores, -1e9) if has_mask else scores, axis)
        return weights @ value

    return attention


def test_right_attention_gives_the_same_scores_and_translations(demo):
    calls = []
    expected = nats(demo), demo.translate(SOURCES), demo.translate(SOURCES, beam_size=1)
    attention = student(calls=calls)
    with teaching.replace(attention=attention, layout="bhtd"):
        results = nats(demo), demo.translate(SOURCES), demo.translate(SOURCES, beam_size=1)
    assert results[0] == pytest.approx(expected[0], rel=1e-4)
    assert results[1:] == expected[1:]
    assert any(shape[2] == 1 for shape in calls)  # one query, in decoding
    assert any(shape[2] > 4 for shape in calls)  # whole sentences


def test_bugs_show_in_nats_and_only_within_the_context(demo):
    right = nats(demo)
    for mistakes in ({"axis": -2}, {"power": 0}, {"has_mask": False}):
        with teaching.replace(attention=student(**mistakes), layout="bhtd"):
            assert nats(demo) > right + 0.1
    assert nats(demo) == right


def test_a_variable_that_a_function_reads_may_change_between_two_contexts(demo):
    factors, losses = [], []

    def attention(query, key, value, mask, bias):
        return student()(factors[-1] * query, key, value, mask, bias)

    for factor in (1.0, 4.0, 1.0):
        factors.append(factor)
        with teaching.replace(attention=attention, layout="bhtd"):
            losses.append(nats(demo))
    assert losses[1] > losses[0] + 0.1
    assert losses[2] == losses[0]


def test_each_form_of_cached_attention_is_replaced():
    """Beam search on GPUs caches in other layouts, and groups of heads share keys and values."""
    rng = np.random.default_rng(0)

    def normal(*shape):
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    query, new = normal(3, 1, 4, 8), (normal(3, 2, 1, 8), normal(3, 2, 1, 6))
    masks = [jnp.asarray(rng.random((3, 1, 1, n)) < 0.7).at[..., 0].set(True) for n in (5, 4)]
    parts = [
        CachedEntries(normal(3, 2, 8, 5), normal(3, 2, 5, 6), masks[0], normal(3, 4, 1, 5)),
        CachedEntries(normal(3, 2, 8, 4), normal(3, 2, 4, 6), masks[1]),
    ]
    attend = StudentAttention(student(), "bhtd")
    np.testing.assert_allclose(
        attend.cached_attention(query, parts), cached_attention(query, parts), atol=1e-5
    )
    cached = parts[1].key.swapaxes(2, 3), parts[1].value
    results = (
        attention_with_new(query, cached, new, 2, masks[1], **options)
        for options in ({"attend": attend.cached_attention}, {})
    )
    np.testing.assert_allclose(*results, atol=1e-5)
    arrays = query, normal(3, 5, 4, 8), normal(3, 5, 4, 8), masks[0], 0.5
    fused = fused_cached_attention(*arrays, implementation="xla")
    np.testing.assert_allclose(attend.attend(*arrays), fused, atol=1e-5)


def test_training_uses_the_function(tmp_path):
    calls = []
    config = load_config("tiny").replace({"training.num_train_steps": 1, "model.d_ff": 8})
    with teaching.replace(attention=student(calls=calls), layout="bhtd"):
        t2t_jax.train(config, tmp_path / "run")
    assert len(calls) >= 3  # of the encoder, the decoder and cross-attention


def test_scores_other_than_dot_products_are_refused():
    config = t2t_jax.AttentionConfig(d_model=8, num_heads=2, attention_kind="additive")
    module, x = t2t_jax.MultiHeadAttention(config), jnp.ones((1, 3, 8))
    params = module.init(jax.random.key(0), x)
    with (
        pytest.raises(t2t_jax.UserError, match="this model has other scores than dot products"),
        teaching.replace(attention=student()),
    ):
        module.apply(params, x)


def test_positions_are_replaced_in_apply():
    config = Config().replace({"model.d_model": 8, "model.num_heads": 2, "model.d_ff": 8})
    model = t2t_jax.build(config, vocab_size=20)
    batch = t2t_jax.Batch.of([[5, 6, 7, 1]], [[7, 5, 1]])
    params = model.init(jax.random.key(0), batch)
    expected = model.apply(params, batch)
    with teaching.replace(positions=sinusoidal_positions):
        np.testing.assert_allclose(model.apply(params, batch), expected, atol=1e-6)
    with teaching.replace(positions=lambda length, d_model: jnp.zeros((length, d_model))):
        changed = model.apply(params, batch)
        reversed_batch = t2t_jax.Batch.of([[7, 6, 5, 1]], [[7, 5, 1]])
        # Without positions, the encoder sees a set of tokens.
        np.testing.assert_allclose(model.apply(params, reversed_batch), changed, atol=1e-5)
    assert abs(changed - expected).max() > 0.01


def no_bias(query, key, value, mask):
    return value[:, : query.shape[1]]


def wrong_shape(query, key, value, mask, bias):
    return query[:, :1]


def broken(query, key, value, mask, bias):
    raise ZeroDivisionError("no")


@pytest.mark.parametrize(
    ("replaced", "message"),
    [
        ({"attention": no_bias}, r"write no_bias\(query, key, value, mask, bias\)"),
        ({"attention": wrong_shape}, r"wrong_shape returned an array \[.*\]; return"),
        ({"attention": broken}, "broken fails: ZeroDivisionError: no; compute with jax.numpy"),
        ({"positions": sinusoidal_positions}, "model.position='relative_bias', which adds no vec"),
        ({"attention": no_bias, "layout": "tbhd"}, "layout='tbhd' is unknown"),
    ],
)
def test_a_function_that_does_not_fit_is_refused(demo, replaced, message):
    with pytest.raises(t2t_jax.UserError, match=message), teaching.replace(**replaced):
        nats(demo)
