"""The names of the test sets of WMT 2014, under which scores are reported.

newstest2014 exists twice, and scores on the two are not comparable:

    sentences   for German   sacreBLEU's name   what it is
    filtered    2,737        wmt14              the lines kept for the official evaluation
    full        3,003        wmt14/full         all lines, published after it; as TFDS has them

The corpus wmt14-en-de has both: the full one as its test split, and `newstest2014-filtered`. The
paper says "newstest2014" and not which. For French, the official evaluation kept all 3,003.
"""

from t2t_jax.data.corpus_name import public_name
from t2t_jax.paper import TEST_SETS

NEWSTEST2014_FILTERED = 2737
"""Sentences of the filtered English-German newstest2014."""
NEWSTEST2014_FULL = 3003
"""Sentences of the full newstest2014."""

_WMT14 = "tfds:wmt14_translate/", "wmt14-"
_OTHER_NAMES = {"newstest2014-filtered": TEST_SETS["test"]}
_SIZES = {
    TEST_SETS["dev"]: {3000: ""},
    TEST_SETS["test"]: {
        NEWSTEST2014_FILTERED: f" (filtered, {NEWSTEST2014_FILTERED:,} sentences)",
        NEWSTEST2014_FULL: f" (full, {NEWSTEST2014_FULL:,} sentences)",
    },
}


def name_of_test_set(corpus: str, split: str, num_sentences: int) -> str:
    """Return the name of a test set under which a score is reported.

    Args:
      split: the split that was scored: dev, test, or the name of another test set of the corpus.

    Returns:
      For newstest2013 and newstest2014, that name with the version of the set: `newstest2013`,
      `newstest2014 (full, 3,003 sentences)`, or `newstest2013 (100 sentences)` for a number of
      sentences that no version has. For any other test set, corpus and split.
    """
    names = {**TEST_SETS, **_OTHER_NAMES} if public_name(corpus).startswith(_WMT14) else {}
    name = names.get(split, split)
    if name not in _SIZES:
        return f"{corpus} {split}"
    return name + _SIZES[name].get(num_sentences, f" ({num_sentences:,} sentences)")
