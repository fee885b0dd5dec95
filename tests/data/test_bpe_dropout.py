"""Subwords drawn by BPE-dropout: by which law, on what it depends, and that they fit."""

import itertools
from collections import Counter
from functools import cache, partial

import numpy as np
import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2

from t2t_jax.batch import EOS_ID
from t2t_jax.config import Config, DataConfig
from t2t_jax.data import bpe_dropout
from t2t_jax.data.batching import Batches
from t2t_jax.data.bpe_dropout import DrawnText, drawn_text, dropped_in
from t2t_jax.data.corpus import open_corpus
from t2t_jax.data.rows import offsets_of
from t2t_jax.data.tokenized import TokenizedSplit
from t2t_jax.data.vocabularies.labelled import labelled_vocabulary
from t2t_jax.data.vocabularies.learning import train_vocabulary
from t2t_jax.data.vocabularies.merges import Merges
from t2t_jax.data.vocabularies.shared import SharedVocabulary
from t2t_jax.errors import UserError
from t2t_jax.tasks import task_of

_PROTECTED = "<2de>", "__URL__", "#"
_ODD = ["\u2581", "\u2603", "\U0001f600", "e\u0301", "\u00df", "\u4e2d", "\t", "1", "23", "\u0416"]
_WORDS = [
    "the",
    "file",
    "directory",
    "Datei",
    "konnte",
    "nicht",
    "geöffnet",
    "werden",
    "%s",
    "(-q)",
]


@cache
def lines():
    source, target = open_corpus(DataConfig()).lines("train")
    return [line for pair in zip(source[:3000], target[:3000], strict=True) for line in pair]


@cache
def vocabulary(size, protected=()):
    """A vocabulary of the bundled corpus; from 2,048 entries on it spells rare letters in bytes."""
    pairs = lines()[::2], lines()[1::2]
    return train_vocabulary([pairs], size, protected_tokens=protected)


@cache
def merges(*which):
    return Merges(vocabulary(*which))


def split_of(own, pairs):
    """Pairs of lines as token arrays."""
    sides = [own.encode(side) for side in zip(*pairs, strict=True)]
    flat = [np.array([*itertools.chain(*side)], np.uint16) for side in sides]
    offsets = [offsets_of(np.array([len(row) for row in side])) for side in sides]
    return TokenizedSplit(flat[0], offsets[0], flat[1], offsets[1], {}, len(pairs))


def words_of(table, rows):
    """The characters of rows of tokens, and where each word begins and how long it is."""
    tokens = np.concatenate(rows)
    begins = table.begins_word[tokens]
    begins[np.cumsum([0, *map(len, rows)])[:-1]] = True
    starts = (np.cumsum(table.sizes[tokens]) - table.sizes[tokens])[begins]
    entries = table.taken_apart(tokens)
    return entries, starts, np.diff(np.append(starts, len(entries)))


@pytest.mark.parametrize("which", [(600,), (2500,), (2500, _PROTECTED)])
def test_without_drops_the_merges_are_those_of_sentencepiece(which):
    own, table = vocabulary(*which), merges(*which)
    every = [own.decode([[token]])[0] for token in range(len(own))]
    odd = ["a#b<2de>c", "<2de> __URL__file", *map("".join, itertools.product(_ODD, _WORDS, _ODD))]
    rows = [np.array(row) for row in own.encode([*lines(), *every, *odd])]
    words = words_of(table, rows)
    subwords, there = table.merged(*words, np.zeros(len(words[0]), int))
    np.testing.assert_array_equal(subwords[there], np.concatenate(rows))
    # All taken apart but for what has no letters of its own.
    assert there.sum() < 0.5 * len(there)


@settings(max_examples=30, deadline=None)
@given(
    text=st.lists(
        st.sampled_from([*_ODD, *_PROTECTED, *_WORDS, " "]) | st.text(max_size=3), max_size=12
    ).map("".join),
    which=st.sampled_from([(600,), (2500, _PROTECTED)]),
)
def test_any_text_is_put_together_again(text, which):
    own, table = vocabulary(*which), merges(*which)
    [row] = own.encode([text])
    words = words_of(table, [np.array(row)])
    subwords, there = table.merged(*words, np.zeros(len(words[0]), int))
    assert subwords[there].tolist() == row


def possible(own, word):
    """The merges of a word, a tuple of subwords, as (score, place), from the best on."""
    ids = own._processor
    joined = [(n, ids.piece_to_id(a + b)) for n, (a, b) in enumerate(itertools.pairwise(word))]
    return sorted((-ids.get_score(one), n) for n, one in joined if ids.is_unknown(one) is False)


