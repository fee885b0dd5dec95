"""Scores of translations, each with the signature that defines it.

sacreBLEU's BLEU is computed on the words of the 13a tokenisation, whatever the language. That suits
languages with spaces between words; for Chinese or Japanese, score the translations with
sacreBLEU's own tokenisers for them (`sacrebleu -tok zh`, `-tok ja-mecab`).

`tokenized_split_bleu` is the older measure in which the paper and its successors report 27.3 and
28.4 on English-German. It counts the words of the Moses tokeniser, and the parts of a compound as
words. Use it for comparison with those numbers, and sacreBLEU for any other comparison.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from t2t_jax.data.languages import language_of
from t2t_jax.errors import UserError, needs_extra
from t2t_jax.tasks.measures.newstest import NEWSTEST2014_FILTERED, NEWSTEST2014_FULL

TOKENIZED_SPLIT_BLEU_SIGNATURE = (
    "Moses tokenizer, Unicode punctuation replaced, compounds split at hyphens, multi-bleu.perl, "
    "cased"
)
"""The definition of `tokenized_split_bleu`, to which the language is added."""

# As replace-unicode-punctuation.perl. The last four are control characters that tokenizer.perl
# deletes, where Python would see spaces.
_REPLACED = str.maketrans(
    dict(zip("，、：∶；？！’“”「」《》", ',,::;?!\'""""""', strict=True))
    | dict(zip("（）【】〈〉～━％０１２３４５６７８９", "()[]<>~-%0123456789", strict=True))
    | {"…": "...", "。": ". ", "．": ". "}
    | dict.fromkeys("\x1c\x1d\x1e\x1f", "")
)
_LAST_PERIOD = re.compile(r"(?<=[^\s.])\.$")
_HYPHEN = re.compile(rb"(\S)-(\S)")


@dataclass(frozen=True)
class CorpusScores:
    """Scores of a corpus. A score means nothing without its signature (Post 2018)."""

    bleu: float
    """BLEU of detokenised text, cased, tokenised by mteval-v13a; 0 to 100."""
    bleu_signature: str
    """sacreBLEU's signature of `bleu`."""
    tokenized_split_bleu: float
    """The paper's BLEU, as the function of this name computes it; 0 to 100."""
    tokenized_split_bleu_signature: str
    """The definition of `tokenized_split_bleu`."""
    chrf: float
    """chrF2, on sequences of one to six characters; 0 to 100."""
    chrf_signature: str
    """sacreBLEU's signature of `chrf`."""

    @property
    def best(self) -> float:
        """Return the score that chooses the best checkpoint; higher is better."""
        return self.bleu

    def __str__(self) -> str:
        """Return the scores in a line, with the signature of BLEU."""
        return (
            f"BLEU {self.bleu:.2f} ({self.bleu_signature})  "
            f"tokenized_split_bleu {self.tokenized_split_bleu:.2f}"
        )


@dataclass(frozen=True)
class ScoresWithMetric(CorpusScores):
    """Scores of a corpus, with the mean over sentences by which the best checkpoint is chosen."""

    metric: str
    """The metric, as `evaluation.metric` names it."""
    metric_score: float
    """Its mean over sentences; higher is better."""

    @property
    def best(self) -> float:
        """Return the score that chooses the best checkpoint; higher is better."""
        return self.metric_score

    def __str__(self) -> str:
        """Return the scores in a line, with the signature of BLEU."""
        return f"{self.metric} {self.metric_score:.4g}  {super().__str__()}"


def corpus_scores(
    hypotheses: Sequence[str], references: Sequence[str], language: str
) -> CorpusScores:
    """Compute BLEU, the paper's BLEU and chrF of a corpus.

    Args:
      references: a reference for each, as its author wrote it: neither tokenised nor normalised.
      language: a code of their language that `language_of` reads, such as `de` or `deu_Latn`. It
        chooses the rules by which the paper's BLEU tokenises.
    """
    check_references(hypotheses, references)
    bleu, chrf = bleu_metric(), chrf_metric()
    bleu_score = bleu.corpus_score(hypotheses, [references]).score
    chrf_score = chrf.corpus_score(hypotheses, [references]).score
    # A signature counts the references, so it is known only after a score.
    return CorpusScores(
        bleu=bleu_score,
        bleu_signature=str(bleu.get_signature()),
        tokenized_split_bleu=tokenized_split_bleu(hypotheses, references, language),
        tokenized_split_bleu_signature=f"{TOKENIZED_SPLIT_BLEU_SIGNATURE}, {language_of(language)}",
        chrf=chrf_score,
        chrf_signature=str(chrf.get_signature()),
    )


