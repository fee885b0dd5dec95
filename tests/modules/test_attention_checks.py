"""Kinds of attention that a user registers: their form, and the check before training."""

import pickle
import re

import jax.numpy as jnp
import pytest

import t2t_jax
from t2t_jax.config import AttentionConfig, Config, NormConfig
from t2t_jax.modules.named_functions import function_problems
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("tables")

KIND = t2t_jax.AttentionKind


def _kind(combine, **members):
    return type("Mine", (KIND,), {"combine": combine, **members})


def _problems(kind):
    t2t_jax.register("attention", "mine")(kind)
    sizes = {"d_model": 8, "num_heads": 4, "num_kv_heads": 2, "attention_kind": "mine"}
    return [*function_problems(Config().replace({f"model.{k}": x for k, x in sizes.items()}))]


def _difference(self, heads, *_):
    return heads[:, :, ::2] - heads[:, :, 1::2]


def _scores(self, query, key, g):
    return jnp.einsum("bqhd,bkhd,h->bhqk", query, key, g)


_GOOD = {
    "two maps of grouped heads": _kind(_difference, maps_per_head=2),
    "own scores and a factor of the layer": _kind(
        lambda self, heads, gates, params, layer: heads * layer,
        scores=_scores,
        score_parameters=lambda self, d_k: {"g": t2t_jax.Parameter((), 1.0)},
    ),
}


@pytest.mark.parametrize("name", _GOOD)
def test_a_kind_of_each_position_has_no_problem(name):
    assert _problems(_GOOD[name]) == []


_BAD = {
    "earlier heads": (
        lambda self, heads, *_: heads.cumsum(1),
        "gives .* if many positions are computed together, but .*; combine may depend only on the",
    ),
    "a norm without epsilon": (
        lambda self, heads, *_: heads / jnp.linalg.norm(heads, axis=-1, keepdims=True),
        "has values or gradients that are not finite; fix",
    ),
    "a lost axis": (
        lambda self, heads, *_: heads[:, :, 0],
        r"returned float32\[2, 6, 2\] instead of floats\[2, 6, 4, 2\]; fix the function",
    ),
}


@pytest.mark.parametrize("name", _BAD)
def test_a_kind_that_decodes_otherwise_is_told(name):
    combine, message = _BAD[name]
    (problem,) = _problems(_kind(combine))
    assert re.match(f"attention 'mine' {message}", problem), problem


_SILENT = "has several maps per head, gates or parameters, but no method combine, which reads them"
_OTHER = "register a subclass of t2t_jax.AttentionKind, a function of queries and keys"
_REFUSED = {
    "a number": (3.0, f"is a float; {_OTHER}"),
    "another class": (NormConfig, f"is a NormConfig; {_OTHER}"),
    "maps that nothing combines": (_kind(KIND.combine, maps_per_head=2), _SILENT),
    "gates that nothing reads": (_kind(KIND.combine, gates=lambda self, c: {"g": 1}), _SILENT),
}


@pytest.mark.parametrize("name", _REFUSED)
def test_a_part_of_another_form_is_refused_when_it_is_registered(name):
    part, message = _REFUSED[name]
    with refused(f"attention 'mine' {message}"):
        t2t_jax.register("attention", "mine")(part)


def test_widths_of_gates_are_whole_numbers_by_name():
    kind = _kind(lambda self, heads, *_: heads, gates=lambda self, config: {"g": 0.5})
    (problem,) = _problems(kind)
    assert problem.startswith("gates of attention 'mine' returned {'g': 0.5}; return the width of")


def test_an_attention_with_a_function_of_a_notebook_can_be_pickled():
    t2t_jax.register("attention", "mine")(lambda query, key: 1 / 0)
    attention = AttentionConfig(8, 2, attention_kind="mine")
    assert attention.scores.title == "attention 'mine'"
    assert pickle.loads(pickle.dumps(attention)) == attention