def after_merge(word, place):
    return (*word[:place], word[place] + word[place + 1], *word[place + 2 :])


@settings(max_examples=40, deadline=None)
@given(
    first=st.integers(0, 5990),
    probability=st.sampled_from([0.05, 0.1, 0.5, 0.9]),
    seed=st.integers(0, 2**32 - 1),
)
def test_words_are_merged_as_by_a_scalar_loop_with_the_same_draws(first, probability, seed):
    own, table = vocabulary(2500), merges(2500)
    rows = [np.array(row[:-1]) for row in own.encode(lines()[first : first + 3]) if len(row) > 1]
    entries, starts, counts = words_of(table, rows)
    uniform = np.random.default_rng(seed).random(len(entries))
    drops = dropped_in(uniform, probability, int(counts.max()))
    subwords, there = table.merged(entries, starts, counts, drops)
    found = own.pieces(subwords[there][None])[0]
    expected = []
    for start, count in zip(starts, counts, strict=True):
        word = tuple(own.pieces(entries[None, start : start + count])[0])
        for step in itertools.count(start):
            left = possible(own, word)
            while left and uniform[step] < probability:
                uniform[step] /= probability  # which is uniform again, and independent
                left = left[1:]
            if not left:
                break
            word = after_merge(word, left[0][1])
        expected += word
    assert found == expected


def law(own, word, probability):
    """The probabilities of the segmentations of a word by Algorithm 1, over all sets of drops."""
    merges_left = possible(own, word)
    if not merges_left:
        return Counter({word: 1.0})
    outcomes: Counter[tuple[str, ...]] = Counter()
    for kept in itertools.product([True, False], repeat=len(merges_left)):
        chance = np.prod([1 - probability if one else probability for one in kept])
        best = next((one for one, stays in zip(merges_left, kept, strict=True) if stays), None)
        if best is None:
            outcomes[word] += chance
            continue
        for result, share in law(own, after_merge(word, best[1]), probability).items():
            outcomes[result] += chance * share
    return outcomes


def drawn_words(word, probability, times, seed):
    own, table = vocabulary(2500), merges(2500)
    rows = [np.array(own.encode([word])[0][:-1])] * times
    entries, starts, counts = words_of(table, rows)
    uniform = np.random.default_rng(seed).random(len(entries))
    subwords, there = table.merged(
        entries, starts, counts, dropped_in(uniform, probability, int(counts.max()))
    )
    pieces = np.array(own.pieces(subwords[None])[0], object)
    ends = np.append(starts, len(entries))
    return Counter(tuple(pieces[a:b][there[a:b]]) for a, b in itertools.pairwise(ends.tolist()))


@pytest.mark.parametrize("word", ["file", "nicht", "konnte"])
@pytest.mark.parametrize("probability", [0.1, 0.6])
def test_segmentations_have_the_probabilities_of_algorithm_1(word, probability):
    times = 20_000
    found = drawn_words(word, probability, times, seed=1)
    wanted = law(vocabulary(2500), ("\u2581", *word), probability)
    assert set(found) <= set(wanted)
    common = {one: times * share for one, share in wanted.items() if times * share >= 5}
    square = sum((found[one] - mean) ** 2 / mean for one, mean in common.items())
    # Six standard deviations of a chi-square.
    assert square < len(common) + 6 * np.sqrt(2 * len(common))


@pytest.mark.parametrize("word", ["is", "to", "an"])
def test_short_words_are_split_as_often_as_by_the_sampling_of_sentencepiece(word):
    """SentencePiece drops a merge once for all steps: the same law up to three characters."""
    times, probability = 20_000, 0.3
    sentencepiece.set_random_generator_seed(1)
    sample = partial(vocabulary(2500)._processor.encode, out_type=str)
    drawn = (sample(word, enable_sampling=True, alpha=probability) for _ in range(times))
    theirs, ours = Counter(map(tuple, drawn)), drawn_words(word, probability, times, seed=2)
    assert len(ours) > 1
    for one in theirs | ours:
        together = theirs[one] + ours[one]
        assert abs(theirs[one] - ours[one]) < 5 * np.sqrt(together) + 1


def pairs_of(count, which=(2500,)):
    own = vocabulary(*which)
    texts = [line for line in lines() if line.strip()]
    pairs = list(zip(texts[0 : 2 * count : 2], texts[1 : 2 * count : 2], strict=True))
    return own, [pair for pair in pairs if max(map(len, own.encode(list(pair)))) <= 32]


