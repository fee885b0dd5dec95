"""Scores of labels, against those of scikit-learn."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score

from t2t_jax.errors import UserError
from t2t_jax.tasks.measures.labels import f1_of_labels, label_scores

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
    table = {(right, other): count for right, other, count in scores.confusion}
    for i, right in enumerate(names):
        for j, other in enumerate(names):
            assert table.get((right, other), 0) == matrix[i, j]
    assert list(scores.confusion) == sorted(
        scores.confusion, key=lambda one: (one[0], -one[2], one[1])
    )
    each = f1_score(gold, predicted, average=None, labels=names, zero_division=0)
    for label, f1 in f1_of_labels(scores.confusion).items():
        assert f1 == pytest.approx(100 * each[names.index(label)])


def test_nothing_cannot_be_scored():
    with pytest.raises(UserError, match="no labels"):
        label_scores([], [])
