import json
from pathlib import Path

import pytest
import sacrebleu

from t2t_jax.tasks.measures.bleu import (
    TOKENIZED_SPLIT_BLEU_SIGNATURE,
    corpus_scores,
    mean_of_sentences,
    split_words,
    tokenized_split_bleu,
)
from tests.refusals import refused

HYPOTHESES = ["Der Hund läuft, sagt sie.", "Ein Haus steht am See", "", "Das ist „gut“ !"]
REFERENCES = ["Der Hund rennt, sagt sie.", "Ein Haus steht am großen See", "Ja.", "Das ist „gut“!"]

_GOLDENS = Path(__file__).parents[2] / "goldens" / "bleu_goldens.json"
GOLDENS = json.loads(_GOLDENS.read_text(encoding="utf-8"))


@pytest.mark.parametrize("metric", ["bleu", "chrf"])
def test_means_are_those_of_sacrebleus_scores_of_sentences(metric):
    score = {"bleu": sacrebleu.sentence_bleu, "chrf": sacrebleu.sentence_chrf}[metric]
    scores = [score(ours, [ref]).score for ours, ref in zip(HYPOTHESES, REFERENCES, strict=True)]
    expected = sum(scores) / len(scores)
    assert mean_of_sentences(metric, HYPOTHESES, REFERENCES) == pytest.approx(expected)


def test_scores_are_those_of_sacrebleu_called_directly():
    scores = corpus_scores(HYPOTHESES, REFERENCES, "de")
    assert scores.bleu == sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score
    assert scores.chrf == sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES]).score
    assert scores.tokenized_split_bleu == tokenized_split_bleu(HYPOTHESES, REFERENCES, "de")


def test_signatures_say_how_the_scores_are_defined():
    scores = corpus_scores(HYPOTHESES, REFERENCES, "de")
    assert scores.bleu_signature == (
        f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:{sacrebleu.__version__}"
    )
    assert scores.chrf_signature == (
        f"nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:{sacrebleu.__version__}"
    )
    assert scores.tokenized_split_bleu_signature == f"{TOKENIZED_SPLIT_BLEU_SIGNATURE}, de"


def test_case_counts():
    scores = corpus_scores(["der hund rennt heute sehr"], ["Der Hund rennt heute sehr"], "de")
    assert scores.bleu < 100
    assert scores.tokenized_split_bleu == 0
    scores = corpus_scores(["Der Hund rennt heute"], ["Der Hund rennt heute"], "de")
    assert scores.bleu == pytest.approx(100)
    assert scores.tokenized_split_bleu == pytest.approx(100)


@pytest.mark.parametrize("language", GOLDENS["lines"])
def test_words_are_those_of_the_moses_scripts(language):
    lines = GOLDENS["lines"][language]
    words = split_words([line["raw"] for line in lines], language)
    # Moses leaves a space after some lines.
    assert [line.split() for line in words] == [line["words"].split() for line in lines]


@pytest.mark.parametrize("corpus", GOLDENS["corpora"])
def test_tokenized_split_bleu_is_what_multi_bleu_prints(corpus):
    score = tokenized_split_bleu(corpus["hypotheses"], corpus["references"], corpus["language"])
    assert f"{score:.2f}" == f"{corpus['bleu']:.2f}"


def test_typographic_and_plain_punctuation_are_the_same_words():
    hypotheses = ["“Er’s”… sagte １ Mann：（ja）！"]
    references = ['"Er\'s"... sagte 1 Mann:(ja)!']
    assert tokenized_split_bleu(hypotheses, references, "de") == pytest.approx(100)
    assert tokenized_split_bleu(references, hypotheses, "de") == pytest.approx(100)


@pytest.mark.parametrize(
    ("hypotheses", "references"), [(["", ""], ["a b", "c"]), (["a b", "c"], ["", ""])]
)
def test_nothing_in_common_scores_zero(hypotheses, references):
    assert tokenized_split_bleu(hypotheses, references, "en") == 0


def test_a_tokenised_corpus_is_scored_without_a_warning(caplog):
    lines = [f"Das ist Satz {number} ." for number in range(200)]
    assert tokenized_split_bleu(lines, lines, "de") == pytest.approx(100)
    assert not caplog.records


@pytest.mark.parametrize("score", [corpus_scores, tokenized_split_bleu])
@pytest.mark.parametrize(("hypotheses", "references"), [([], []), (["a", "b"], ["a"]), ([], ["a"])])
def test_counts_that_cannot_be_scored_are_refused(score, hypotheses, references):
    message = f"{len(hypotheses)} translations against {len(references)} references; give one"
    with refused(match=message):
        score(hypotheses, references, "de")


@pytest.mark.parametrize(("translated", "given"), [(2737, 3003), (3003, 2737)])
def test_the_two_newstest2014_are_not_mixed(translated, given):
    message = "2,737 lines are the filtered newstest2014 and 3,003 the full one, which must not be"
    with refused(match=message):
        corpus_scores(["a"] * translated, ["a"] * given, "de")
