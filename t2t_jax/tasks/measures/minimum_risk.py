"""Minimum Bayes risk decoding: the candidate that is most like all others.

Freitag et al. 2022, "High Quality Rather than High Model Probability: Minimum Bayes Risk Decoding
with Neural Metrics", equation (2): of samples from the model, the one with the greatest mean score
against all of them as references is the translation that the model expects to be best.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from t2t_jax.tasks.measures.judges import Judge

_AT_ONCE = 200_000


def least_risk(
    sources: Sequence[str], candidates: Sequence[Sequence[str]], judge: Judge
) -> list[str]:
    """Return the candidate of each source with the greatest mean score against all of them.

    The judge is asked for each pair of different candidates once, so that n of them cost up to
    n * n scores. Candidates that occur several times count as often.

    Args:
      sources: sentences.
      candidates: for each sentence at least one translation, such as samples of a model.
      judge: scores a translation by a reference.
    """
    each = [Counter(of_source) for of_source in candidates]
    asked = [
        (source, ours, other)
        for source, counts in zip(sources, each, strict=True)
        for ours in counts
        for other in counts
        if len(counts) > 1
    ]
    scores: list[float] = []
    for begin in range(0, len(asked), _AT_ONCE):
        scores += judge(
            *(list(side) for side in zip(*asked[begin : begin + _AT_ONCE], strict=True))
        )
    found, place = [], 0
    for counts in each:
        texts, size = list(counts), len(counts)
        if size == 1:
            found += texts
            continue
        matrix = np.array(scores[place : place + size * size]).reshape(size, size)
        place += size * size
        found.append(texts[int(np.argmax(matrix @ np.array([*counts.values()], float)))])
    return found
