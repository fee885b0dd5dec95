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

import numpy as np

from t2t_jax.data.languages import language_of
from t2t_jax.errors import UserError, needs_extra
from t2t_jax.paper import TEST_SETS

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
_MAX_ORDER = 4  # BLEU counts n-grams of one to four words.
_BLOCK_SIZE = 2**22  # Draws times sentences in memory at a time: 32 MiB of float64.
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
    return fmean(score.score for score in _per_sentence(scorer, hypotheses, references))


def _per_sentence(metric: Any, hypotheses: Sequence[str], references: Sequence[str]) -> list[Any]:
    """Return sacreBLEU's score of each sentence."""
    return [metric.sentence_score(h, [r]) for h, r in zip(hypotheses, references, strict=True)]


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


def sentence_statistics(hypotheses: Sequence[str], references: Sequence[str]) -> np.ndarray:
    """Compute the sufficient statistics of sacreBLEU's BLEU for each sentence.

    The sum over sentences gives the BLEU of the corpus by `bleu_of`.

    Returns:
      [sentences, 10] float64 of whole numbers: the matching n-grams for n = 1 to 4, the n-grams of
      the translation for n = 1 to 4, and the words of the translation and of the reference.
    """
    check_references(hypotheses, references)
    # sacreBLEU warns of scores of single sentences unless `effective_order` is set. It does not
    # change the counts.
    scores = _per_sentence(bleu_metric(effective_order=True), hypotheses, references)
    return np.array([[*s.counts, *s.totals, s.sys_len, s.ref_len] for s in scores], np.float64)


def bleu_of(statistics: np.ndarray) -> np.ndarray:
    """Compute BLEU from sufficient statistics, as sacreBLEU does by default.

    The k-th order of n-grams without a match counts as 1 / 2^k matches (`exp` in sacreBLEU; Chen
    and Cherry 2014, method 3). BLEU is 0 where no word matches, and where a corpus has no n-gram
    of some order.

    Args:
      statistics: [..., 10] sums of rows of `sentence_statistics` over the sentences of a corpus.

    Returns:
      [...] float64, 0 to 100.
    """
    statistics = np.asarray(statistics, np.float64)
    matches, totals = statistics[..., :_MAX_ORDER], statistics[..., _MAX_ORDER:-2]
    hypothesis_words, reference_words = statistics[..., -2], statistics[..., -1]
    is_scored = matches.any(axis=-1) & totals.all(axis=-1)
    no_match = matches == 0
    smoothed = np.where(no_match, 0.5 ** np.cumsum(no_match, axis=-1), matches)
    log_precision = np.log(smoothed / np.where(totals > 0, totals, 1)).mean(axis=-1)
    ratio = reference_words / np.where(hypothesis_words > 0, hypothesis_words, 1)
    brevity_penalty = np.minimum(1 - ratio, 0)  # Its logarithm.
    return np.where(is_scored, 100 * np.exp(log_precision + brevity_penalty), 0.0)


def approximate_randomization(
    baseline: np.ndarray, system: np.ndarray, *, num_samples: int = 1000, seed: int = 12345
) -> float:
    """Compute the two-sided p-value of a difference in BLEU by approximate randomization.

    Each sample exchanges the two translations of each sentence with probability 1/2. If r samples
    differ by at least as much as the systems do, p is (1 + r) / (1 + num_samples) (Noreen 1989; for
    BLEU: Riezler and Maxwell 2005). Systems of equal BLEU have p = 1.

    Args:
      baseline: [sentences, 10] statistics of one system, from `sentence_statistics`.
      system: [sentences, 10] statistics of the other system.
      num_samples: at least 1.
    """
    baseline_sum, system_sum, change = baseline.sum(0), system.sum(0), system - baseline
    observed = abs(bleu_of(system_sum) - bleu_of(baseline_sum))
    rng = np.random.default_rng(seed)
    num_as_large = 0
    block = max(1, _BLOCK_SIZE // len(change))
    for start in range(0, num_samples, block):
        size = min(block, num_samples - start)
        exchanged = (rng.random((size, len(change))) < 0.5).astype(np.float64)
        moved = exchanged @ change  # [samples, 10]
        sampled = np.abs(bleu_of(system_sum - moved) - bleu_of(baseline_sum + moved))
        # A sample that differs as much as the systems may round to slightly less.
        num_as_large += int(np.count_nonzero(sampled >= observed - 1e-9))
    return (1 + num_as_large) / (1 + num_samples)


def name_of_test_set(corpus: str, split: str, num_sentences: int) -> str:
    """Return the name of a test set under which a score is reported.

    Args:
      split: the split that was scored: dev, test, or the name of another test set of the corpus.

    Returns:
      For newstest2013 and newstest2014, that name with the version of the set: `newstest2013`,
      `newstest2014 (full, 3,003 sentences)`, or `newstest2013 (100 sentences)` for a number of
      sentences that no version has. For any other test set, corpus and split.
    """
    names = {**TEST_SETS, **_OTHER_NAMES} if corpus.startswith(_WMT14) else {}
    name = names.get(split, split)
    if name not in TEST_SETS.values():
        return f"{corpus} {split}"
    if (name, num_sentences) == (TEST_SETS["dev"], 3000):
        return name  # whole, in its only version
    version = _VERSIONS.get(num_sentences, "") if name == TEST_SETS["test"] else ""
    return f"{name} ({version}{num_sentences:,} sentences)"
