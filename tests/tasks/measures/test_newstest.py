import pytest

from t2t_jax.tasks.measures.bleu import name_of_test_set as name_of

WMT14 = "tfds:wmt14_translate/de-en"


@pytest.mark.parametrize(
    ("corpus", "split", "num_sentences", "name"),
    [
        (WMT14, "dev", 3000, "newstest2013"),
        (WMT14, "dev", 100, "newstest2013 (100 sentences)"),
        (WMT14, "test", 3003, "newstest2014 (full, 3,003 sentences)"),
        (WMT14, "test", 2737, "newstest2014 (filtered, 2,737 sentences)"),
        (WMT14, "test", 1000, "newstest2014 (1,000 sentences)"),
        ("tfds:wmt14_translate/fr-en", "test", 3003, "newstest2014 (full, 3,003 sentences)"),
        ("wmt14-en-de:wmt", "dev", 3000, "newstest2013"),
        ("wmt14-en-de:wmt", "test", 3003, "newstest2014 (full, 3,003 sentences)"),
        ("wmt14-en-de:wmt", "newstest2014-filtered", 9, "newstest2014 (9 sentences)"),
        ("text:wmt", "newstest2014", 2737, "newstest2014 (filtered, 2,737 sentences)"),
        ("text:wmt", "newstest2014", 3003, "newstest2014 (full, 3,003 sentences)"),
        ("text:wmt", "newstest2013", 3000, "newstest2013"),
    ],
)
def test_sets_of_wmt_2014_have_their_name_and_version(corpus, split, num_sentences, name):
    assert name_of(corpus, split, num_sentences) == name


@pytest.mark.parametrize(
    ("corpus", "split"),
    [
        ("bundled:", "test"),
        ("text:wmt", "test"),
        ("text:wmt", "newstest2014-filtered"),
        ("wmt16-en-ro:wmt", "test"),
        ("multi30k-en-de:wmt14-en-de", "test"),
        ("tfds:wmt14_translate/de-en", "train"),
        ("tfds:wmt16_translate/de-en", "test"),
    ],
)
def test_other_sets_are_named_by_corpus_and_split(corpus, split):
    assert name_of(corpus, split, 3003) == f"{corpus} {split}"
