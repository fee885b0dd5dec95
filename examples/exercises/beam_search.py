"""Exercise: write beam search with a length penalty (section 6.1).

    python examples/exercises/beam_search.py

Write `beam(next_log_probs, eos_id, beam_size, max_length, alpha)`, which returns the tokens of the
best sequence and its log-probability. `next_log_probs(tokens)` gives the log-probabilities of the
next token. A finished sequence ends with `eos_id` and is scored by log_prob / ((5 + length) /
6)^alpha.

Wrong answers: `check_beam` names greedy search, a penalty without effect, and sequences that go on
after their end.
"""

from t2t_jax import teaching


def beam(next_log_probs, eos_id, beam_size, max_length, alpha):
    """Return the best finished sequence and its log-probability."""
    live, finished = [([], 0.0)], []
    for _ in range(max_length):
        candidates = []
        for tokens, log_prob in live:
            log_probs = next_log_probs(tokens)
            candidates += [([*tokens, k], log_prob + x) for k, x in enumerate(log_probs)]
        candidates = sorted(candidates, key=lambda candidate: -candidate[1])[:beam_size]
        finished += [x for x in candidates if x[0][-1] == eos_id]
        live = [x for x in candidates if x[0][-1] != eos_id]
    return max(finished, key=lambda x: x[1] / ((5 + len(x[0])) / 6) ** alpha)


if __name__ == "__main__":
    print(teaching.check_beam(beam))
