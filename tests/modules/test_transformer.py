import dataclasses
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import TypeCheckError

from t2t_jax import Context, LayerStack
from t2t_jax.batch import Batch, Sequence
from t2t_jax.functional import masks
from tests.selection import thorough_after

_SOURCES = [[[3, 4, 5, 6, 2]], [[7, 2]], [[8, 9, 2]]]
_TARGETS = [[[5, 6, 7, 2]], [[8, 9, 10, 3, 2]], [[4, 2]]]
_DROPOUTS = ["dropout_rate", "attention_dropout_rate", "activation_dropout_rate"]


def _change(array, where, value):
    return jnp.array(array).at[where].set(value)


def _with_inputs(batch, tokens):
    return batch._replace(inputs=batch.inputs._replace(tokens=tokens))


def _with_targets(batch, tokens):
    return batch._replace(targets=batch.targets._replace(tokens=tokens))


def test_arrays_are_checked_under_pytest(make_model, make_batch):
    model = make_model()
    batch = make_batch(_SOURCES, _TARGETS)
    wrong = _with_inputs(batch, batch.inputs.tokens.astype(jnp.float32))
    with pytest.raises(TypeCheckError):
        model.logits(wrong)
    wrong = _with_inputs(batch, batch.inputs.tokens[:2])
    with pytest.raises(TypeCheckError):
        model.logits(wrong)


def test_token_is_not_seen_by_its_own_logits_nor_by_earlier_ones(model, make_batch):
    # The logits at position t predict target t from the targets before it.
    batch = make_batch(_SOURCES, _TARGETS)
    before = model.logits(batch)
    for t in range(4):
        after = model.logits(_with_targets(batch, _change(batch.targets.tokens, (0, t), 9)))
        np.testing.assert_array_equal(after[0, : t + 1], before[0, : t + 1])
        np.testing.assert_array_equal(after[1:], before[1:])
        assert t == 3 or np.all(np.any(after[0, t + 1 : 4] != before[0, t + 1 : 4], axis=-1))


def test_every_source_token_is_seen_by_every_target_of_its_row_alone(model, make_batch):
    batch = make_batch(_SOURCES, _TARGETS)
    before = model.logits(batch)
    for s in range(5):
        after = model.logits(_with_inputs(batch, _change(batch.inputs.tokens, (0, s), 10)))
        assert np.all(np.any(after[0, :4] != before[0, :4], axis=-1))
        np.testing.assert_array_equal(after[1:], before[1:])


def test_order_of_the_tokens_matters(model, make_batch):
    batch = make_batch(_SOURCES, _TARGETS)
    before = model.logits(batch)
    inputs, targets = batch.inputs.tokens, batch.targets.tokens
    swapped = model.logits(_with_inputs(batch, inputs.at[0, :2].set(inputs[0, 1::-1])))
    assert np.abs(swapped[0, :4] - before[0, :4]).max() > 1e-5  # roundings are below 1e-6
    # The last logits of row 0 see targets 0, 1 and 2; exchange the first two.
    swapped = model.logits(_with_targets(batch, targets.at[0, :2].set(targets[0, 1::-1])))
    assert np.abs(swapped[0, 3] - before[0, 3]).max() > 1e-5


def test_padding_and_empty_rows_change_nothing(model, make_batch):
    tight = model.logits(make_batch(_SOURCES[:2], _TARGETS[:2], 5, 5))
    padded = make_batch([*_SOURCES[:2], []], [*_TARGETS[:2], []])
    inputs, targets = padded
    padded = _with_inputs(padded, jnp.where(inputs.segments == 0, 10, inputs.tokens))
    padded = _with_targets(padded, jnp.where(targets.segments == 0, 9, targets.tokens))
    loose = model.logits(padded)
    assert np.all(np.isfinite(loose))
    for row, (sentence,) in enumerate(_TARGETS[:2]):
        real = slice(len(sentence))
        np.testing.assert_allclose(loose[row, real], tight[row, real], rtol=1e-4, atol=1e-5)


def test_deterministic_calls_ignore_all_dropout_rates(make_model, make_batch):
    batch = make_batch(_SOURCES, _TARGETS)
    plain, dropping = make_model(), make_model(**dict.fromkeys(_DROPOUTS, 0.5))
    np.testing.assert_array_equal(dropping.logits(batch), plain.logits(batch))
    # And rates of 0 drop nothing.
    dropped = plain.logits(batch, deterministic=False, key=jax.random.key(0))
    np.testing.assert_array_equal(dropped, plain.logits(batch))


@pytest.mark.parametrize("option", thorough_after(1, _DROPOUTS))
def test_each_dropout_option_has_an_effect_of_its_own(make_model, make_batch, option):
    batch = make_batch(_SOURCES, _TARGETS)
    model = make_model(**{option: 0.3})
    plain = make_model().logits(batch)
    keys = jax.random.split(jax.random.key(0))
    first, second = (model.logits(batch, deterministic=False, key=key) for key in keys)
    again = model.logits(batch, deterministic=False, key=keys[0])
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - plain).max() > 1e-3
    assert np.abs(first - second).max() > 1e-3


