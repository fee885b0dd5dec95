"""Check a student's beam search against greedy search and a search of all sequences."""

from collections.abc import Iterator, Sequence

import numpy as np

from t2t_jax.errors import reason_of
from t2t_jax.extras.teaching.replacement import Function, name_of
from t2t_jax.extras.teaching.report import Report

_EOS, _VOCAB_SIZE, _MAX_LENGTH = 0, 4, 5
_SEED = 2520
"""A seed for which greedy search, and searches with several length penalties, all differ."""


def check_beam(function: Function) -> Report:
    """Check a function `beam(next_log_probs, eos_id, beam_size, max_length, alpha)` (section 6.1).

    `next_log_probs(tokens)` returns the log-probabilities `[vocabulary]` of the token after a list
    of tokens. The function returns the best sequence, which ends with `eos_id`, and its
    log-probability. The score of a sequence is log_prob / ((5 + length) / 6)^alpha.

    With one hypothesis, the result must be that of greedy search. With a beam that holds all
    sequences, it must be the best of all sequences. A beam may keep finished sequences apart.

    Args:
      function: the function.

    Raises:
      UserError: `function` is not a function.
    """
    all_sequences = _VOCAB_SIZE**_MAX_LENGTH
    hints = {
        "beam size 1 is greedy search": _hint(function, 1, 0.0, _greedy()),
        "a large beam finds the best": _hint(function, all_sequences, 0.0, _best(0.0)),
        "length penalty": _hint(function, all_sequences, 1.0, _best(1.0)),
    }
    return Report(name_of(function), hints)


def _next_log_probs(tokens: Sequence[int]) -> np.ndarray:
    """Return the log-probabilities of a random model, whose sequences have at most 5 tokens."""
    logits = np.random.default_rng([_SEED, *map(int, tokens)]).normal(size=_VOCAB_SIZE)
    logits[_EOS] += 100 * (len(tokens) >= _MAX_LENGTH - 1)
    return logits - np.log(np.exp(logits).sum())


def _log_prob(tokens: Sequence[int]) -> float:
    return sum(_next_log_probs(tokens[:n])[token] for n, token in enumerate(tokens))


def _sequences(tokens: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """Yield all sequences of a model that begin with some tokens."""
    yield (*tokens, _EOS)
    if len(tokens) < _MAX_LENGTH - 1:
        for token in range(1, _VOCAB_SIZE):
            yield from _sequences((*tokens, token))


def _best(alpha: float) -> tuple[int, ...]:
    return max(_sequences(), key=lambda x: _log_prob(x) / ((5 + len(x)) / 6) ** alpha)


def _greedy(tokens: tuple[int, ...] = ()) -> tuple[int, ...]:
    tokens = (*tokens, int(_next_log_probs(tokens).argmax()))
    return tokens if tokens[-1] == _EOS else _greedy(tokens)


def _hint(function: Function, beam_size: int, alpha: float, expected: tuple[int, ...]) -> str:
    """Return what is wrong with the result of a search, or ""."""
    try:
        tokens, log_prob = function(_next_log_probs, _EOS, beam_size, _MAX_LENGTH, alpha)
        result, log_prob = tuple(map(int, tokens)), float(log_prob)
    except Exception as error:  # code of a student may raise any error
        return f"raises {reason_of(error)}"
    if result == expected:
        is_sum = abs(log_prob - _log_prob(expected)) < 1e-4
        return "" if is_sum else "log_prob is not the sum of the tokens' log-probabilities"
    if result[-1:] != (_EOS,) or _EOS in result[:-1]:
        return "the sequence must end with eos_id, and contain it once"
    if result == _greedy():
        return "this is the result of greedy search; keep beam_size hypotheses at each step"
    if alpha and result == _best(0.0):
        return "the length penalty has no effect; divide by ((5 + length) / 6)^alpha"
    return f"the best sequence is {list(expected)}, and the result {list(result)}"
