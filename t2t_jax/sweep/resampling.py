"""Scores of a grid's cells on bootstrap samples of the sentences, which all cells share."""

import math
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

import numpy as np

from t2t_jax.tasks.measures.significance import bleu_of, sentence_statistics

_DRAWS = 1000
_LEAST_SENTENCES = 30
"""The number of sentences below which a bootstrap finds too little variance, and so is not used."""
_MOST_GROUPS = 4000
"""The number of sentences above which groups of sentences are drawn, to bound time and memory."""


@cache
def _counts(number: int) -> np.ndarray:
    """Return how often each sentence is in each bootstrap sample: [draws, number], float64."""
    rng = np.random.default_rng(number)
    return rng.multinomial(number, np.full(number, 1 / number), _DRAWS).astype(float)


def _sampled(statistics: np.ndarray) -> np.ndarray:
    """Sum statistics of sentences, [sentences, k], over each bootstrap sample: [draws, k]."""
    if len(statistics) > _MOST_GROUPS:
        groups = np.zeros((_MOST_GROUPS, statistics.shape[1]))
        np.add.at(groups, np.arange(len(statistics)) % _MOST_GROUPS, statistics)
        statistics = groups
    return _counts(len(statistics)) @ statistics


def sampled_scores(result: Mapping[str, Any], measure: str) -> np.ndarray | None:
    """Return the score of a cell on bootstrap samples of the sentences, shape [draws].

    Args:
      result: the result of the cell, as `Cell.result` returns it.
      measure: "bleu", "log_perplexity" or "bits_per_byte".

    Returns:
      The scores; None if the result lacks the sentences that they are computed from, or has fewer
      than 30.
    """
    if len(result.get("references", ())) < _LEAST_SENTENCES:
        return None
    if measure == "bleu":
        return _sampled_bleu(tuple(result["hypotheses"]), tuple(result["references"]))
    if "sentence_nll" not in result:
        return None
    nll, sizes = result["sentence_nll"], utf8_bytes(result["references"])
    unit = math.log(2)
    if measure == "log_perplexity":
        sizes, unit = result["sentence_tokens"], 1.0
    if len(sizes) != len(nll):
        return None
    sums = _sampled(np.stack([nll, sizes], axis=1))
    return sums[:, 0] / sums[:, 1] / unit


@lru_cache(maxsize=1000)
def _sampled_bleu(hypotheses: tuple[str, ...], references: tuple[str, ...]) -> np.ndarray:
    """Return `sampled_scores` for BLEU, which several tables of a grid need."""
    return bleu_of(_sampled(sentence_statistics(hypotheses, references)))


def utf8_bytes(lines: Sequence[str]) -> list[int]:
    """Return the number of bytes of each line in UTF-8."""
    return [len(line.encode()) for line in lines]
