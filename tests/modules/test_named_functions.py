"""Functions that were registered, in the layers: as exact as the package's own, or explained."""

import functools
import itertools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import t2t_jax
from t2t_jax import Parameter
from t2t_jax.config import Config, NormConfig
from t2t_jax.config.cost import num_parameters
from t2t_jax.config.tables import TABLES
from t2t_jax.extras.compile_only.compile import compile_ahead
from t2t_jax.functional.attention import additive_scores, scaled
from t2t_jax.functional.masks import SegmentMask
from t2t_jax.functional.normalization import layer_norm
from t2t_jax.kernels import attention as kernels
from t2t_jax.kernels.gpu import CUDNN_GPU
from t2t_jax.modules import named_functions
from t2t_jax.modules.attention import Norm
from t2t_jax.modules.named_functions import call, elementwise, function_problems
from t2t_jax.run.preparing import make_plan
from tests.refusals import refused
from tests.selection import thorough_after

_REGISTER = {
    "feed_forward": t2t_jax.register_activation,
    "norm": t2t_jax.register_normalization,
    "attention_kind": t2t_jax.register_score_function,
}


def _layer(x, scale, bias, epsilon):
    return layer_norm(x, scale, bias, epsilon)


def _additive(query, key, vector):
    return additive_scores(query, key, vector)


# One of one's own, the name of its like, and what it learns.
_LIKE = {
    "an activation": ("feed_forward", "gelu", functools.partial(jax.nn.gelu, approximate=False)),
    "a gate": ("feed_forward", "swiglu", jax.nn.silu, {"is_gated": True}),
    "a norm": (
        "norm",
        "layer",
        _layer,
        {"parameters": lambda n: {"scale": Parameter((n,), 1.0), "bias": Parameter((n,))}},
    ),
    "scores": (
        "attention_kind",
        "additive",
        _additive,
        {"parameters": lambda n: {"vector": Parameter((n,), deviation=n**-0.5)}},
    ),
}
_SENTENCES = [[[3, 4, 5], [6, 7]], [[8, 9, 3, 4]]], [[[5, 6], [7, 8]], [[9, 3, 4]]]


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("kind", thorough_after(1, _LIKE))
def test_a_registered_function_gives_what_the_packages_own_like_it_does(
    make_model, make_batch, kind
):
    field, like, function, *facts = _LIKE[kind]
    _REGISTER[field](f"own_{like}", function, **(facts[0] if facts else {}))
    options = {"query_key_norm": True, "embedding_norm": True, "num_kv_heads": 1}
    own, known = (make_model(**options, **{field: name}) for name in (f"own_{like}", like))
    assert jax.tree.map(jnp.shape, own.variables) == jax.tree.map(jnp.shape, known.variables)
    batch = make_batch(*_SENTENCES)
    np.testing.assert_allclose(own.logits(batch), known.logits(batch), rtol=1e-6, atol=1e-6)
    assert num_parameters(own.config, 11) == num_parameters(known.config, 11)


def test_parameters_of_registered_functions_are_as_many_as_the_model_has(make_model):
    model = make_model(
        feed_forward="test_relu6", norm="test_scale", attention_kind="test_cosine", norm_order="pre"
    )
    count = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(model.variables))
    assert num_parameters(model.config, 11) == count
    norms = model.variables["params"]["encoder"]["layers"]["feed_forward_residual"]["norm"]
    assert norms["g"].shape == (2,)  # one of each layer
    scores = model.variables["params"]["encoder"]["layers"]["self_attention"]["scores"]
    assert scores["temperature"].shape == (2, 2)  # of each layer and head


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: 1 / 0, "for float32[2, 3] fails: ZeroDivisionError: division by zero; fix"),
        (lambda x: x[:, :2], "returned float32[2, 2] instead of floats[2, 3]"),
        (lambda x: x > 0, "returned bool[2, 3] instead of floats[2, 3]"),
        (lambda x: None, "for float32[2, 3] fails: ValueError: None is not a valid value"),
        (lambda x, y: x, "for float32[2, 3] fails: TypeError: "),
        (lambda x: x if x.sum() > 0 else -x, "for float32[2, 3] fails: TracerBoolConversionError"),
    ],
)
def test_a_function_that_is_wrong_is_explained_in_one_line(function, message):
    t2t_jax.register_activation("wrong", function)
    wrong = elementwise(TABLES["feed_forward"]["wrong"])
    with refused(match="^" + re.escape(f"activation 'wrong' {message}")):
        jax.eval_shape(wrong, jax.ShapeDtypeStruct((2, 3), jnp.float32))


