"""Translation scores with their signatures: sacreBLEU, the BLEU of the paper, and chrF.

sacreBLEU's default 13a tokenizer suits languages with spaces between words. For Chinese or
Japanese, score the translations with `sacrebleu -tok zh` or `-tok ja-mecab`.

`tokenized_split_bleu` is the older metric of the paper (27.3 and 28.4 on English-German). Compare
it only with the paper and its successors, and use sacreBLEU for other comparisons.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from t2t_jax.config.tables import MEASURES
from t2t_jax.data.languages import language_of
from t2t_jax.errors import UserError, needs_extra, quote, user_code
from t2t_jax.paper import TEST_SETS
from t2t_jax.plugins import load_named

# The test sets of WMT 2014. newstest2014 exists twice, and scores on the two are not comparable:
#
#     sentences   for German   sacreBLEU's name   what it is
#     filtered    2,737        wmt14              the lines kept for the official evaluation
#     full        3,003        wmt14/full         all lines, published after it; as TFDS has them
#
# The corpus wmt14-en-de has both: the full one as its test split, and `newstest2014-filtered`. The
# paper says "newstest2014" and not which. For French, the official evaluation kept all 3,003.
NEWSTEST2014_FILTERED = 2737
"""Sentences of the filtered English-German newstest2014."""
NEWSTEST2014_FULL = 3003
"""Sentences of the full newstest2014."""

_WMT14 = "tfds:wmt14_translate/", "wmt14-"
_OTHER_NAMES = {"newstest2014-filtered": TEST_SETS["test"]}
_VERSIONS = {NEWSTEST2014_FILTERED: "filtered, ", NEWSTEST2014_FULL: "full, "}

TOKENIZED_SPLIT_BLEU_SIGNATURE = (
    "Moses tokenizer, Unicode punctuation replaced, compounds split at hyphens, multi-bleu.perl, "
    "cased"
)
"""The definition of `tokenized_split_bleu`; `corpus_scores` appends the language."""

# The same table as replace-unicode-punctuation.perl. tokenizer.perl deletes the last four control
# characters, which are spaces for Python.
_REPLACED = str.maketrans(
    dict(zip("，、：∶；？！’“”「」《》", ',,::;?!\'""""""', strict=True))
    | dict(zip("（）【】〈〉～━％０１２３４５６７８９", "()[]<>~-%0123456789", strict=True))
    | {"…": "...", "。": ". ", "．": ". "}
    | dict.fromkeys("\x1c\x1d\x1e\x1f", "")
)
_LAST_PERIOD = re.compile(r"(?<=[^\s.])\.$")
_MAX_ORDER = 4  # BLEU counts n-grams of one to four words.
_BLOCK_SIZE = 2**22  # Draws times sentences in memory at a time: 32 MiB of float64.
_HYPHEN = re.compile(rb"(\S)-(\S)")


@dataclass(frozen=True)
class CorpusScores:
    """Scores of a corpus with the signatures that define them (Post 2018)."""

    bleu: float
    """BLEU of detokenized text, cased, with the tokenizer mteval-v13a; 0 to 100."""
    bleu_signature: str
    """sacreBLEU's signature of `bleu`."""
    tokenized_split_bleu: float
    """The BLEU of the paper, from the function `tokenized_split_bleu`; 0 to 100."""
    tokenized_split_bleu_signature: str
    """The definition of `tokenized_split_bleu`."""
    chrf: float
    """chrF2, on sequences of one to six characters; 0 to 100."""
    chrf_signature: str
    """sacreBLEU's signature of `chrf`."""

    @property
    def best(self) -> float:
        """Return the score that selects the best checkpoint."""
        return self.bleu

    def __str__(self) -> str:
        """Return one line: sacreBLEU's score and signature, and `tokenized_split_bleu`."""
        return (
            f"BLEU {self.bleu:.2f} ({self.bleu_signature})  "
            f"tokenized_split_bleu {self.tokenized_split_bleu:.2f}"
        )


@dataclass(frozen=True)
class ScoresWithMetric(CorpusScores):
    """Corpus scores, plus the mean sentence score that selects the best checkpoint."""

    metric: str
    """The metric, as `evaluation.metric` names it."""
    metric_score: float
    """The mean of the metric over sentences; higher is better."""

    @property
    def best(self) -> float:
        """Return the score that selects the best checkpoint."""
        return self.metric_score

    def __str__(self) -> str:
        """Return one line: metric, sacreBLEU's score and signature, and `tokenized_split_bleu`."""
        return f"{self.metric} {self.metric_score:.4g}  {super().__str__()}"


