"""Tests of whether two systems differ in BLEU by more than the choice of sentences explains."""

from collections.abc import Sequence

import numpy as np

from t2t_jax.tasks.measures.bleu import bleu_metric, check_references

_MAX_ORDER = 4  # BLEU counts n-grams of one to four words.
_BLOCK_SIZE = 2**22  # Draws times sentences in memory at a time: 32 MiB of float64.


def sentence_statistics(hypotheses: Sequence[str], references: Sequence[str]) -> np.ndarray:
    """Compute the sufficient statistics of sacreBLEU's BLEU for each sentence.

    The sum over sentences gives the BLEU of the corpus by `bleu_of`.

    Returns:
      [sentences, 10] float64 of whole numbers: the matching n-grams for n = 1 to 4, the n-grams of
      the translation for n = 1 to 4, and the words of the translation and of the reference.
    """
    check_references(hypotheses, references)
    # sacreBLEU warns of scores of single sentences unless `effective_order` is set. It does not
    # change the counts.
    metric = bleu_metric(effective_order=True)
    scores = (
        metric.sentence_score(hypothesis, [reference])
        for hypothesis, reference in zip(hypotheses, references, strict=True)
    )
    return np.array([[*s.counts, *s.totals, s.sys_len, s.ref_len] for s in scores], np.float64)


def bleu_of(statistics: np.ndarray) -> np.ndarray:
    """Compute BLEU from sufficient statistics, as sacreBLEU does by default.

    The k-th order of n-grams without a match counts as 1 / 2^k matches (`exp` in sacreBLEU; Chen
    and Cherry 2014, method 3). BLEU is 0 where no word matches, and where a corpus has no n-gram
    of some order.

    Args:
      statistics: [..., 10] sums of rows of `sentence_statistics` over the sentences of a corpus.

    Returns:
      [...] float64, 0 to 100.
    """
    statistics = np.asarray(statistics, np.float64)
    matches, totals = statistics[..., :_MAX_ORDER], statistics[..., _MAX_ORDER:-2]
    hypothesis_words, reference_words = statistics[..., -2], statistics[..., -1]
    is_scored = matches.any(axis=-1) & totals.all(axis=-1)
    no_match = matches == 0
    smoothed = np.where(no_match, 0.5 ** np.cumsum(no_match, axis=-1), matches)
    log_precision = np.log(smoothed / np.where(totals > 0, totals, 1)).mean(axis=-1)
    ratio = reference_words / np.where(hypothesis_words > 0, hypothesis_words, 1)
    brevity_penalty = np.minimum(1 - ratio, 0)  # Its logarithm.
    return np.where(is_scored, 100 * np.exp(log_precision + brevity_penalty), 0.0)


def approximate_randomization(
    baseline: np.ndarray, system: np.ndarray, *, num_samples: int = 1000, seed: int = 12345
) -> float:
    """Compute the two-sided p-value of a difference in BLEU by approximate randomization.

    Each sample exchanges the two translations of each sentence with probability 1/2. If r samples
    differ by at least as much as the systems do, p is (1 + r) / (1 + num_samples) (Noreen 1989; for
    BLEU: Riezler and Maxwell 2005). Systems of equal BLEU have p = 1.

    Args:
      baseline: [sentences, 10] statistics of one system, from `sentence_statistics`.
      system: [sentences, 10] statistics of the other system.

    Raises:
      ValueError: `num_samples` is not positive.
    """
    if num_samples < 1:
        raise ValueError(f"{num_samples=} must be positive")
    baseline_sum, system_sum, change = baseline.sum(0), system.sum(0), system - baseline
    observed = abs(bleu_of(system_sum) - bleu_of(baseline_sum))
    rng = np.random.default_rng(seed)
    num_as_large = 0
    block = max(1, _BLOCK_SIZE // len(change))
    for start in range(0, num_samples, block):
        size = min(block, num_samples - start)
        exchanged = (rng.random((size, len(change))) < 0.5).astype(np.float64)
        moved = exchanged @ change  # [samples, 10]
        sampled = np.abs(bleu_of(system_sum - moved) - bleu_of(baseline_sum + moved))
        # A sample that differs as much as the systems may round to slightly less.
        num_as_large += int(np.count_nonzero(sampled >= observed - 1e-9))
    return (1 + num_as_large) / (1 + num_samples)
