"""Corpora mixed with weights: an epoch has each as often as it says, and each is tokenised once."""

import hashlib
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from t2t_jax.config import DataConfig
from t2t_jax.config.corpus_name import PUBLIC, Component, components_of, public_name
from t2t_jax.data.batching import Batches
from t2t_jax.data.corpus import open_corpus
from t2t_jax.data.tokenized import prepare_pairs, prepare_vocabulary
from t2t_jax.data.vocabularies.learning import RECIPE_VERSION, train_vocabulary
from t2t_jax.data.vocabularies.shared import SharedVocabulary
from t2t_jax.errors import UserError
from t2t_jax.tasks import task_of

NEWS = [("good news", "gute Nachrichten"), ("bad news", "schlechte Nachrichten"), ("", "leer")]
MENUS = [("open file", "Datei öffnen")]


def write(folder, **splits):
    folder.mkdir(parents=True, exist_ok=True)
    for split, pairs in splits.items():
        for side, language in enumerate(("en", "de")):
            text = "".join(f"{pair[side]}\n" for pair in pairs)
            (folder / f"{split}.{language}").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    """The corpora `news`, which has no test split, and `menus`, which has all and another set."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "news", train=NEWS, dev=NEWS[:2])
    write(tmp_path / "menus", train=MENUS, dev=MENUS, test=MENUS, late=MENUS)
    return tmp_path


def config_of(corpus, **changes):
    fields = {"vocab_size": 40, "max_length": 32, "cache_dir": "cache", **changes}
    return DataConfig(corpus=corpus, **fields)  # type: ignore[arg-type]


def mixed(corpus):
    return open_corpus(config_of(corpus))


def train_pairs(corpus):
    return list(zip(*corpus.lines("train"), strict=True))


places = st.text(st.sampled_from("ab/+.~"), min_size=1)
schemes = st.sampled_from(("bundled", "text", "shards", "tfds", "trees", *PUBLIC))
names = st.tuples(schemes, places).map(":".join)


@given(st.lists(st.tuples(names, st.none() | st.integers(1, 9999)), min_size=1))
def test_a_name_has_the_corpora_and_weights_that_were_written(parts):
    written = "+".join(name if weight is None else f"{name}*{weight}" for name, weight in parts)
    assert components_of(written) == [Component(name, weight or 1) for name, weight in parts]


def test_a_plus_within_a_place_belongs_to_it():
    assert components_of("trees:wsj+silver*2+trees:s3://b/c") == [
        Component("trees:wsj+silver", 2),
        Component("trees:s3://b/c", 1),
    ]
    assert components_of("text:a*b/+bundled:") == [
        Component("text:a*b/", 1),
        Component("bundled:", 1),
    ]


@pytest.mark.parametrize("weight", ["0", "-1", "1.5", "x", "", "01", "10000", "²", "2+news", " 2"])
def test_a_weight_that_is_no_positive_number_is_refused(weight):
    with pytest.raises(UserError, match="is not a whole number from 1 to 9999; write text:A"):
        mixed(f"text:menus+text:news*{weight}")


def test_the_train_split_has_each_corpus_as_often_as_its_weight_says():
    assert train_pairs(mixed("text:menus*3+text:news")) == MENUS * 3 + NEWS
    assert train_pairs(mixed("text:news+text:menus*2+text:news")) == NEWS + MENUS * 2 + NEWS
    assert train_pairs(mixed("text:menus*2")) == MENUS * 2
    bundled = open_corpus(DataConfig())
    both = train_pairs(mixed("bundled:*2+text:news"))
    assert both == train_pairs(bundled) * 2 + NEWS


def test_other_splits_are_those_of_the_first_corpus_that_has_them():
    corpus = mixed("text:news*2+text:menus")
    assert set(corpus.splits) == {"train", "dev", "test", "late"}
    assert corpus.lines("dev")[0] == [source for source, _ in NEWS[:2]]
    assert corpus.lines("test")[0] == corpus.lines("late")[0] == ["open file"]
    assert mixed("text:menus+text:news").lines("dev")[0] == ["open file"]
    with pytest.raises(UserError, match=r"corpus text:news\*2\+text:news has no test split, only"):
        mixed("text:news*2+text:news").lines("test")


def test_a_corpus_that_has_nothing_to_train_on_is_refused(folders):
    write(folders / "tests", test=MENUS)
    with pytest.raises(UserError, match=r"text:tests has no train split to mix, only test; leave"):
        mixed("text:news+text:tests")


def test_trees_are_not_mixed_with_text():
    assert task_of("trees:a*2+trees:b+c") is task_of("trees:a")
    with pytest.raises(UserError, match="mixes corpora for parsing and translation"):
        task_of("text:a+trees:b")


def test_the_fingerprint_is_that_of_contents_order_and_weights(folders):
    names = ("text:news+text:menus", "text:menus+text:news", "text:news*2+text:menus")
    names += ("text:news+text:menus*2", "text:news*2", "text:news", "text:news+text:news")
    found = [mixed(name).fingerprint("train") for name in names]
    assert len({*found}) == len(names)
    assert mixed("text:news*1+text:menus").fingerprint("train") == found[0]
    write(folders / "menus", train=[("open files", "Dateien öffnen")])
    assert mixed(names[0]).fingerprint("train") != found[0]


def test_one_corpus_has_the_fingerprint_that_it_always_had():
    digests = [
        hashlib.sha256(Path(f"news/train.{side}").read_bytes()).hexdigest() for side in ("en", "de")
    ]
    by_hand = hashlib.sha256(" ".join(digests).encode()).hexdigest()
    for name in ("text:news", "text:news*1"):
        assert mixed(name).fingerprint("train") == by_hand
    config = config_of("text:news")
    prepare_vocabulary(config, open_corpus(config))
    key = hashlib.sha256(json.dumps([RECIPE_VERSION, by_hand, 40]).encode()).hexdigest()[:24]
    assert Path(f"cache/vocabulary-{key}").is_dir()


def test_a_mixture_is_no_public_corpus():
    assert public_name("wmt14-en-de:DIR") == "wmt14-en-de"
    name = "wmt14-en-de:DIR*2+tfds:wmt14_translate/fr-en+text:B"
    assert public_name(name) == "wmt14-en-de*2+wmt14-en-fr+text:B"


def test_the_vocabulary_is_learned_on_the_mixture():
    config = config_of("text:menus*3+text:news")
    pairs = MENUS * 3 + NEWS
    sources, targets = ([pair[side] for pair in pairs] for side in (0, 1))
    learned = prepare_vocabulary(config, open_corpus(config))
    assert learned.fingerprint == train_vocabulary([(sources, targets)], 40).fingerprint


class CountingVocabulary(SharedVocabulary):
    """Keeps the lines it encodes."""

    encoded: tuple[str, ...] = ()

    def encode(self, lines):
        self.encoded = (*self.encoded, *lines)
        return super().encode(lines)


def sentences(split):
    return [part.tolist() for part in np.split(split.target_tokens, split.target_offsets[1:-1])]


def test_each_corpus_is_tokenised_once_whatever_its_weight():
    config = config_of("text:menus*3+text:news")
    corpus = open_corpus(config)
    vocabulary = CountingVocabulary(prepare_vocabulary(config, corpus).serialized)
    split = prepare_pairs(config, corpus, vocabulary, "train")
    kept = [target for _, target in MENUS * 3 + NEWS[:2]]
    assert sentences(split) == SharedVocabulary(vocabulary.serialized).encode(kept)
    assert split.skipped == {"empty_source": 1, "empty_target": 0, "too_long": 0}
    assert (len(split), split.num_pairs_read) == (5, 6)
    once = Counter(line for pair in (*MENUS, *NEWS) for line in pair)
    assert Counter(vocabulary.encoded) == once
    # Other weights, or one of them alone, need no text again.
    for name, skipped in (("text:news*2+text:menus", 2), ("text:news", 1)):
        other = prepare_pairs(config_of(name), mixed(name), vocabulary, "train")
        assert other.skipped["empty_source"] == skipped
    assert Counter(vocabulary.encoded) == once
    assert isinstance(prepare_pairs(config, corpus, vocabulary, "train").source_tokens, np.memmap)


@pytest.mark.parametrize("batching", ["bucket", "pack"])
def test_an_epoch_has_each_pair_as_often_as_its_weight_says(batching):
    config = config_of(
        "text:menus*3+text:news*2",
        batching=batching,
        source_tokens_per_step=32,
        target_tokens_per_step=32,
    )
    corpus = open_corpus(config)
    vocabulary = prepare_vocabulary(config, corpus)
    batches = Batches(prepare_pairs(config, corpus, vocabulary, "train"), config, seed=1)
    for epoch in range(2):
        found = Counter[str]()
        for step in range(batches.steps_per_epoch):
            targets = batches(epoch * batches.steps_per_epoch + step).targets
            for row, segments in zip(targets.tokens, targets.segments, strict=True):
                for one in range(1, segments.max() + 1):
                    found.update(vocabulary.decode([row[segments == one].tolist()]))
        assert found == {MENUS[0][1]: 3, NEWS[0][1]: 2, NEWS[1][1]: 2}
