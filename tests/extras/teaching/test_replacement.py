"""A student's functions in trained models: right ones change nothing, and bugs cost nats."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import t2t_jax
from t2t_jax import teaching
from t2t_jax.config import Config
from t2t_jax.functional.position import sinusoidal_positions

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
        found = nats(demo), demo.translate(SOURCES), demo.translate(SOURCES, beam_size=1)
    assert found[0] == pytest.approx(expected[0], rel=1e-4)
    assert found[1:] == expected[1:]
    assert any(shape[2] == 1 for shape in calls)  # one query, in decoding
    assert any(shape[2] > 4 for shape in calls)  # whole sentences
    num_calls = len(calls)
    with teaching.replace(attention=attention, layout="bhtd"):
        demo.translate(SOURCES)
    assert len(calls) == num_calls  # compiled once


def test_bugs_show_in_nats_and_only_within_the_context(demo):
    right = nats(demo)
    for mistakes in ({"axis": -2}, {"power": 0}, {"has_mask": False}):
        with teaching.replace(attention=student(**mistakes), layout="bhtd"):
            assert nats(demo) > right + 0.1
    assert nats(demo) == right


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
