"""Bootstrap samples of sentences: their scores, and that large splits are drawn in groups."""

import numpy as np
import pytest

from t2t_jax.sweep.inference import draw_scores
from t2t_jax.tasks.measures.bleu import bleu_metric

KINDS = "red", "new", "big", "odd", "shy"


@pytest.mark.parametrize("sentences", [500, 20_000])
def test_log_perplexities_of_samples_have_the_standard_error_of_their_mean(sentences):
    rng = np.random.default_rng(0)
    nll = rng.normal(30, 5, sentences)
    result = {
        "sentence_nll": nll.tolist(),
        "sentence_tokens": [10] * sentences,
        "references": ["x"] * sentences,
    }
    draws = draw_scores(result, "log_perplexity")
    assert draws.mean() == pytest.approx(3.0, rel=0.02)
    assert draws.std() == pytest.approx(0.5 / np.sqrt(sentences), rel=0.1)


def test_bits_per_byte_of_samples_are_nats_over_bytes():
    result = {"sentence_nll": [np.log(2) * 4] * 32, "references": ["über"] * 32}  # 5 bytes each
    assert draw_scores(result, "bits_per_byte") == pytest.approx(np.full(1000, 0.8))


def test_bleu_of_samples_is_sacrebleus_of_the_drawn_sentences():
    """The samples are those of a multinomial distribution; here sacreBLEU scores the first ones."""
    references = [f"the {noun} is {kind} and old" for noun in "abcdef" for kind in KINDS]
    hypotheses = [
        line.replace("old", "ill") if n % 3 else line for n, line in enumerate(references)
    ]
    draws = draw_scores({"hypotheses": hypotheses, "references": references}, "bleu")
    number = len(references)
    counts = np.random.default_rng(number).multinomial(number, np.full(number, 1 / number), 1000)
    for sample, score in zip(counts[:5], draws[:5], strict=True):
        drawn = np.repeat(np.arange(number), sample)
        lines = [[of[i] for i in drawn] for of in (hypotheses, references)]
        assert bleu_metric().corpus_score(lines[0], [lines[1]]).score == pytest.approx(score)


def test_few_sentences_and_missing_ones_give_no_samples():
    few = {"sentence_nll": [1.0] * 29, "sentence_tokens": [3] * 29, "references": ["x"] * 29}
    assert draw_scores(few, "log_perplexity") is None
    assert draw_scores({"references": ["x"] * 40}, "log_perplexity") is None