def corpus_scores(
    hypotheses: Sequence[str], references: Sequence[str], language: str
) -> CorpusScores:
    """Compute sacreBLEU, the BLEU of the paper, and chrF of a corpus.

    Args:
      references: one raw reference per hypothesis, neither tokenized nor normalized.
      language: a language code for `language_of`, such as `de` or `deu_Latn`, which selects the
        Moses rules.
    """
    check_references(hypotheses, references)
    bleu, chrf = bleu_metric(), chrf_metric()
    bleu_score = bleu.corpus_score(hypotheses, [references]).score
    chrf_score = chrf.corpus_score(hypotheses, [references]).score
    # A sacreBLEU signature includes the number of references, so it exists only after a score.
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
    """Compute BLEU as the paper does: on Moses tokens, with compounds split at hyphens.

    The function equals tensor2tensor's get_ende_bleu.sh on raw text: the Moses scripts
    replace-unicode-punctuation.perl and tokenizer.perl, a split of hyphens, and multi-bleu.perl.
    BLEU is cased and not smoothed.

    Args:
      language: a language code for `language_of`, which selects the rules for apostrophes and
        abbreviations.

    Returns:
      0 to 100, unrounded; 0 if no 4-gram matches.
    """
    check_references(hypotheses, references)
    tokenized_pair = [split_words(lines, language) for lines in (hypotheses, references)]
    # `force` suppresses the warning about tokenized text.
    bleu = bleu_metric(tokenize="none", smooth_method="none", force=True)
    return bleu.corpus_score(tokenized_pair[0], [tokenized_pair[1]]).score


def split_words(lines: Sequence[str], language: str) -> list[str]:
    """Tokenize lines for `tokenized_split_bleu`, and join the words with spaces.

    Moses escapes markup (`&quot;`). A hyphen within a compound becomes `##AT##-##AT##`.
    """
    # Lazy imports: they take a second, and most commands compute no score.
    with needs_extra("train", "the paper's BLEU"):
        import regex
        from sacremoses import MosesTokenizer

    tokenizer = MosesTokenizer(language_of(language))
    # The table of letters in sacremoses lacks Chinese, Japanese, Korean and newer characters.
    tokenizer.PAD_NOT_ISALNUM = (regex.compile(r"([^\p{Alnum}\s.'`,\-])"), r" \1 ")

    def words(line: str) -> str:
        tokens = tokenizer.tokenize(line.translate(_REPLACED), return_str=True)
        # sacremoses may treat the last word as an abbreviation, but tokenizer.perl never does.
        tokens = _LAST_PERIOD.sub(" .", tokens)
        # Perl matches bytes. In `x-y-z` the first match consumes y, so the second hyphen is not
        # split. In `x-ä-z` the first match consumes only half of ä, so both hyphens are split.
        return _HYPHEN.sub(rb"\1 ##AT##-##AT## \2", tokens.encode()).decode()

    return [words(line) for line in lines]