def config_of(**changes):
    sizes = {"data.source_tokens_per_step": 512, "data.target_tokens_per_step": 512}
    fields = {"data.max_length": 32, "data.bpe_dropout": 0.1}
    return Config().replace(sizes | fields | {f"data.{k}": v for k, v in changes.items()})


def tokens_of(side):
    """The tokens of each segment of a batch, by row and segment."""
    return {
        (row, segment): side.tokens[row][side.segments[row] == segment].tolist()
        for row in range(len(side.tokens))
        for segment in np.unique(side.segments[row])
        if segment
    }


@pytest.mark.parametrize("batching", ["bucket", "pack"])
@pytest.mark.parametrize("source_loss", [False, True])
@pytest.mark.parametrize("probability", [0.1, 0.95])
def test_drawn_pairs_spell_the_same_text_and_fit(batching, source_loss, probability):
    own, pairs = pairs_of(300)
    config = config_of(batching=batching, bpe_dropout=probability)
    if source_loss:
        decoder = {"model.architecture": "decoder_only", "training.source_loss": True}
        config = config.replace(decoder)
    text = split_of(own, pairs)
    batches = Batches(drawn_text(config, text, own), config.data, seed=3)
    longer = 0
    for step in range(batches.steps_per_epoch):
        batch, chosen, shape = batches(step), batches.chosen(step), batches.shape(step)
        assert batch.inputs.tokens.shape == (shape.rows, shape.source_length)
        assert batch.targets.tokens.shape == (shape.rows, shape.target_length)
        assert shape in batches.shapes
        sources, targets = tokens_of(batch.inputs), tokens_of(batch.targets)
        assert len(sources) == len(targets) == len(chosen.examples)
        for example, row, segment in zip(*chosen, strict=True):
            source, target = sources[row, segment], targets[row, segment]
            if source_loss:
                assert len(source) == 1
                end = target.index(EOS_ID) + 1
                source, target = source + target[:end], target[end:]
            assert max(len(source), len(target)) <= 32
            spelt = [own.decode([side])[0] for side in (source, target)]
            ordinary = own.decode(own.encode(list(pairs[example])))
            assert spelt == ordinary
            assert source[-1] == target[-1] == EOS_ID
            longer += len(source) - len(own.encode([pairs[example][0]])[0])
    assert longer > 100


def test_draws_depend_on_seed_step_and_row_alone():
    own, pairs = pairs_of(300)
    text, config = split_of(own, pairs), config_of(batching="pack")
    examples = drawn_text(config, text, own)
    batches = Batches(examples, config.data, seed=3)
    whole = batches(4)
    again = Batches(drawn_text(config, text, own), config.data, seed=3)
    some = np.array([1, 3, 4])
    for field, part in zip(
        [*whole.inputs, *whole.targets],
        [*again(4, some).inputs, *again(4, some).targets],
        strict=True,
    ):
        np.testing.assert_array_equal(part, field[some])
    beyond = again(4, np.array([10_000]))
    assert not beyond.targets.segments.any()
    chosen, shape, numbers = batches.chosen(4), batches.shape(4), np.arange(batches.shape(4).rows)
    drawn = [
        one.batch(chosen, shape, step, rows).inputs.tokens.tolist()
        for one, step, rows in (
            (examples, 4, numbers),
            (examples, 5, numbers),
            (examples, 4, numbers + 1),
            (drawn_text(config.replace({"training.seed": 1}), text, own), 4, numbers),
        )
    ]
    assert drawn[0] == whole.inputs.tokens.tolist()
    assert all(a != b for a, b in itertools.combinations(drawn, 2))


def test_equal_pairs_of_a_row_and_equal_sides_are_drawn_apart():
    own = vocabulary(2500)
    pairs = [("could not be opened", "could not be opened")] * 40
    config = config_of(batching="pack", bpe_dropout=0.5)
    batches = Batches(drawn_text(config, split_of(own, pairs), own), config.data, seed=0)
    drawn = [*tokens_of(batches(0).inputs).values(), *tokens_of(batches(0).targets).values()]
    assert batches(0).targets.segments.max() > 1
    assert len(set(map(tuple, drawn))) > 0.8 * len(drawn) > 10