def tokenized_split_bleu(
    hypotheses: Sequence[str], references: Sequence[str], language: str
) -> float:
    """Compute BLEU as the paper reports it: of Moses tokens, with compounds split at hyphens.

    The score is that of tensor2tensor's get_ende_bleu.sh, from raw text on both sides: the Moses
    scripts replace-unicode-punctuation.perl and tokenizer.perl, hyphens set apart, and
    multi-bleu.perl. Case counts, and nothing is smoothed.

    Args:
      language: a code that `language_of` reads. The language chooses the rules for apostrophes
        and abbreviations.

    Returns:
      0 to 100, unrounded; 0 if the corpus shares no sequence of four words with its references.
    """
    check_references(hypotheses, references)
    words = [split_words(lines, language) for lines in (hypotheses, references)]
    # `force` is not to be warned that the text is tokenised.
    bleu = bleu_metric(tokenize="none", smooth_method="none", force=True)
    return bleu.corpus_score(words[0], [words[1]]).score


def split_words(lines: Sequence[str], language: str) -> list[str]:
    """Tokenise lines as `tokenized_split_bleu` does, with a space between words.

    Markup is escaped as Moses does (`&quot;`), and a hyphen within a compound is `##AT##-##AT##`.
    """
    # These take a second to import, and most commands score nothing.
    with needs_extra("train", "the paper's BLEU"):
        import regex
        from sacremoses import MosesTokenizer

    tokenizer = MosesTokenizer(language_of(language))
    # The package's own table of letters lacks Chinese, Japanese, Korean and younger characters.
    tokenizer.PAD_NOT_ISALNUM = (regex.compile(r"([^\p{Alnum}\s.'`,\-])"), r" \1 ")

    def words(line: str) -> str:
        tokens = tokenizer.tokenize(line.translate(_REPLACED), return_str=True)
        # tokenizer.perl never takes the last word for an abbreviation; the package does.
        tokens = _LAST_PERIOD.sub(" .", tokens)
        # Perl splits bytes. In `x-y-z` the first match consumes y, and the second hyphen stays; of
        # `x-ä-z` it consumes half of ä, and both are split.
        return _HYPHEN.sub(rb"\1 ##AT##-##AT## \2", tokens.encode()).decode()

    return [words(line) for line in lines]


def mean_of_sentences(
    metric: Literal["bleu", "chrf"], hypotheses: Sequence[str], references: Sequence[str]
) -> float:
    """Return the mean of sacreBLEU's scores of single sentences; 0 to 100."""
    scorer = chrf_metric() if metric == "chrf" else bleu_metric(effective_order=True)
    return fmean(
        scorer.sentence_score(hypothesis, [reference]).score
        for hypothesis, reference in zip(hypotheses, references, strict=True)
    )


def bleu_metric(**settings: Any) -> Any:
    """Return sacreBLEU's metric BLEU with some of its settings, such as `tokenize`."""
    with needs_extra("train", "BLEU"):
        from sacrebleu.metrics.bleu import BLEU
    return BLEU(**settings)


def chrf_metric() -> Any:
    """Return sacreBLEU's metric chrF2."""
    with needs_extra("train", "chrF"):
        from sacrebleu.metrics.chrf import CHRF
    return CHRF()


def check_references(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    """Refuse translations that do not have a reference each."""
    counts = {len(hypotheses), len(references)}
    if counts == {NEWSTEST2014_FILTERED, NEWSTEST2014_FULL}:
        way_out = (
            f"{NEWSTEST2014_FILTERED:,} lines are the filtered newstest2014 and "
            f"{NEWSTEST2014_FULL:,} the full one, which must not be mixed"
        )
    elif not hypotheses or len(counts) > 1:
        way_out = "give one reference for each"
    else:
        return
    raise UserError(
        f"cannot score {len(hypotheses):,} translations against {len(references):,} references; "
        f"{way_out}"
    )
