"""Alignments: of hand-made weights, and of a model whose attention is known by its construction."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from t2t_jax.decoding import alignments as module
from t2t_jax.decoding.alignments import agreement, alignments, word_weights, words_of
from t2t_jax.decoding.translator import Translator
from t2t_jax.errors import UserError
from t2t_jax.inspect.attention_maps import attention_maps

LINES = ["ein rot haus", "große kleine tür und nicht zwei", "baum", "sehen oder gehen fenster."]


@pytest.fixture(scope="module", params=[0, 1])
def diagonal(request, tiny):
    """A model that knows of a token its position alone; its second head looks at one position.

    What a head sees of a position are sines and cosines: the product of two positions, a sum of
    cosines of their distance, is greatest where they are the same. The first head sees nothing. The
    second one looks at the place of the word that comes next, or at that of its input, for which
    queries are turned by a position.
    """
    params = jax.tree.map(jnp.copy, tiny.params)
    params["embedding"]["embedding"] = params["embedding"]["embedding"] * 1e-4
    for stack in ("encoder", "decoder"):
        layers = params[stack]["layers"]
        for name in ("self_attention", "feed_forward"):
            layers[name] = jax.tree.map(lambda x: x * 0, layers[name])
    attention = params["decoder"]["layers"]["cross_attention"]
    for name, turned in (("query", request.param), ("key", 0)):
        kernel = np.zeros((16, 16), np.float32)
        for place in range(0, 8, 2):
            angle = turned * 10000.0 ** (-place / 16)
            sine, cosine = np.sin(angle), np.cos(angle)
            columns = slice(8 + place, 10 + place)
            kernel[place : place + 2, columns] = 4 * np.array([[cosine, sine], [-sine, cosine]])
        attention[name]["kernel"] = jnp.asarray(kernel)[None]
    return request.param, Translator(tiny.config, tiny.vocabulary, params)


def test_weights_of_words_are_sums_over_sources_and_means_over_targets():
    weights = jnp.array([[0.1, 0.2, 0.3, 0.4], [0.5, 0.1, 0.3, 0.1], [0.0, 0.9, 0.1, 0.0]])
    targets, sources = jnp.array([[0, 0, -1]]), jnp.array([[0, 1, 1, -1]])
    found = word_weights(weights[None], targets, sources)
    expected = np.zeros((1, 3, 4))
    expected[0, 0, :2] = 0.3, 0.45
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_agreement_is_the_share_of_links_that_are_best_both_ways():
    weights = jnp.array([[0.9, 0.1, 0.0], [0.6, 0.3, 0.1], [0.1, 0.2, 0.7], [0.0, 0.0, 0.0]])
    has_word = jnp.array([True, True, True, False])
    # Words 0 and 2 have their source words to themselves; word 1 shares that of word 0.
    assert agreement(weights, has_word) == pytest.approx(2 / 3)
    assert agreement(weights, has_word & False) == 0


@given(st.lists(st.sampled_from(["ein", "große", "q", "tür.", "fensterbaum"]), max_size=9))
def test_subwords_belong_to_the_words_that_they_spell(tiny, words):
    [tokens] = tiny.encode(["  ".join(words)])
    numbers = words_of(tokens, tiny.vocabulary)
    assert numbers.pop() == -1
    spelt = [
        tiny.vocabulary.decode(
            [[token for token, n in zip(tokens, numbers, strict=False) if n == number]]
        )[0].strip()
        for number in range(len(words))
    ]
    if "q" not in words:  # a letter that the vocabulary does not have
        assert spelt == words
    assert numbers == sorted(numbers)
    assert set(numbers) == set(range(len(words)))


@given(st.lists(st.sampled_from(["ein", "qein", "eqin", "türq!", "qq", "q"]), min_size=1))
def test_letters_that_a_vocabulary_does_not_have_begin_no_word_of_a_source(tiny, words):
    [tokens] = tiny.encode([" ".join(words)])
    numbers = words_of(tokens, tiny.vocabulary, of_source=True)
    assert {*numbers[:-1]} == set(range(len(words)))


def test_a_model_that_copies_by_position_is_aligned_on_the_diagonal(diagonal):
    step, model = diagonal
    found = alignments(model, LINES, LINES)
    assert found.head == (0, 1, step)
    expected = [[(i, i) for i in range(len(line.split()))] for line in LINES]
    if step == 0:
        assert found.links == expected
    else:  # norms before the head move sines and cosines a little, and turned ones elsewhere
        of_lines = zip(found.links, expected, strict=True)
        hits = sum(len({*links} & {*wanted}) for links, wanted in of_lines)
        assert hits >= 0.75 * sum(map(len, expected))


@pytest.mark.parametrize("step", [0, 1])
def test_links_are_those_of_the_attention_maps(tiny, step):
    targets = [tiny.translate([line])[0] for line in LINES]
    found = alignments(tiny, LINES, targets, head=(0, 0, step))
    for source, target, links in zip(LINES, targets, found.links, strict=True):
        ids = tiny.encode([source, target])
        of_source, of_target = (np.array(words_of(one, tiny.vocabulary)) for one in ids)
        weights = np.roll(attention_maps(tiny, source, target).cross[0, 0], -step, axis=0)
        expected = []
        for word in range(len(target.split())):
            rows = weights[of_target == word].mean(0)
            sums = [rows[of_source == other].sum() for other in range(len(source.split()))]
            expected.append((int(np.argmax(sums)), word))
        assert links == expected


def test_a_pair_is_aligned_the_same_alone_and_among_others(tiny, monkeypatch):
    together = alignments(tiny, LINES, LINES[::-1])
    monkeypatch.setattr(module, "_WEIGHTS_PER_BATCH", 1)
    assert alignments(tiny, LINES, LINES[::-1]) == together
    alone = alignments(tiny, LINES[1:2], LINES[2:3], head=together.head)
    assert alone.links == together.links[1:2]


def test_shapes_are_few(tiny):
    alignments(tiny, LINES, LINES, head=(0, 0))
    programs = module._links._cache_size()
    alignments(tiny, LINES[::-1], [line + " ein" for line in LINES], head=(0, 1))
    assert module._links._cache_size() == programs


def test_a_blank_side_or_a_long_one_has_no_links(tiny, monkeypatch):
    monkeypatch.setattr(module, "_LONGEST", 20)
    sources, targets = ["", "ein", " ", "ein " * 30, "ein"], ["ein", "", "", "ein", "zwei"]
    assert alignments(tiny, sources, targets).links == [[], [], [], [], [(0, 0)]]
    assert alignments(tiny, [], []).links == []


def test_what_cannot_be_aligned_is_refused(tiny):
    with pytest.raises(UserError, match="there is no head 0:2; the layers of the decoder are 0 to"):
        alignments(tiny, ["ein"], ["ein"], head=(0, 2))
    with pytest.raises(UserError, match="2 sources and 1 targets are not pairs"):
        alignments(tiny, ["ein", "ein"], ["ein"])
    others = [(tiny.config.model, tiny.params)]
    both = Translator(tiny.config, tiny.vocabulary, tiny.params, others=others)
    with pytest.raises(UserError, match="an ensemble has no attention of its own"):
        alignments(both, ["ein"], ["ein"])
