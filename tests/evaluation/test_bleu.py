import math

import pytest
import sacrebleu

from t2t_jax.errors import UserError
from t2t_jax.evaluation.bleu import corpus_scores

HYPOTHESES = ["Der Hund läuft, sagt sie.", "Ein Haus steht am See", "", "Das ist „gut“ !"]
REFERENCES = ["Der Hund rennt, sagt sie.", "Ein Haus steht am großen See", "Ja.", "Das ist „gut“!"]


def test_scores_are_those_of_sacrebleu_called_directly():
    scores = corpus_scores(HYPOTHESES, REFERENCES)
    assert scores.bleu == sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score
    assert scores.chrf == sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES]).score


def test_bleu_is_the_value_computed_by_hand():
    # Matches of 1- to 4-grams: 5 of 6, 3 of 5, 2 of 4, 1 of 3; a reference of 7 words, not 6.
    scores = corpus_scores(["the cat sat on the mat"], ["well the cat sat on a mat"])
    precision = (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25
    assert scores.bleu == pytest.approx(100 * math.exp(1 - 7 / 6) * precision)


def test_signatures_say_how_the_scores_are_defined():
    scores = corpus_scores(HYPOTHESES, REFERENCES)
    assert scores.bleu_signature == (
        f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:{sacrebleu.__version__}"
    )
    assert scores.chrf_signature == (
        f"nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:{sacrebleu.__version__}"
    )


def test_case_counts():
    assert corpus_scores(["der hund rennt heute"], ["Der Hund rennt heute"]).bleu < 100
    assert corpus_scores(["Der Hund rennt heute"], ["Der Hund rennt heute"]).bleu == (
        pytest.approx(100)
    )


@pytest.mark.parametrize(("hypotheses", "references"), [([], []), (["a", "b"], ["a"])])
def test_counts_that_cannot_be_scored_are_refused(hypotheses, references):
    message = f"{len(hypotheses)} translations against {len(references)} references"
    with pytest.raises(UserError, match=message):
        corpus_scores(hypotheses, references)
