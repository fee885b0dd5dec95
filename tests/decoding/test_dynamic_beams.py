"""Dynamic beam allocation, against all outputs that contain the wanted terms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t_jax.decoding.constraints import Constraints
from t2t_jax.decoding.dynamic_beams import DynamicBeamSearch
from t2t_jax.decoding.search import search
from t2t_jax.decoding.strategies import BeamSearch
from t2t_jax.decoding.wanted_terms import Boundaries, Spelling, num_tokens, term_rows

BOS, EOS = 2, 1
VOCAB, LIMIT, SENTENCES = 7, 5, 3
TABLE = np.random.default_rng(3).normal(0, 2, (SENTENCES, LIMIT, VOCAB, VOCAB)).astype(np.float32)
# Token 5 goes on with the word before it, and behind 6 a word begins without a space.
BOUNDARIES = Boundaries(np.arange(VOCAB) == 6, np.arange(VOCAB) == 5)


def spelt(*tokens, **rules):
    return Spelling(tokens, **rules)


CASES = {
    "nothing": [],
    "a token": [(spelt(3),)],
    "two tokens": [(spelt(3, 4),)],
    "one of two spellings": [(spelt(4, 4, 0), spelt(0, 3))],
    "a word that ends": [(spelt(4, word_ends=True),)],
    "a word that begins": [(spelt(3, word_begins=True),)],
    "at the beginning": [(spelt(5, at_beginning=True), spelt(0, 0))],
    "twice": [(spelt(0),), (spelt(0),)],
    "two terms": [(spelt(3, 0),), (spelt(4),)],
    "one within the other": [(spelt(4),), (spelt(3, 4),)],
}


def step(tokens, positions, clock, mask, cache):
    logits = jnp.asarray(TABLE)[jnp.arange(len(tokens))[:, None], positions[:, None], tokens]
    return logits, cache


def search_with(strategy, terms, **how):
    limits = jnp.full(SENTENCES, LIMIT)
    constraints = Constraints(boundaries=BOUNDARIES) if terms is not None else None
    return jax.jit(
        lambda terms: search(
            strategy,
            step,
            jnp.zeros((SENTENCES, 1)),
            limits,
            room=LIMIT,
            bos_id=BOS,
            constraints=constraints,
            terms=terms,
            **how,
        )
    )(terms)


def uses(tokens, wanted):
    """Whether terms have places of their own in an output, and none breaks a rule."""
    taken, place, left = [], 0, sorted(wanted, key=lambda term: -len(term[0].tokens))
    while place < len(tokens):
        place += 1
        for term in left:
            ends = [one for one in term if _stands(one, tokens, place)]
            if ends:
                taken.append((place, ends[0]))
                left.remove(term)
                break
    goes_on = any(
        one.word_ends and place < len(tokens) and BOUNDARIES.continues[tokens[place]]
        for place, one in taken
    )
    return not left and not goes_on


def _stands(one, tokens, end):
    """Whether a spelling stands before a place, where it may."""
    begin = end - len(one.tokens)
    if begin < 0 or tuple(tokens[begin:end]) != one.tokens:
        return False
    if one.at_beginning or one.word_begins:
        return begin == 0 or (one.word_begins and bool(BOUNDARIES.opens[tokens[begin - 1]]))
    return True


def log_prob(tokens, sentence):
    total = 0.0
    for place, token in enumerate(tokens):
        logits = TABLE[sentence, place, (BOS, *tokens)[place]].astype(np.float64)
        total += logits[token] - np.log(np.exp(logits).sum())
    return total


def outputs(wanted, sentence):
    """Every output with the wanted terms, the best first."""
    bodies, found = [()], []
    for _ in range(LIMIT - 1):
        found += [(*body, EOS) for body in bodies if uses(body, wanted)]
        bodies = [(*body, token) for body in bodies for token in range(VOCAB) if token != EOS]
    found += [(*body, EOS) for body in bodies if uses(body, wanted)]
    scored = [(log_prob(one, sentence), one) for one in found]
    return sorted(scored, key=lambda one: -one[0] / ((5 + len(one[1])) / 6) ** 0.6)


@pytest.mark.parametrize("case", CASES)
def test_a_beam_for_everything_ranks_all_outputs_that_contain_the_terms(case):
    wanted = CASES[case]
    rows = term_rows([wanted] * SENTENCES, SENTENCES, 8)
    assert num_tokens(wanted) <= 8
    result = search_with(DynamicBeamSearch(EOS, 2000, 0.6, 8), rows)
    for sentence in range(SENTENCES):
        for place, (expected, tokens) in enumerate(outputs(wanted, sentence)[:8]):
            length = int(result.lengths[sentence, place])
            assert tuple(result.tokens[sentence, place, :length].tolist()) == tokens
            assert result.log_probs[sentence, place] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("by_transformers", [False, True])
def test_without_terms_it_is_beam_search(by_transformers):
    how = EOS, 3, 0.6, 2, by_transformers
    found = search_with(DynamicBeamSearch(*how), term_rows([], SENTENCES, 8))
    expected = search_with(BeamSearch(*how), None)
    np.testing.assert_array_equal(found.tokens, expected.tokens)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-5)


@pytest.mark.parametrize("case", [case for case in CASES if case != "nothing"])
def test_a_small_beam_finds_outputs_with_the_terms_and_the_same_ones_in_any_batch(case):
    wanted = CASES[case]
    alone = [
        search_with(
            DynamicBeamSearch(EOS, 4, 0.6, 1),
            term_rows([wanted if n == sentence else [] for n in range(SENTENCES)], SENTENCES, 16),
        )
        for sentence in range(SENTENCES)
    ]
    found = search_with(
        DynamicBeamSearch(EOS, 4, 0.6, 1), term_rows([wanted] * SENTENCES, SENTENCES, 16)
    )
    for sentence, other in enumerate(alone):
        tokens = found.tokens[sentence, 0, : int(found.lengths[sentence, 0])].tolist()
        assert tokens[-1] == EOS
        assert uses(tokens[:-1], wanted)
        np.testing.assert_array_equal(found.tokens[sentence, 0], other.tokens[sentence, 0])
