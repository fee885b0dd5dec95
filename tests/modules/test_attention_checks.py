"""Kinds of attention that a user registers: their form, and the check before training."""

import pickle
import re
from dataclasses import dataclass

import jax.numpy as jnp
import pytest

import t2t_jax
from t2t_jax.config import AttentionConfig, Config
from t2t_jax.modules.named_functions import function_problems
from tests.refusals import refused
from tests.selection import thorough_after

KIND = t2t_jax.AttentionKind


def _kind(combine, **members):
    return type("Mine", (KIND,), {"combine": combine, **members})


def _problems(kind, **fields):
    t2t_jax.register("attention", "mine")(kind)
    sizes = {"d_model": 8, "num_heads": 2, "attention_kind": "mine"} | fields
    return list(function_problems(Config().replace({f"model.{k}": x for k, x in sizes.items()})))


_GOOD = {
    "two maps of grouped heads": (
        _kind(lambda self, heads, *_: heads[:, :, ::2] - heads[:, :, 1::2], maps_per_head=2),
        {"num_heads": 4, "num_kv_heads": 2},
    ),
    "a factor of the layer": (_kind(lambda self, heads, gates, params, layer: heads * layer), {}),
    "own scores": (
        _kind(
            lambda self, heads, *_: heads / 2,
            scores=lambda self, query, key, g: jnp.einsum("bqhd,bkhd,h->bhqk", query, key, g),
            score_parameters=lambda self, d_k: {"g": t2t_jax.Parameter((), 1.0)},
        ),
        {"num_kv_heads": 1},
    ),
}


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("name", _GOOD)
def test_a_kind_of_each_position_has_no_problem(name):
    kind, fields = _GOOD[name]
    assert _problems(kind, **fields) == []


def _of_index(self, heads, gates, params, layer):
    return heads * jnp.arange(1, heads.shape[1] + 1)[:, None, None]


_BAD = {
    "the index in the row": (_of_index, "gives .* if many positions are computed together, but"),
    "earlier heads": (
        lambda self, heads, *_: heads.cumsum(1),
        "gives .* if many positions are computed together, but .*; combine may depend only on the",
    ),
    "a norm without epsilon": (
        lambda self, heads, *_: heads / jnp.linalg.norm(heads, axis=-1, keepdims=True),
        "has values or gradients that are not finite; the heads of a query without keys",
    ),
    "a lost axis": (
        lambda self, heads, *_: heads[:, :, 0],
        r"returned float32\[2, 6, 4\] instead of floats\[2, 6, 2, 4\]; fix the function",
    ),
    "an unknown gate": (
        lambda self, heads, gates, *_: heads * gates["other"],
        "raised KeyError for .*: 'other'; fix the function",
    ),
}


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("name", thorough_after(3, _BAD))
def test_a_kind_that_decodes_otherwise_is_told(name):
    combine, message = _BAD[name]
    (problem,) = _problems(_kind(combine))
    assert re.match(f"attention 'mine' {message}", problem), problem


class _Callable:
    def __call__(self, query, key):
        return jnp.einsum("bqhd,bkhd->bhqk", query, key)


@dataclass(frozen=True)
class _Other:
    factor: float = 1.0


_SILENT = "has several maps per head, gates or parameters, but no method combine, which reads them"
_REFUSED = {
    "a number": (3.0, "is a float; register a subclass of t2t_jax.AttentionKind, a function of"),
    "another class": (_Other, "is a _Other; register a subclass of t2t_jax.AttentionKind, a"),
    "maps that nothing combines": (_kind(KIND.combine, maps_per_head=2), _SILENT),
    "gates that nothing reads": (_kind(KIND.combine, gates=lambda self, c: {"g": 1}), _SILENT),
}


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("name", _REFUSED)
def test_a_part_of_another_form_is_refused_when_it_is_registered(name):
    part, message = _REFUSED[name]
    with refused(match=f"^attention 'mine' {message}"):
        t2t_jax.register("attention", "mine")(part)


@pytest.mark.usefixtures("tables")
def test_widths_of_gates_are_whole_numbers_by_name():
    t2t_jax.register("attention", "mine")(
        _kind(lambda self, heads, *_: heads, gates=lambda self, config: {"g": 0.5})
    )
    with refused("gates of attention 'mine' returned {'g': 0.5}; return the width of a head"):
        _ = AttentionConfig(8, 2, attention_kind="mine").num_parameters


@pytest.mark.usefixtures("tables")
def test_an_object_that_can_be_called_is_a_score_function():
    t2t_jax.register("attention", "mine")(_Callable())
    attention = AttentionConfig(8, 2, attention_kind="mine")
    assert attention.scores.title == "attention 'mine'"
    assert not attention.kind.combines
    assert pickle.loads(pickle.dumps(attention)) == attention
