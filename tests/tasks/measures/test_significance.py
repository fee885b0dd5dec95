import itertools
import random

import numpy as np
import pytest

from t2t_jax.errors import UserError
from t2t_jax.tasks.measures.bleu import (
    approximate_randomization,
    bleu_metric,
    bleu_of,
    sentence_statistics,
)

REFERENCES = [" ".join(f"w{i * j % 23}" for j in range(2, 12)) for i in range(1, 101)]


def spoilt(lines, rate, seed):
    """The lines with some of their words replaced."""
    rng = random.Random(seed)
    return [" ".join("x" if rng.random() < rate else w for w in line.split()) for line in lines]


GOOD, ALIKE, BAD = (spoilt(REFERENCES, rate, seed) for rate, seed in ((0.1, 0), (0.1, 1), (0.3, 2)))


def p_value_of(baseline, system, references, **how):
    statistics = (sentence_statistics(lines, references) for lines in (baseline, system))
    return approximate_randomization(*statistics, **how)


def test_statistics_of_a_sentence_are_its_matches_and_lengths():
    [row] = sentence_statistics(["the black cat sat"], ["the black dog sat ."])
    matches, ngrams, lengths = [3, 1, 0, 0], [4, 3, 2, 1], [4, 5]
    np.testing.assert_array_equal(row, matches + ngrams + lengths)


@pytest.mark.parametrize("seed", range(20))
def test_bleu_of_random_corpora_is_that_of_sacrebleu(seed):
    """Corpora of 1 to 6 sentences of 0 to 12 words: some have no word, match or 4-gram."""
    rng = random.Random(seed)
    bleu = bleu_metric(force=True)
    corpora, scores = [], []
    for _ in range(50):
        longest, num_words = rng.choice([0, 1, 3, 5, 12]), rng.choice([2, 5, 20])
        lines = [
            [
                " ".join(f"w{rng.randrange(num_words)}." for _ in range(rng.randint(0, longest)))
                for _ in range(2)
            ]
            for _ in range(rng.randint(1, 6))
        ]
        hypotheses, references = map(list, zip(*lines, strict=True))
        corpora.append(sentence_statistics(hypotheses, references).sum(axis=0))
        scores.append(bleu.corpus_score(hypotheses, [references]).score)
    np.testing.assert_allclose(bleu_of(np.stack(corpora)), scores, rtol=0, atol=1e-9)


def test_bleu_takes_any_leading_axes():
    rows = sentence_statistics(GOOD, REFERENCES)
    assert bleu_of(rows.sum(axis=0)).shape == ()
    np.testing.assert_array_equal(bleu_of(rows.reshape(4, 25, 10)), bleu_of(rows).reshape(4, 25))


def test_p_is_the_share_of_all_exchanges_that_differ_as_much():
    """sacreBLEU scores each of the 2^8 exchanges of eight sentences."""
    references, old, new = (lines[:8] for lines in (REFERENCES, GOOD, ALIKE))
    bleu, differences = bleu_metric(force=True), []
    for exchange in itertools.product([False, True], repeat=8):
        pairs = [
            (b, a) if is_exchanged else (a, b)
            for a, b, is_exchanged in zip(old, new, exchange, strict=True)
        ]
        scores = [
            bleu.corpus_score(list(lines), [references]).score for lines in zip(*pairs, strict=True)
        ]
        differences.append(abs(scores[1] - scores[0]))
    expected = np.mean(np.array(differences) >= differences[0] - 1e-9)
    p_value = p_value_of(old, new, references, num_samples=10_000)
    assert 0.1 < expected < 0.9
    assert abs(p_value - expected) < 0.02  # four standard errors


def test_a_clear_difference_has_the_least_p_in_both_directions():
    for old, new in ((BAD, GOOD), (GOOD, BAD)):
        assert p_value_of(old, new, REFERENCES, num_samples=499) == 1 / 500


def test_equal_systems_have_p_1():
    assert p_value_of(GOOD, GOOD, REFERENCES) == 1


def test_samples_depend_on_the_seed_and_not_on_the_size_of_blocks(monkeypatch):
    expected = p_value_of(GOOD, ALIKE, REFERENCES, num_samples=100)
    other = p_value_of(GOOD, ALIKE, REFERENCES, num_samples=100, seed=1)
    assert other != expected
    monkeypatch.setattr("t2t_jax.tasks.measures.bleu._BLOCK_SIZE", 700)
    assert p_value_of(GOOD, ALIKE, REFERENCES, num_samples=100) == expected


def test_a_difference_of_a_fiftieth_of_a_point_has_a_p_near_1():
    """Both systems have the same translations in another order, but for one word too many."""
    old, new = (GOOD + ALIKE) * 2, (ALIKE + GOOD) * 2
    new[0] += " x"
    references = REFERENCES * 4
    scores = [bleu_of(sentence_statistics(lines, references).sum(0)) for lines in (old, new)]
    assert 0.015 < scores[0] - scores[1] < 0.025
    assert p_value_of(old, new, references) > 0.9


def test_one_in_twenty_pairs_of_exchangeable_systems_differs_significantly():
    """Each sentence has six translations with random errors, and both systems draw one of them."""
    rng, num_pairs, num_sentences = np.random.default_rng(0), 2000, 100
    bank = np.stack(
        [sentence_statistics(spoilt(REFERENCES, 0.3, 10 + k), REFERENCES) for k in range(6)]
    )
    num_found = 0
    for sample in range(num_pairs):
        sentences = rng.integers(len(REFERENCES), size=num_sentences)
        old, new = (bank[rng.integers(6, size=num_sentences), sentences] for _ in range(2))
        num_found += approximate_randomization(old, new, num_samples=199, seed=sample) <= 0.05
    assert 0.04 <= num_found / num_pairs <= 0.06


@pytest.mark.parametrize("arguments", [(GOOD[1:], REFERENCES), (GOOD, REFERENCES[1:])])
def test_systems_of_other_sentences_are_refused(arguments):
    with pytest.raises(UserError, match=r"\d+ translations against \d+ references"):
        sentence_statistics(*arguments)
