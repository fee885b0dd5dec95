"""Searches under constraints against enumeration, and against NumPy step by step."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t_jax.decoding.search.constraints import Constraints, Phrases
from t2t_jax.decoding.search.loop import advance, begin, results
from t2t_jax.decoding.search.strategies import BeamSearch, Greedy, Sampling
from tests.selection import thorough_after

PAD, EOS, BOS = 0, 1, 2
VOCAB, LIMIT, SENTENCES = 5, 5, 6
TABLE = np.random.default_rng(3).normal(size=(SENTENCES, LIMIT, VOCAB, VOCAB)).astype(np.float32)
# 3 4 and 4 0 3, wherever they stand.
SPELT = ((3, 4), (4, 0, 3))
PHRASES = Phrases(
    initial=np.array([True, False, False, False]),
    always=np.array([True, False, False, False]),
    sources=np.array([0, 1, 0, 2, 3, 0, 0, 0], np.int32),
    tokens=np.array([3, 4, 4, 0, 3, -1, -1, -1], np.int32),
    targets=np.array([1, 4, 2, 3, 4, -1, -1, 4], np.int32),
)
PREFIXES = np.array([[], [4], [3, 4], [0, 0, 0], [3, 3], []], dtype=object)


def flags(*ids):
    return np.isin(np.arange(VOCAB), ids)


CASES = {
    "min_length": ({"min_length": 3}, False),
    "forbidden": ({"forbidden": flags(PAD, BOS)}, False),
    "unigram": ({"no_repeat_ngram_size": 1}, False),
    "bigram": ({"no_repeat_ngram_size": 2}, False),
    "longer than the ring buffer": ({"no_repeat_ngram_size": 9}, False),
    "phrases": ({"phrases": PHRASES}, False),
    "prefixes": ({}, True),
    "nothing is left": (
        {"forbidden": flags(PAD, BOS, 4), "min_length": 4, "no_repeat_ngram_size": 1},
        False,
    ),
    "all": (
        {"min_length": 2, "forbidden": flags(BOS), "no_repeat_ngram_size": 2, "phrases": PHRASES},
        True,
    ),
}


def step(tokens, positions, clock, mask, cache):
    del clock, mask
    rows = jnp.arange(len(tokens))[:, None]
    return jnp.asarray(TABLE)[rows, positions[:, None], tokens], cache


@functools.partial(jax.jit, static_argnums=0)
def search_with(strategy, constraints, prefixes, keys=None):
    state = begin(
        (),
        jnp.full(SENTENCES, LIMIT),
        beam_size=strategy.beam_size,
        capacity=LIMIT,
        bos_id=BOS,
        keys=keys,
        constraints=constraints,
        prefixes=prefixes,
    )
    return results(strategy, advance(strategy, step, state, constraints=constraints))


def arrays(fields, has_prefixes):
    prefixes = np.full((SENTENCES, 4), -1, np.int32)
    for row, prefix in zip(prefixes, PREFIXES, strict=True):
        row[: len(prefix)] = prefix
    fields = {**fields}
    if "min_length" in fields:
        fields["min_length"] = np.int32(fields["min_length"])
    return Constraints(**fields), prefixes if has_prefixes else None


# The oracles: one hypothesis at a time.


def may_follow(tokens, sentence, fields, has_prefixes):
    """The ids that may come after some tokens, by the words of the documentation."""
    if has_prefixes and len(tokens) < len(PREFIXES[sentence]):
        return [PREFIXES[sentence][len(tokens)]]
    size = fields.get("no_repeat_ngram_size", 0)
    left = []
    for token in range(VOCAB):
        longer = (*tokens, token)
        grams = [longer[i : i + size] for i in range(len(longer) - size + 1)] if size else []
        ends = [longer[-len(spelt) :] == spelt for spelt in SPELT if "phrases" in fields]
        short = token == EOS and len(tokens) < fields.get("min_length", 0)
        forbidden = "forbidden" in fields and fields["forbidden"][token]
        if not (short or forbidden or any(ends) or (grams[-1:] and grams[-1] in grams[:-1])):
            left.append(token)
    return left or [EOS]


def log_probs(tokens, sentence):
    logits = TABLE[sentence, len(tokens), (BOS, *tokens)[-1]].astype(np.float64)
    return logits - np.log(np.exp(logits).sum())


def all_outputs(sentence, fields, has_prefixes):
    """Every output that may be found, with its log-probability."""
    live, found = [((), 0.0)], []
    for _ in range(LIMIT):
        longer = [
            ((*tokens, token), log_prob + log_probs(tokens, sentence)[token])
            for tokens, log_prob in live
            for token in may_follow(tokens, sentence, fields, has_prefixes)
        ]
        found += [one for one in longer if one[0][-1] == EOS]
        live = [one for one in longer if one[0][-1] != EOS]
    return found or live


def read(result, row, place=0):
    length = int(result.lengths[row, place])
    return tuple(np.asarray(result.tokens)[row, place, :length].tolist())


@pytest.mark.parametrize("case", thorough_after(4, CASES))
def test_a_beam_for_everything_ranks_all_outputs_that_satisfy_the_constraints(case):
    constraints, prefixes = arrays(*CASES[case])
    result = search_with(BeamSearch(EOS, 256, 0.6, 8), constraints, prefixes)
    for sentence in range(SENTENCES):
        outputs = all_outputs(sentence, *CASES[case])
        outputs.sort(key=lambda one: -one[1] / ((5 + len(one[0])) / 6) ** 0.6)
        for place, (tokens, log_prob) in enumerate(outputs[:8]):
            assert read(result, sentence, place) == tokens
            assert result.log_probs[sentence, place] == pytest.approx(log_prob, rel=1e-5)
        assert (np.asarray(result.lengths)[sentence, len(outputs) :] == 0).all()


@pytest.mark.parametrize("case", thorough_after(3, CASES))
def test_greedy_search_takes_the_most_probable_of_what_is_left(case):
    constraints, prefixes = arrays(*CASES[case])
    result = search_with(Greedy(EOS), constraints, prefixes)
    keys = jax.random.split(jax.random.key(0), SENTENCES)
    sampled = search_with(Sampling(EOS, top_k=1), constraints, prefixes, keys)
    for sentence in range(SENTENCES):
        tokens, log_prob = (), 0.0
        while len(tokens) < LIMIT and EOS not in tokens:
            every = log_probs(tokens, sentence)
            left = may_follow(tokens, sentence, *CASES[case])
            best = max(left, key=every.__getitem__)
            tokens, log_prob = (*tokens, best), log_prob + every[best]
        assert read(result, sentence) == read(sampled, sentence) == tokens
        assert result.log_probs[sentence, 0] == pytest.approx(log_prob, rel=1e-5)


def test_samples_are_drawn_from_what_is_left_and_scored_by_the_model():
    fields, has_prefixes = CASES["all"]
    constraints, prefixes = arrays(fields, has_prefixes)
    strategy = Sampling(EOS, temperature=2.0, top_p=0.9)
    seen = set()
    for seed in range(20):
        keys = jax.random.split(jax.random.key(seed), SENTENCES)
        result = search_with(strategy, constraints, prefixes, keys)
        for sentence in range(SENTENCES):
            tokens, log_prob = read(result, sentence), 0.0
            seen.add((sentence, tokens))
            for place, token in enumerate(tokens):
                before = tokens[:place]
                assert token in may_follow(before, sentence, fields, has_prefixes)
                log_prob += log_probs(before, sentence)[token]
            assert result.log_probs[sentence, 0] == pytest.approx(log_prob, rel=1e-5)
    assert len(seen) > 20


def test_other_values_of_the_same_constraints_need_no_other_program():
    strategy = Greedy(EOS)
    search_with(strategy, *arrays({"min_length": 1, "forbidden": flags(PAD)}, True))
    programs = search_with._cache_size()
    search_with(strategy, *arrays({"min_length": 4, "forbidden": flags(3)}, True))
    assert search_with._cache_size() == programs
