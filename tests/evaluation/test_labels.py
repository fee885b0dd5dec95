"""Scores of labels, against those of scikit-learn."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score

from t2t_jax.errors import UserError
from t2t_jax.evaluation.labels import label_scores

_LABELS = st.sampled_from(["NN", "VB", "DT", "."])


@given(st.lists(st.tuples(_LABELS, _LABELS), min_size=1, max_size=40))
def test_accuracy_and_macro_f1_are_those_of_scikit_learn(pairs):
    gold, predicted = (list(side) for side in zip(*pairs, strict=True))
    scores = label_scores(gold, predicted)
    assert scores.accuracy == pytest.approx(100 * accuracy_score(gold, predicted))
    wanted = f1_score(gold, predicted, average="macro", zero_division=0)
    assert scores.macro_f1 == pytest.approx(100 * wanted)
    assert scores.num_labels == len(gold)
    assert scores.best == scores.accuracy
    names = ["NN", "VB", "DT", "."]
    matrix = confusion_matrix(gold, predicted, labels=names)
    for right, other, count in scores.confusions:
        assert right != other
        assert matrix[names.index(right), names.index(other)] == count
    counts = [count for *_, count in scores.confusions]
    assert counts == sorted(counts, reverse=True)
    assert sum(counts) == matrix.sum() - matrix.trace() or len(counts) == 10


def test_nothing_cannot_be_scored():
    with pytest.raises(UserError, match="no labels"):
        label_scores([], [])