def mean_of_sentences(metric: str, hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Average the scores of a measure, one of `MEASURES`, over sentences."""
    with user_code(f"measure {quote(metric)}", "return a number for each sentence"):
        scores = [*map(float, load_named(MEASURES[metric].function)(hypotheses, references))]
    if len(scores) != len(hypotheses):
        raise UserError(
            f"measure {quote(metric)} returned {len(scores)} scores for {len(hypotheses)} "
            "sentences; return one score for each"
        )
    return fmean(scores)


def sentence_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> list[float]:
    """Return sacreBLEU's BLEU of each sentence; 0 to 100."""
    metric = bleu_metric(effective_order=True)
    return [score.score for score in _per_sentence(metric, hypotheses, references)]


def sentence_chrf(hypotheses: Sequence[str], references: Sequence[str]) -> list[float]:
    """Return sacreBLEU's chrF of each sentence; 0 to 100."""
    return [score.score for score in _per_sentence(chrf_metric(), hypotheses, references)]


def _per_sentence(metric: Any, hypotheses: Sequence[str], references: Sequence[str]) -> list[Any]:
    return [metric.sentence_score(h, [r]) for h, r in zip(hypotheses, references, strict=True)]


def bleu_metric(**settings: Any) -> Any:
    """Make sacreBLEU's BLEU metric with settings such as `tokenize`."""
    with needs_extra("train", "BLEU"):
        from sacrebleu.metrics.bleu import BLEU
    return BLEU(**settings)


def chrf_metric() -> Any:
    """Make sacreBLEU's chrF2 metric."""
    with needs_extra("train", "chrF"):
        from sacrebleu.metrics.chrf import CHRF
    return CHRF()


def check_references(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    """Refuse translations without exactly one reference each."""
    counts = {len(hypotheses), len(references)}
    if counts == {NEWSTEST2014_FILTERED, NEWSTEST2014_FULL}:
        remedy = (
            f"{NEWSTEST2014_FILTERED:,} lines are the filtered newstest2014 and "
            f"{NEWSTEST2014_FULL:,} the full one, which must not be mixed"
        )
    elif not hypotheses or len(counts) > 1:
        remedy = "give one reference for each"
    else:
        return
    raise UserError(
        f"cannot score {len(hypotheses):,} translations against {len(references):,} references; "
        f"{remedy}"
    )


def sentence_statistics(hypotheses: Sequence[str], references: Sequence[str]) -> np.ndarray:
    """Compute the sufficient statistics of sacreBLEU for each sentence.

    `bleu_of` computes the BLEU of a corpus from their sum over sentences.

    Returns:
      [sentences, 10] float64 counts: matching n-grams for n = 1 to 4, n-grams of the translation
      for n = 1 to 4, words of the translation, and words of the reference.
    """
    check_references(hypotheses, references)
    # `effective_order` suppresses sacreBLEU's warning about sentence scores, and changes no counts.
    scores = _per_sentence(bleu_metric(effective_order=True), hypotheses, references)
    return np.array([[*s.counts, *s.totals, s.sys_len, s.ref_len] for s in scores], np.float64)


def bleu_of(statistics: np.ndarray) -> np.ndarray:
    """Compute BLEU from sufficient statistics, with the defaults of sacreBLEU.

    The k-th n-gram order without a match counts as 1 / 2^k matches (`exp` in sacreBLEU; Chen and
    Cherry 2014, method 3). BLEU is 0 if no word matches, or if the corpus has no n-gram of some
    order.

    Args:
      statistics: [..., 10] sums of `sentence_statistics` over the sentences of a corpus.

    Returns:
      [...] float64, 0 to 100.
    """
    statistics = np.asarray(statistics, np.float64)
    matches, totals = statistics[..., :_MAX_ORDER], statistics[..., _MAX_ORDER:-2]
    hypothesis_words, reference_words = statistics[..., -2], statistics[..., -1]
    is_scored = matches.any(axis=-1) & totals.all(axis=-1)
    no_match = matches == 0  # [..., orders]
    smoothed = np.where(no_match, 0.5 ** np.cumsum(no_match, axis=-1), matches)
    log_precision = np.log(smoothed / np.where(totals > 0, totals, 1)).mean(axis=-1)
    ratio = reference_words / np.where(hypothesis_words > 0, hypothesis_words, 1)
    brevity_penalty = np.minimum(1 - ratio, 0)  # the logarithm of the penalty
    return np.where(is_scored, 100 * np.exp(log_precision + brevity_penalty), 0.0)


def approximate_randomization(
    baseline: np.ndarray, system: np.ndarray, *, num_samples: int = 1000, seed: int = 12345
) -> float:
    """Compute the two-sided p-value of a difference in BLEU by approximate randomization.

    Each sample exchanges the two translations of each sentence with probability 1/2. If r samples
    differ by at least as much as the systems, p is (1 + r) / (1 + num_samples) (Noreen 1989; for
    BLEU: Riezler and Maxwell 2005).

    Args:
      baseline: [sentences, 10] statistics of one system, from `sentence_statistics`.
      system: [sentences, 10] statistics of the other system.
      num_samples: at least 1.
    """
    baseline_sum, system_sum, difference = baseline.sum(0), system.sum(0), system - baseline
    observed_difference = abs(bleu_of(system_sum) - bleu_of(baseline_sum))
    rng = np.random.default_rng(seed)
    num_as_large = 0
    block_size = max(1, _BLOCK_SIZE // len(difference))
    for start in range(0, num_samples, block_size):
        num_drawn = min(block_size, num_samples - start)
        exchanged = (rng.random((num_drawn, len(difference))) < 0.5).astype(np.float64)
        moved = exchanged @ difference  # [samples, 10]
        sampled_differences = np.abs(bleu_of(system_sum - moved) - bleu_of(baseline_sum + moved))
        # Rounding may make an equally large difference slightly smaller, hence the tolerance.
        num_as_large += int(np.count_nonzero(sampled_differences >= observed_difference - 1e-9))
    return (1 + num_as_large) / (1 + num_samples)


def name_of_test_set(corpus: str, split: str, num_sentences: int) -> str:
    """Return the name of a test set for reports.

    Args:
      split: the scored split: dev, test, or the name of another test set of the corpus.

    Returns:
      On WMT 2014, the name and version, such as `newstest2013` or
      `newstest2014 (full, 3,003 sentences)`, or `newstest2013 (100 sentences)` for a size without a
      version. On another corpus, the names of corpus and split.
    """
    names = {**TEST_SETS, **_OTHER_NAMES} if corpus.startswith(_WMT14) else {}
    name = names.get(split, split)
    if name not in TEST_SETS.values():
        return f"{corpus} {split}"
    if (name, num_sentences) == (TEST_SETS["dev"], 3000):
        return name  # complete, and newstest2013 has one version
    version = _VERSIONS.get(num_sentences, "") if name == TEST_SETS["test"] else ""
    return f"{name} ({version}{num_sentences:,} sentences)"