@pytest.mark.usefixtures("tables")
def test_what_a_function_makes_is_in_the_dtype_of_its_place():
    t2t_jax.register_activation("wide", lambda x: x.astype(jnp.float32) + np.ones(3, np.float32))
    entry = TABLES["feed_forward"]["wide"]
    assert call(entry, (3,), jnp.bfloat16, jnp.ones(3, jnp.bfloat16)).dtype == jnp.bfloat16


@pytest.mark.usefixtures("tables")
def test_numbers_start_as_they_are_declared():
    t2t_jax.register_normalization(
        "drawn", _layer, lambda n: {"scale": Parameter((n,), 3.0, 0.5), "bias": Parameter((n,))}
    )
    made = Norm(NormConfig("drawn")).init(jax.random.key(0), jnp.ones((1, 4096)))["params"]
    scale = np.asarray(made["scale"])
    assert abs(scale.mean() - 3) < 0.05
    assert abs(scale.std() - 0.5) < 0.05
    assert not np.any(made["bias"])


def _called_back(x):
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return jax.pure_callback(np.tanh, shape, x, vmap_method="sequential")


def _repeated(x):
    return jax.lax.while_loop(lambda y: y.sum() > 1e9, lambda y: y / 2, x)


def _products(query, key):
    return jnp.einsum("bqhd,bkhd->bhqk", query, key)


def _largest_of_four(x, epsilon):
    groups = x.reshape(*x.shape[:-1], 4, -1)
    return (groups / (jnp.abs(groups).max(-2, keepdims=True) + epsilon)).reshape(x.shape)


class _Unhashable:
    __hash__ = None

    def __call__(self, x):
        return jnp.tanh(x)


_GOOD = {
    "an object that cannot be hashed": ("feed_forward", _Unhashable()),
    # Scores that are rounded differ by more where sums have another order.
    "rounding to bfloat16": (
        "attention_kind",
        lambda query, key: _products(query.astype(jnp.bfloat16), key.astype(jnp.bfloat16)),
    ),
    "additive": ("attention_kind", _additive, lambda d_k: {"vector": Parameter((d_k,))}),
    "a positive number of each head": (
        "attention_kind",
        lambda query, key, g: _products(query, key) * jnp.log(g)[:, None, None],
        lambda d_k: {"g": Parameter((), 0.1)},
    ),
    "groups of channels": ("norm", _largest_of_four),
}
_draws, _calls = np.random.default_rng(0), itertools.count()
_BAD = {
    "a softmax over channels": ("feed_forward", jax.nn.softmax),
    "a bias by distance": (
        "attention_kind",
        lambda query, key: _products(query, key) - 0.01 * jnp.arange(key.shape[1]),
    ),
    "random numbers": ("feed_forward", lambda x: x + _draws.normal()),
    "statistics over time": ("norm", lambda x, epsilon: x / (x.std(1, keepdims=True) + epsilon)),
    "a state": ("feed_forward", lambda x: x * next(_calls)),
    "a mean behind zeros": ("feed_forward", lambda x: jax.nn.relu(x - x.mean(1, keepdims=True))),
    "the batch": ("norm", lambda x, epsilon: x / (jnp.abs(x).max(0) + epsilon)),
    "other heads": ("norm", lambda x, epsilon: x / (jnp.abs(x).max(-2, keepdims=True) + epsilon)),
    "the number of keys": (
        "attention_kind",
        lambda query, key: _products(query, key) * jnp.log(key.shape[1]),
    ),
    "next key": ("attention_kind", lambda query, key: _products(query, key + jnp.roll(key, -1, 1))),
    "the mean query": (
        "attention_kind",
        lambda query, key: _products(query - query.mean(1, keepdims=True), key),
    ),
    "a bias that starts at 0": (
        "attention_kind",
        lambda query, key, g: _products(query, key) + g[:, None, None] * jnp.arange(key.shape[1]),
        lambda d_k: {"g": Parameter(())},
    ),
    "the number of a head": (
        "attention_kind",
        lambda query, key: _products(query, key) * jnp.arange(query.shape[2])[:, None, None],
    ),
    "other sentences": ("attention_kind", lambda query, key: _products(query, key - key.mean(0))),
}


