"""Beam search over a step function of one's own, against enumeration."""

import inspect
import itertools
import math

import jax.numpy as jnp
import numpy as np
import pytest

from t2t_jax import UserError, beam_search

EOS, START, VOCAB, LENGTH = 1, 2, 5, 4


def _trigrams(seed, eos=0.0):
    """The log-probability of a token after the two before it."""
    logits = np.random.default_rng(seed).normal(size=(VOCAB, VOCAB, VOCAB)) * 1.5
    logits[..., EOS] += eos
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def _enumerated(table, start, alpha):
    """Every sequence that ends within the length, and its score, best first."""
    found = []
    for length in range(1, LENGTH + 1):
        for body in itertools.product([t for t in range(VOCAB) if t != EOS], repeat=length - 1):
            tokens = (*body, EOS)
            read = (start, start, *tokens)
            log_prob = sum(table[read[i : i + 3]] for i in range(length))
            found.append((log_prob / ((5 + length) / 6) ** alpha, tokens))
    return sorted(found, reverse=True)


def _step(table):
    def step(tokens, state):
        before = state["before"]
        return jnp.asarray(table, jnp.float32)[before, tokens], {"before": tokens}

    return step


@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_a_beam_that_holds_everything_finds_what_enumeration_finds(alpha):
    table, starts = _trigrams(0), jnp.array([START, 3])
    found = beam_search(
        _step(table),
        {"before": starts},
        starts,
        eos_id=EOS,
        max_length=LENGTH,
        beam_size=4**LENGTH,
        alpha=alpha,
    )
    for row, start in enumerate(starts):
        expected = _enumerated(table, int(start), alpha)[:20]
        for place, (score, tokens) in enumerate(expected):
            assert tuple(found.tokens[row, place][: len(tokens)].tolist()) == tokens
            assert found.scores[row, place] == pytest.approx(score, rel=1e-4)
            assert found.lengths[row, place] == len(tokens)


def test_the_state_follows_its_hypothesis_in_a_narrow_beam():
    """The log-probability of each hypothesis is that of its own tokens, whichever others died."""
    table, starts = _trigrams(3, eos=-1.5), jnp.array([START, 4, 3])
    found = beam_search(
        _step(table), {"before": starts}, starts, eos_id=EOS, max_length=12, beam_size=3, pad_id=9
    )
    assert found.lengths.max() > 6
    for row, start in enumerate(starts):
        for tokens, length, log_prob in zip(
            found.tokens[row].tolist(), found.lengths[row], found.log_probs[row], strict=True
        ):
            assert {*tokens[int(length) :]} <= {9}
            if not length:
                continue  # fewer than three have ended
            read = (int(start), int(start), *tokens[: int(length)])
            own = sum(table[read[i : i + 3]] for i in range(int(length)))
            assert log_prob == pytest.approx(own, rel=1e-4)


def test_a_model_without_a_state_and_one_position():
    logits = jnp.log(jnp.array([0.1, 0.6, 0.3]))
    step = lambda tokens, state: (jnp.broadcast_to(logits, (len(tokens), 3)), state)  # noqa: E731
    found = beam_search(step, None, jnp.array([0]), eos_id=1, max_length=1, beam_size=2)
    assert found.tokens[0, 0].tolist() == [1]
    assert math.exp(found.log_probs[0, 0]) == pytest.approx(0.6, rel=1e-5)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"max_length": 0}, "max_length=0 is less than 1"),
        ({"beam_size": 0}, "beam_size=0 is less than 1"),
        ({"alpha": -1.0}, r"alpha=-1.0 is less than 0"),
    ],
)
def test_numbers_out_of_their_range_are_refused(wrong, says):
    how = {"eos_id": 1, "max_length": 3} | wrong
    with pytest.raises(UserError, match=says):
        beam_search(_step(_trigrams(0)), None, jnp.array([0]), **how)


def _made(logits, state):
    return lambda tokens, _: (jnp.zeros((len(tokens), logits) if logits else 3), state)


@pytest.mark.parametrize(
    ("step", "state", "wrong", "says"),
    [
        (_made(5, None), None, {"start": jnp.array(2)}, r"start has shape \(\)"),
        (_made(5, None), jnp.zeros((3, 2)), {}, "give it a row for each of the 1 sentences"),
        (lambda tokens, state: tokens, None, {}, "return logits and state"),
        (_made(None, None), None, {}, r"logits of shape \(3,\) for 4 hypotheses"),
        (_made(5, None), None, {"eos_id": 5}, "eos_id=5 is not a token; give one from 0 to 4"),
        (_made(5, 0.5), None, {}, "step returned a state of"),
    ],
)
def test_a_step_function_that_does_not_fit_is_refused(step, state, wrong, says):
    how = {"start": jnp.array([2]), "eos_id": 1, "max_length": 3} | wrong
    with pytest.raises(UserError, match=says):
        # As users have it: in tests, types may be checked ahead of it.
        inspect.unwrap(beam_search)(step, state, **how)
