"""The parameters of a translator: read-only, replaced by `with_params`, and never stale."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t_jax import Translator, UserError, score
from tests.decoding.random_models import CONFIG, random_params, sentences

LINES = sentences(3, 4, seed=8)


def _leaves(translator):
    return [np.asarray(x) for x in jax.tree.leaves(translator.params)]


def test_a_translator_with_other_parameters_uses_them_everywhere(translator):
    before = translator.translate(LINES, beam_size=1)  # keeps its parameters prepared
    params = random_params(CONFIG, len(translator.vocabulary), 1)
    other, fresh = translator.with_params(params), Translator(CONFIG, translator.vocabulary, params)
    found = other.nbest(LINES, 1, beam_size=1)
    assert found == fresh.nbest(LINES, 1, beam_size=1)
    for [best], of_target in zip(
        found, score(other, LINES, [b.text for [b] in found]), strict=True
    ):
        assert of_target.tokens != best.tokens or of_target.log_prob == pytest.approx(best.log_prob)
    assert translator.translate(LINES, beam_size=1) == before != [best.text for [best] in found]
    assert (translator.steps, other.steps, other.ema_decays) == ((7,), (), ())


def test_fine_tuned_parameters_may_reuse_the_memory_of_those_before(translator):
    tuned = translator.with_params(jax.tree.map(jnp.copy, translator.params))
    expected = [x * 2 for x in _leaves(tuned)]
    step = jax.jit(lambda params: jax.tree.map(lambda x: x * 2, params), donate_argnums=0)
    other = tuned.with_params(step(tuned.params))
    jax.tree.map(np.testing.assert_array_equal, _leaves(other), expected)
    with pytest.raises((RuntimeError, ValueError), match=r"deleted|donated"):
        tuned.translate(LINES)


@pytest.mark.parametrize(
    "name", ["params", "config", "vocabulary", "model", "mesh", "longest_sentence", "steps"]
)
def test_no_attribute_can_be_replaced(translator, name):
    with pytest.raises(AttributeError, match=f"^{name} of .* is read-only; use with_params"):
        setattr(translator, name, getattr(translator, name))


CHANGES = {
    "another array": lambda params: params["embedding"].update(embedding=jnp.zeros((100, 16))),
    "another dictionary": lambda params: params.update(embedding={"embedding": jnp.zeros(1)}),
    "a parameter less": lambda params: params.pop("embedding"),
    "a parameter more": lambda params: params["embedding"].update(more=jnp.zeros(1)),
}
USES = {
    "translate": lambda translator: translator.translate(LINES, beam_size=1),
    "score": lambda translator: score(translator, LINES, LINES),
    "params": lambda translator: translator.params,
    "a copy": lambda translator: score(copy.copy(translator), LINES, LINES),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("change", CHANGES)
def test_parameters_changed_in_place_are_refused_by_every_use(translator, change, use):
    changed = translator.with_params(translator.params)
    changed.prepared("none")
    CHANGES[change](changed.params)
    with pytest.raises(UserError, match=r"changed in place at embedding/(embedding|more)"):
        USES[use](changed)
    assert translator.params  # its dictionaries are others


@pytest.mark.parametrize(
    "make",
    [lambda old, params: Translator(CONFIG, old.vocabulary, params), Translator.with_params],
    ids=["a new translator", "with_params"],
)
def test_later_changes_of_numpy_arrays_and_dictionaries_have_no_effect(translator, make):
    params = jax.tree.map(np.array, translator.params)
    made = make(translator, params)
    for array in jax.tree.leaves(params):
        array[...] = 0
    params.clear()
    jax.tree.map(np.testing.assert_array_equal, _leaves(made), _leaves(translator))


def _with_embedding(params, change):
    return {**params, "embedding": {"embedding": change(params["embedding"]["embedding"])}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: _with_embedding(p, lambda x: x[:-1]), r"params has float32\[99, 16\] at embedd"),
        (lambda p: _with_embedding(p, lambda x: np.float64(x)), r"float64\[100, 16\] .* float32\["),
        (lambda p: {**p, "encoder": {}}, r"params has no array at encoder/.*, and the model float"),
        (lambda p: {**p, "more": np.ones(2, np.float32)}, r"at more, and the model no array"),
        (lambda p: {"params": p}, r"params has no array at decoder/"),
    ],
)
def test_parameters_of_another_model_are_refused(translator, change, message):
    with pytest.raises(UserError, match=message):
        translator.with_params(change(translator.params))


def test_an_ensemble_takes_parameters_of_all_its_models(ensemble):
    halved = jax.tree.map(lambda x: np.asarray(x) / 2, ensemble.params)
    jax.tree.map(np.testing.assert_array_equal, ensemble.with_params(halved).params, halved)
    with pytest.raises(UserError, match="params has no array at 0001/"):
        ensemble.with_params({"0000": halved["0000"]})
