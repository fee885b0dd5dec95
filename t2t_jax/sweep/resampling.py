"""Scores of a grid's cells on bootstrap samples of the sentences, which all cells share."""

import math
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

import numpy as np

from t2t_jax.tasks.measures.significance import bleu_of, sentence_statistics

_DRAWS = 1000


@cache
def _counts(sentences: int) -> np.ndarray:
    """Return how often each sentence is in each bootstrap sample: [draws, sentences], float64."""
    rng = np.random.default_rng(sentences)
    return rng.multinomial(sentences, np.full(sentences, 1 / sentences), _DRAWS).astype(float)


def sampled_scores(result: Mapping[str, Any], measure: str) -> np.ndarray | None:
    """Return the score of a cell on bootstrap samples of the sentences, shape [draws].

    Args:
      result: the result of the cell, as `Cell.result` returns it.
      measure: "bleu", "log_perplexity" or "bits_per_byte".

    Returns:
      The scores; None if the result lacks the sentences that they are computed from.
    """
    if measure == "bleu":
        return _sampled_bleu(tuple(result["hypotheses"]), tuple(result["references"]))
    if "sentence_nll" not in result:
        return None
    nll = np.array(result["sentence_nll"])
    counts = _counts(len(nll))
    if measure == "log_perplexity":
        return (counts @ nll) / (counts @ np.array(result["sentence_tokens"], float))
    if len(sizes := utf8_bytes(result["references"])) != len(nll):
        return None
    return (counts @ nll) / math.log(2) / (counts @ np.array(sizes, float))


@lru_cache(maxsize=1000)
def _sampled_bleu(hypotheses: tuple[str, ...], references: tuple[str, ...]) -> np.ndarray:
    """Return `sampled_scores` for BLEU, which several tables of a grid need."""
    statistics = sentence_statistics(hypotheses, references)
    return bleu_of(_counts(len(statistics)) @ statistics)


def utf8_bytes(lines: Sequence[str]) -> list[int]:
    """Return the number of bytes of each line in UTF-8."""
    return [len(line.encode()) for line in lines]
