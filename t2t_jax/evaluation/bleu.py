"""Scores of translations, by sacreBLEU, each with the signature that defines it.

BLEU is computed on the words of the 13a tokenisation, whatever the language. That suits languages
with spaces between words; for Chinese or Japanese, score the translations with sacreBLEU's own
tokenisers for them (`sacrebleu -tok zh`, `-tok ja-mecab`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from t2t_jax.errors import UserError


@dataclass(frozen=True)
class CorpusScores:
    """Scores of a corpus. A score means nothing without its signature (Post 2018)."""

    bleu: float
    """BLEU of detokenised text, cased, tokenised by mteval-v13a; 0 to 100."""
    bleu_signature: str
    """sacreBLEU's signature of it."""
    chrf: float
    """chrF2; 0 to 100."""
    chrf_signature: str
    """sacreBLEU's signature of it."""


def corpus_scores(hypotheses: Sequence[str], references: Sequence[str]) -> CorpusScores:
    """BLEU and chrF of a corpus.

    Args:
      hypotheses: translations, as plain text.
      references: one for each, as their authors wrote them: neither tokenised nor normalised.

    Raises:
      UserError: there are none, or not as many of one as of the other.
    """
    if not hypotheses or len(hypotheses) != len(references):
        raise UserError(
            f"cannot score {len(hypotheses)} translations against {len(references)} references; "
            "give one reference for each"
        )
    bleu, chrf = BLEU(), CHRF()
    bleu_score = bleu.corpus_score(hypotheses, [references]).score
    chrf_score = chrf.corpus_score(hypotheses, [references]).score
    # A signature counts the references, so it is known only after a score.
    return CorpusScores(
        bleu_score, str(bleu.get_signature()), chrf_score, str(chrf.get_signature())
    )
