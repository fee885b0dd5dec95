"""Checks of a student's functions: right ones get all points, and each planted bug its hint."""

import json
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import t2t_jax
from t2t_jax import teaching
from t2t_jax.functional.position import tensor2tensor_sinusoids


def attention(query, key, value, mask, *, axis=-1, scale=True, fill=-1e9, is_masked=True):
    """Equation 1 as a student would write it, and with mistakes."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key)
    scores = scores / np.sqrt(query.shape[-1]) if scale else scores
    scores = jnp.where(mask, scores, fill) if is_masked else scores
    weights = jax.nn.softmax(scores, axis)
    weights = jnp.where(mask, weights, 0) if is_masked and np.isfinite(fill) else weights
    return jnp.einsum("bhqk,bkhd->bqhd", weights, value)


def heads_first(query, key, value, mask):
    return attention(*(x.swapaxes(1, 2) for x in (query, key, value)), mask).swapaxes(1, 2)


@dataclass
class Attention:
    """A callable object, which has no hash."""

    scale: bool = True

    def __call__(self, query, key, value, mask):
        return attention(query, key, value, mask, scale=self.scale)


@pytest.mark.parametrize(
    ("function", "layout"),
    [(attention, "bthd"), (heads_first, "bhtd"), (Attention(), "bthd")],
    ids=["bthd", "bhtd", "object"],
)
def test_right_attention_gets_all_points_in_its_layout(function, layout):
    report = teaching.check_attention(function, layout=layout)
    assert report.points == 7, report


def test_attention_with_a_bias_is_checked_with_a_bias():
    def with_bias(query, key, value, mask, bias):
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / np.sqrt(query.shape[-1])
        scores = scores if bias is None else scores + bias
        weights = jnp.where(mask, jax.nn.softmax(jnp.where(mask, scores, -1e9)), 0)
        return jnp.einsum("bhqk,bkhd->bqhd", weights, value)

    def without_bias(query, key, value, mask, bias):
        return attention(query, key, value, mask)

    assert teaching.check_attention(with_bias).points == 8
    assert "not added" in teaching.check_attention(without_bias).hints["bias"]


@pytest.mark.parametrize(
    ("mistakes", "check", "hint"),
    [
        ({"axis": -2}, "all keys", "softmax is over queries"),
        ({"axis": 1}, "all keys", "softmax is over heads"),
        ({"scale": False}, "all keys", "not divided by sqrt(d_k)"),
        ({"is_masked": False}, "mask", "the mask has no effect"),
        ({"fill": -np.inf}, "queries without a key", "differs only for queries that may attend"),
        ({"fill": -10.0}, "large scores", "it should be"),
    ],
)
def test_planted_bugs_of_attention_are_named(mistakes, check, hint):
    report = teaching.check_attention(partial(attention, **mistakes))
    assert hint in report.hints[check]
    assert report.points < 7


def test_the_other_layout_and_numpy_are_named():
    def by_heads(query, key, value, mask):
        return heads_first(query, key, value, mask)

    def by_numpy(query, key, value, mask):
        return np.asarray(attention(query, key, value, mask))

    assert "layout='bhtd'" in teaching.check_attention(by_heads).hints["all keys"]
    report = teaching.check_attention(by_numpy)
    assert report.points == 5
    assert "raises Tracer" in report.hints["jax.jit"]
    with pytest.raises(t2t_jax.UserError, match="layout='htbd' is unknown"):
        teaching.check_attention(by_heads, layout="htbd")
    with pytest.raises(t2t_jax.UserError, match="3 is not a function; pass the function itself"):
        teaching.check_attention(3)


def sinusoids(length, d_model, *, first=0, is_interleaved=True):
    """Section 3.5 with a loop, and with mistakes."""
    table = np.zeros((length, d_model))
    for position in range(length):
        for i in range(d_model // 2):
            angle = (position + first) / 10_000 ** (2 * i / d_model)
            columns = (2 * i, 2 * i + 1) if is_interleaved else (i, d_model // 2 + i)
            table[position, columns] = np.sin(angle), np.cos(angle)
    return table


def test_positions_are_checked_against_section_3_5():
    assert teaching.check_positions(sinusoids).points == 3
    hints = {
        "two halves": partial(sinusoids, is_interleaved=False),
        "start at 0": partial(sinusoids, first=1),
        "tensor2tensor": tensor2tensor_sinusoids,
    }
    for hint, function in hints.items():
        assert hint in teaching.check_positions(function).hints["length 300, d_model 64"]
    assert teaching.check_positions(partial(sinusoids)).function == "partial"

    def too_short(length, d_model):
        return np.zeros((length - 1, d_model))

    assert (
        "[9, 8]; return [10, 8]"
        in teaching.check_positions(too_short).hints["length 10, d_model 8"]
    )


def multi_head(x, encoded, mask, params, num_heads, *, transposes=True, has_output=True):
    heads = []
    for columns in np.split(np.arange(params["W_Q"].shape[1]), num_heads):
        query, key, value = (
            (y @ params[name][:, columns])[:, :, None]
            for name, y in (("W_Q", x), ("W_K", encoded), ("W_V", encoded))
        )
        heads.append(attention(query, key, value, mask)[:, :, 0])
    joined = jnp.concatenate(heads, -1)
    if not transposes:
        joined = jnp.stack(heads, 1).reshape(joined.shape)
    return joined @ params["W_O"] if has_output else joined


def test_multi_head_attention_is_checked_with_random_and_trained_matrices():
    config = t2t_jax.AttentionConfig(d_model=12, num_heads=3)
    module = t2t_jax.MultiHeadAttention(config)
    params = module.init(jax.random.key(1), jnp.zeros((1, 2, 12)))["params"]
    letters = {"query": "Q", "key": "K", "value": "V", "output": "O"}
    trained = {f"W_{letters[name]}": matrix["kernel"] for name, matrix in params.items()}
    assert teaching.check_multi_head(multi_head).points == 3
    assert teaching.check_multi_head(multi_head, trained, num_heads=3).points == 3
    for hint, mistakes in {
        "transpose before you reshape": {"transposes": False},
        "output matrix is missing": {"has_output": False},
    }.items():
        report = teaching.check_multi_head(partial(multi_head, **mistakes))
        assert hint in report.hints["cross-attention"]
    report = teaching.check_multi_head(lambda x, y, mask, params, h: x * len(params.popitem()))
    assert report.points == 0  # each call gets a new dictionary
    with pytest.raises(t2t_jax.UserError, match=r"params\['W_Q'\] has shape \[12, 12\]; give"):
        teaching.check_multi_head(multi_head, trained, num_heads=5)


def beam(
    next_log_probs, eos_id, beam_size, max_length, alpha, *, sets_aside=True, divides=True, both=1
):
    """Section 6.1; with both = 2 as in tensor2tensor, which keeps finished sequences apart."""
    live, finished = [([], 0.0)], []
    for _ in range(max_length):
        candidates = [
            ([*tokens, token], log_prob + log_probs[token])
            for tokens, log_prob in live
            for log_probs in [next_log_probs(tokens)]
            for token in range(len(log_probs))
        ]
        live = sorted(candidates, key=lambda x: -x[1])[: both * beam_size]
        if sets_aside:
            finished += [x for x in live if x[0][-1] == eos_id]
            live = [x for x in live if x[0][-1] != eos_id][:beam_size]
    exponent = alpha if divides else 0
    return max(finished or live, key=lambda x: x[1] / ((5 + len(x[0])) / 6) ** exponent)


@pytest.mark.parametrize(
    ("mistakes", "points", "hint"),
    [
        ({}, 3, ""),
        ({"both": 2}, 3, ""),
        ({"divides": False}, 2, "length penalty has no effect"),
        ({"sets_aside": False}, 0, "the sequence must end with eos_id, and contain it once"),
        ({"beam_size": 1}, 1, "keep beam_size hypotheses"),
    ],
)
def test_beam_search_is_checked_against_greedy_search_and_all_sequences(mistakes, points, hint):
    def student(next_log_probs, eos_id, beam_size, max_length, alpha):
        options = {"beam_size": beam_size, **mistakes}
        return beam(next_log_probs, eos_id, max_length=max_length, alpha=alpha, **options)

    report = teaching.check_beam(student)
    assert report.points == points
    assert hint in "\n".join(report.hints.values())


def test_a_report_is_json_for_an_autograder():
    def broken(length, d_model):
        raise ZeroDivisionError("division by zero")

    report = teaching.check_positions(broken)
    graded = json.loads(report.to_json())
    assert (graded["function"], graded["points"], graded["max_points"]) == ("broken", 0, 3)
    assert graded["checks"][0] == {
        "name": "length 10, d_model 8",
        "points": 0,
        "hint": "raises ZeroDivisionError: division by zero",
    }
    assert str(report).splitlines()[0] == "broken: 0 of 3 points"