def test_each_layer_drops_elements_of_its_own(make_model):
    # With zero kernels and b_2 = 1, pre-norm layers only add their dropped ones to the residual
    # stream: after two layers an element is the number of layers that kept it, 0, 1 or 2, times 2.
    config = make_model(norm_order="pre", d_model=64, dropout_rate=0.5).config
    encoder = LayerStack(config, config.stacks[0])
    x = jnp.zeros((2, 8, 64))
    context = Context(jnp.zeros((2, 8), int), 8, jnp.ones((2, 1, 8, 8), bool))
    shapes = nn.unbox(jax.eval_shape(lambda key: encoder.init(key, x, context), jax.random.key(0)))
    variables = jax.tree_util.tree_map_with_path(
        lambda path, leaf: jnp.full(
            leaf.shape, float(jax.tree_util.keystr(path).endswith(("['bias_2']", "['scale']")))
        ),
        shapes,
    )
    training = dataclasses.replace(context, deterministic=False)
    apply = jax.jit(lambda key: encoder.apply(variables, x, training, rngs={"dropout": key}))
    out = np.asarray(apply(jax.random.key(0)))
    # The final norm keeps the order of the values within a position.
    ranks = [np.unique(row.round(4), return_inverse=True)[1] for row in out.reshape(16, 64)]
    counts = np.bincount(np.concatenate(ranks), minlength=3)
    assert len(counts) == 3
    # Of 1024 elements a quarter is kept by none, a half by one, a quarter by both.
    np.testing.assert_allclose(counts / 1024, [0.25, 0.5, 0.25], atol=0.08)


def test_bfloat16_stays_near_float32_with_float32_logits_and_gradients(make_model, make_batch):
    batch = make_batch(_SOURCES, _TARGETS)
    wide, narrow = make_model(), make_model(compute_dtype="bfloat16")
    expected, logits = wide.logits(batch), narrow.logits(batch)
    assert logits.dtype == np.float32
    real = np.asarray(batch.targets.segments) != 0
    error = np.abs(logits - expected)[real]
    assert 0 < error.max() < 0.05 * np.abs(expected[real]).max()

    def loss(variables):
        return narrow.module.apply(variables, batch, deterministic=True).sum()

    gradient = jax.eval_shape(jax.grad(loss), narrow.variables)
    assert {leaf.dtype for leaf in jax.tree.leaves(gradient)} == {jnp.dtype("float32")}


def test_padding_beyond_a_learned_table_changes_nothing(make_model, make_batch):
    model = make_model(position="learned", max_positions=7)
    logits = model.logits(make_batch(_SOURCES, _TARGETS, 7, 7))
    longer = model.logits(make_batch(_SOURCES, _TARGETS, 16, 9))
    np.testing.assert_allclose(longer[:, :7], logits, atol=1e-5)
    assert np.isfinite(longer).all()


def test_sinusoids_read_no_longest_length(make_model, make_batch):
    model = make_model(max_positions=1)
    batch = make_batch(_SOURCES, _TARGETS)
    apply = partial(model.module.apply, deterministic=True)
    assert jax.eval_shape(apply, model.variables, batch).shape == (3, 7, 11)


@pytest.mark.thorough
def test_rows_too_long_for_a_whole_mask_have_the_same_losses_and_derivatives(
    make_model, make_batch, monkeypatch
):
    model = make_model(**dict.fromkeys(_DROPOUTS, 0.3))
    batch = make_batch([[[3, 4, 5], [6]], [[7, 8]]], [[[5, 6], [9]], [[3, 4, 5]]])

    def loss(variables, key):
        options = {"label_smoothing": 0.1, "first_row": 3, "rngs": {"dropout": key}}
        options["deterministic"] = False
        smoothed, _ = model.module.apply(variables, batch, method="losses", **options)
        return (smoothed * (batch.targets.segments != 0)).sum()

    key = jax.random.key(0)
    expected = jax.jit(jax.value_and_grad(loss))(model.variables, key)
    monkeypatch.setattr(masks, "MAX_DENSE_PAIRS", 0)
    found = jax.jit(jax.value_and_grad(lambda *arguments: loss(*arguments)))(model.variables, key)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), found, expected)


@pytest.mark.thorough
def test_memory_of_a_training_step_is_linear_in_the_length_of_long_rows(make_model):
    model = make_model(attention_dropout_rate=0.1)

    def loss(variables, batch, key):
        options = {"label_smoothing": 0.1, "deterministic": False, "rngs": {"dropout": key}}
        return model.module.apply(variables, batch, method="losses", **options)[0].sum()

    def temporary_bytes(length):
        side = Sequence(*[jax.ShapeDtypeStruct((1, length), jnp.int32)] * 3)
        batch = Batch(side, side)
        program = jax.jit(jax.grad(loss)).lower(model.variables, batch, jax.random.key(0))
        return program.compile().memory_analysis().temp_size_in_bytes

    assert temporary_bytes(16384) < 4.4 * temporary_bytes(4096)