def _problems(field, function, *parameters):
    _REGISTER[field]("mine", function, *parameters)
    sizes = {"model.d_model": 8, "model.num_heads": 2, "model.query_key_norm": True}
    return list(function_problems(Config().replace({**sizes, f"model.{field}": "mine"})))


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("kind", thorough_after(2, _GOOD))
def test_a_function_of_each_position_has_no_problem_and_is_checked_once(kind, monkeypatch):
    assert _problems(*_GOOD[kind]) == []
    monkeypatch.setattr(named_functions, "call", None)
    assert _problems(*_GOOD[kind]) == []


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("kind", thorough_after(4, _BAD))
def test_a_function_that_would_decode_as_another_model_has_a_problem(kind):
    problem, *_ = _problems(*_BAD[kind])
    numbers = re.search(r"gives (\S+) if .* together, but (\S+) if .* alone", problem)
    together, alone = map(float, numbers.groups())
    assert together != pytest.approx(alone, rel=1e-5)
    assert re.search(r"may depend only on .*, and not on state .*; fix the function$", problem)


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize(
    ("function", "message"),
    [
        (jnp.sqrt, "has values or gradients that are not finite"),
        (lambda x: jnp.where(x > 0, jnp.sqrt(x), 0), "has values or gradients that are not finite"),
        (lambda x: x + jnp.ones(5), "for .* fails|returned float32"),  # of an axis of another size
        (lambda x: 1 / 0, "for .* fails: ZeroDivisionError"),
    ],
)
def test_a_function_that_fails_or_is_not_finite_has_a_problem(function, message):
    [problem] = _problems("feed_forward", function)
    assert re.search(f"activation 'mine' ({message})", problem)


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: None, "for .* fails: ValueError"),
        (lambda x: (x, x), r"returned float32\[2, "),
        (lambda x: x.astype(int), "returned int32"),
        (_called_back, "for .* fails: ValueError: Pure callbacks do not support JVP"),
        (_repeated, "cannot be differentiated: ValueError: Reverse-mode differentiation does not"),
    ],
)
def test_a_function_that_cannot_be_trained_ends_every_start(tmp_path, function, message):
    t2t_jax.register_activation("mine", function)
    config = Config().replace({"model.feed_forward": "mine", "model.d_model": 16})
    for step in (lambda: compile_ahead(config, jax.devices()), lambda: make_plan(config, tmp_path)):
        with refused(match=f"activation 'mine' {message}"):
            step()


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (lambda width: None, "returned None"),
        (lambda width: {3: Parameter(())}, r"returned \{3: Parameter"),
        (lambda width: {"g": Parameter((-1,))}, r"returned \{'g': Parameter\(shape=\(-1,\)"),
        (lambda width: {"g": Parameter((10**12,))}, "returned .*1000000000000"),
        (lambda width: {"g": Parameter((), float("nan"))}, "returned .*nan"),
        (lambda width: {"g": Parameter((2.5,))}, "fails: TypeError: 'float' object"),
        (3, "fails: TypeError: 'int' object is not callable"),
    ],
)
def test_wrong_parameters_of_a_function_are_explained(parameters, message):
    t2t_jax.register_normalization("mine", lambda x, epsilon, **learned: x, parameters)
    model = Config().replace({"model.norm": "mine"}).model
    with refused(match=rf"^parameters\(512\) of normalization 'mine' {message}"):
        num_parameters(model, 11)


@pytest.mark.parametrize("segments", [False, True], ids=["a mask", "segments of a long row"])
def test_the_fused_kernel_and_blocks_are_for_products_alone(monkeypatch, segments):
    monkeypatch.setattr(kernels, "fused_attention", None)
    monkeypatch.setattr(kernels.blockwise, "blockwise_attention", None)
    rng = np.random.default_rng(0)
    query, key, value = (jnp.array(rng.normal(size=(1, 8, 2, 8)), jnp.bfloat16) for _ in range(3))
    mask = jnp.ones((1, 1, 8, 8), bool)
    if segments:
        mask = SegmentMask(*[jnp.ones((1, 8), jnp.int32)] * 2)

    def products(query, key):
        return jnp.einsum("bqhd,bkhd->bhqk", scaled(query), key, preferred_element_type=jnp.float32)

    found, _ = CUDNN_GPU.attention(query, key, value, mask, score=products)
    plain = jax.nn.dot_product_attention(query, key, value)
    np.testing.assert_allclose(
        found.astype(jnp.float32), plain.astype(jnp.float32), rtol=2e-2, atol=2e-2
    )