@pytest.mark.parametrize("batching", ["bucket", "pack"])
def test_a_probability_of_almost_0_gives_the_ordinary_batches(batching):
    own, pairs = pairs_of(200)
    text, config = split_of(own, pairs), config_of(batching=batching, bpe_dropout=1e-12)
    drawn = Batches(drawn_text(config, text, own), config.data, seed=0)
    plain = Batches(text, config.data, seed=0)
    assert drawn.shapes == plain.shapes
    for step in range(plain.steps_per_epoch + 1):
        for side, other in zip(drawn(step), plain(step), strict=True):
            np.testing.assert_array_equal(np.stack(side), np.stack(other))


@pytest.mark.parametrize("batching", ["bucket", "pack"])
def test_few_rows_of_the_usual_dropout_are_drawn_with_less(batching, monkeypatch):
    own, pairs = pairs_of(2000)
    config = config_of(batching=batching)
    batches = Batches(drawn_text(config, split_of(own, pairs), own), config.data, seed=0)
    asked, draw = [], bpe_dropout._Drawing.draw
    monkeypatch.setattr(
        bpe_dropout._Drawing,
        "draw",
        lambda self, texts, p, u: (asked.append((p, int(texts.sum()))), draw(self, texts, p, u)),
    )
    for step in range(batches.steps_per_epoch):
        batches(step)
    by = {p: sum(n for own, n in asked if own == p) for p, _ in asked}
    assert by[0.05] < 0.08 * by[0.1]
    assert max(by) == 0.1


def test_a_row_without_room_is_drawn_until_it_fits():
    own = vocabulary(2500)
    line = "could not be opened"
    length = len(own.encode([line])[0])
    config = config_of(max_length=max(8, length), bpe_dropout=0.9)
    text = split_of(own, [(line, line)] * 64)
    examples = drawn_text(config, text, own)
    assert examples.source_lengths.max() == config.data.max_length
    batch = Batches(examples, config.data, seed=0)(0)
    sizes = (batch.inputs.segments != 0).sum(axis=1)
    assert sizes.max() <= config.data.max_length
    assert set(own.decode(batch.inputs.tokens[sizes > 0])) == {line}


def test_only_a_training_with_the_field_draws():
    config = Config().replace({"data.vocab_size": 300, "data.max_length": 64})
    corpus = open_corpus(config.data)
    task = task_of(config.data.corpus)
    own = task.vocabulary(config, corpus)
    assert isinstance(task.training_examples(config, corpus, own), TokenizedSplit)
    drawing = config.replace({"data.bpe_dropout": 0.1})
    assert isinstance(task.training_examples(drawing, corpus, own), DrawnText)
    assert isinstance(task.examples(drawing, corpus, own, "dev", 1000), TokenizedSplit)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"data.bpe_dropout": 1.0}, r"data.bpe_dropout=1.0 is outside \[0, 1\)"),
        ({"data.bpe_dropout": -0.1}, r"outside \[0, 1\)"),
        ({"data.corpus": "trees:x"}, "for translation alone, and the task of trees:x is parsing"),
        (
            {"data.task": "language_modelling", "model.architecture": "decoder_only"},
            "is language_modelling; leave it out",
        ),
    ],
)
def test_other_values_and_tasks_are_refused(changes, named):
    with pytest.raises(UserError, match=named):
        Config().replace({"data.bpe_dropout": 0.1} | changes)


def of_another_kind(change):
    """A vocabulary whose SentencePiece model is changed."""
    model = sentencepiece_model_pb2.ModelProto.FromString(vocabulary(600).serialized)
    change(model)
    return SharedVocabulary(model.SerializeToString())


def unigram(model):
    model.trainer_spec.model_type = model.trainer_spec.UNIGRAM


def unused(model):
    model.pieces[500].type = model.pieces[500].UNUSED


def several_words(model):
    model.pieces[10].piece = "\u2581to\u2581be"


@pytest.mark.parametrize(
    ("own", "named"),
    [
        (partial(of_another_kind, unigram), "is a SentencePiece model of another kind than BPE"),
        (partial(of_another_kind, unused), "unused subwords, or some of several words"),
        (partial(of_another_kind, several_words), "some of several words"),
        (partial(labelled_vocabulary, None, ["a"]), "not of SentencePiece's BPE for sources and"),
    ],
)
def test_vocabularies_without_merges_are_refused_with_the_way_out(own, named):
    split = split_of(vocabulary(600), [("a", "b")])
    with pytest.raises(UserError, match=f"{named}.*let the run learn a vocabulary of its own"):
        drawn_text(config_of(), split, own())
