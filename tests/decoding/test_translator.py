import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t_jax import Translator, UserError
from t2t_jax.batch import EOS_ID
from t2t_jax.data.vocabularies.shared import SharedVocabulary
from t2t_jax.decoding import row_group
from t2t_jax.decoding import translator as translator_module
from t2t_jax.decoding.search.hypotheses import LengthPenalty
from tests.decoding.random_models import (
    CONFIG,
    WORDS,
    log_probs,
    random_params,
    random_translator,
    sentences,
    with_fields,
)
from tests.selection import thorough_after


@pytest.fixture(params=thorough_after(2, ["translator", "decoder_alone", "ensemble"]))
def any_translator(request):
    return request.getfixturevalue(request.param)


def test_greedy_search_takes_the_most_probable_token_of_the_full_forward_pass(any_translator):
    for line in ["rot haus", "ein kleine tür und nicht sehen", "blau"]:
        tokens: list[int] = []
        limit = len(any_translator.vocabulary.encode([line])[0]) + 6
        while len(tokens) < limit and EOS_ID not in tokens:
            tokens.append(int(log_probs(any_translator, line, tokens)[len(tokens)].argmax()))
        [[best]] = any_translator.nbest([line], 1, beam_size=1)
        assert list(best.tokens) == tokens
        assert [best.text] == any_translator.vocabulary.decode([tokens])


@pytest.mark.parametrize("beam_size", [1, 4])
def test_log_probabilities_are_those_of_the_full_forward_pass(any_translator, beam_size):
    line = "große fenster gehen oder baum"
    [hypotheses] = any_translator.nbest([line], beam_size, beam_size=beam_size)
    assert 1 <= len(hypotheses) <= beam_size
    for _, score, log_prob, tokens in hypotheses:
        steps = log_probs(any_translator, line, list(tokens))
        expected = sum(steps[place, token] for place, token in enumerate(tokens))
        assert log_prob == pytest.approx(expected, rel=1e-4)
        alpha = 0.6 if beam_size > 1 else 0.0
        penalty = float(LengthPenalty(alpha)(jnp.array(len(tokens))))
        assert score == pytest.approx(expected / penalty, rel=1e-4)


@pytest.mark.parametrize(
    ("which", "decoding"),
    [
        ("translator", {"beam_size": 1}),
        ("translator", {"beam_size": 4}),
        ("translator", {"beam_size": 1, "quantize": "int8"}),
        pytest.param("ensemble", {"beam_size": 4}, marks=pytest.mark.thorough),
    ],
)
def test_a_line_is_translated_the_same_alone_and_among_others(request, which, decoding):
    translator = request.getfixturevalue(which)
    lines = sentences(20, 12, seed=1)
    together = translator.translate(lines, **decoding)
    alone = [translator.translate([line], **decoding)[0] for line in lines]
    assert together == alone
    assert len(set(together)) > 10  # they are not the same whatever the source


def test_log_probabilities_of_integers_are_near_those_of_the_full_forward_pass(any_translator):
    lines = sentences(8, 8, seed=10)
    exact = any_translator.nbest(lines, 1)
    near = any_translator.nbest(lines, 1, quantize="int8")
    for line, [best] in zip(lines, near, strict=True):
        steps = log_probs(any_translator, line, list(best.tokens))
        expected = sum(steps[place, token] for place, token in enumerate(best.tokens))
        assert best.log_prob == pytest.approx(expected, rel=0.08)
    assert near != exact
    # What it has made of the weights, it keeps apart.
    assert any_translator.nbest(lines, 1) == exact


@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize("lines", thorough_after(1, [5, 1]))
def test_log_probabilities_in_bfloat16_are_near_those_of_float32(translator, beam_size, lines):
    narrow = with_fields(translator, {"model.compute_dtype": "bfloat16"})
    line = "große fenster gehen oder baum"
    for hypotheses in narrow.nbest([line] * lines, beam_size, beam_size=beam_size):
        assert hypotheses
        for _, _, log_prob, tokens in hypotheses:
            steps = log_probs(translator, line, list(tokens))
            expected = sum(steps[place, token] for place, token in enumerate(tokens))
            assert 0 < abs(log_prob - expected) < 0.05 * abs(expected)


def test_blank_lines_stay_blank_in_their_place(translator):
    lines = ["", "rot haus", "   ", "\t\r", "\u2003", "blau baum", "\n"]
    house, tree = translator.translate(["rot haus", "blau baum"])
    assert translator.translate(lines) == ["", house, "", "", "", tree, ""]
    assert translator.nbest([" "], 4) == [[("", 0.0, 0.0, ())]]


def test_nothing_and_only_blanks_need_no_search(translator, monkeypatch):
    monkeypatch.setattr(row_group.programs, "proceed", None)
    assert translator.translate([]) == []
    assert translator.translate(["", " "]) == ["", ""]


def test_a_line_break_within_a_line_counts_as_a_space(translator):
    assert translator.translate(["rot\nhaus"]) == translator.translate(["rot haus"])


def test_a_line_break_that_the_model_writes_becomes_a_space(translator, monkeypatch):
    monkeypatch.setattr(SharedVocabulary, "decode", lambda self, rows: ["a\nb" for _ in rows])
    assert translator.translate(["rot", "blau baum"]) == ["a b", "a b"]


def test_nbest_is_sorted_distinct_and_led_by_the_translation(translator):
    lines = sentences(6, 6, seed=2)
    found = translator.nbest(lines, 4)
    assert [hypotheses[0].text for hypotheses in found] == translator.translate(lines)
    for hypotheses in found:
        scores = [hypothesis.score for hypothesis in hypotheses]
        assert scores == sorted(scores, reverse=True)
        assert len({hypothesis.tokens for hypothesis in hypotheses}) == len(hypotheses)
    assert translator.nbest(lines, 2) == [hypotheses[:2] for hypotheses in found]


def test_no_translation_is_longer_than_its_source_and_the_extra_length(translator):
    lines = sentences(20, 12, seed=3)
    sources = translator.vocabulary.encode(lines)
    found = translator.nbest(lines, 1)
    lengths = [len(hypotheses[0].tokens) for hypotheses in found]
    limits = [len(source) + 6 for source in sources]
    assert all(length <= limit for length, limit in zip(lengths, limits, strict=True))
    assert any(length == limit for length, limit in zip(lengths, limits, strict=True))


def test_a_line_longer_than_any_in_training_is_translated(translator):
    line = " ".join(WORDS * 8)
    [source] = translator.vocabulary.encode([line])
    assert len(source) > 100 > CONFIG.data.max_length
    short = "rot haus"
    result = translator.translate([short, line], beam_size=1)
    assert result[0] == translator.translate([short], beam_size=1)[0]
    assert result[1]


@pytest.mark.thorough
def test_programs_are_few_and_used_again(translator):
    lines = sentences(60, 40, seed=4)
    decoding = {"beam_size": 2, "tokens_per_batch": 256}  # not used by any other test
    program = row_group.programs.proceed
    before = program._cache_size()
    translator.translate(lines, **decoding)
    first = program._cache_size() - before
    assert 1 < first <= 4
    translator.translate(lines[::-1], **decoding)
    assert program._cache_size() - before == first


def test_translators_of_one_model_prepare_their_parameters_by_one_program(vocabulary, translator):
    translator.prepared("none")
    compiled = translator_module._prepare._cache_size()
    other = Translator(CONFIG, vocabulary, random_params(CONFIG, len(vocabulary), 1))
    other.prepared("none")
    assert translator_module._prepare._cache_size() == compiled


def test_samples_depend_on_seed_and_line_number_alone(translator):
    lines = ["rot haus und tür"] * 4 + sentences(6, 6, seed=6)
    decoding = {"temperature": 1.0, "seed": 3}
    together = translator.translate(lines, **decoding)
    alone = [
        translator.translate([line], first_line=number, **decoding)[0]
        for number, line in enumerate(lines, 1)
    ]
    assert together == alone
    assert len(set(together[:4])) > 1
    assert together != translator.translate(lines, temperature=1.0, seed=4)


@pytest.mark.thorough
def test_an_ensemble_of_one_model_many_times_is_that_model(translator):
    others = [(CONFIG.model, translator.params)] * 2
    thrice = Translator(CONFIG, translator.vocabulary, translator.params, others=others)
    lines = sentences(5, 6, seed=8)
    [alone, together] = ([h[0] for h in t.nbest(lines, 1)] for t in (translator, thrice))
    assert [h.tokens for h in together] == [h.tokens for h in alone]
    assert [h.score for h in together] == pytest.approx([h.score for h in alone], rel=1e-4)


def test_the_settings_of_a_search_are_given_whole_or_by_field(translator):
    lines = ["rot haus", "ein baum"]
    decoding = dataclasses.replace(translator.config.decoding, beam_size=2, length_penalty=1.0)
    given = translator.configured(decoding=decoding, beam_size=3)
    assert given == translator.configured(beam_size=3, length_penalty=1.0)
    assert given.decoding == dataclasses.replace(decoding, beam_size=3)
    found = translator.nbest(lines, 2, decoding=decoding)
    assert found == translator.nbest(lines, 2, beam_size=2, length_penalty=1.0)
    with pytest.raises(TypeError, match="DecodingConfig"):
        translator.translate(lines, decoding={"beam_size": 2})
    with pytest.raises(UserError, match=r"outside \[1, 1000\]"):
        translator.check_lines(lines, decoding=decoding, beam_size=0)


@pytest.mark.thorough
def test_learned_positions_limit_the_length_of_a_line(vocabulary):
    model = dataclasses.replace(CONFIG.model, position="learned", max_positions=38)
    translator = random_translator(dataclasses.replace(CONFIG, model=model), vocabulary)
    fits = "rot"
    while len(vocabulary.encode([fits + " rot"])[0]) <= 32:
        fits += " rot"
    assert translator.translate([fits], beam_size=1) != [""]
    others = [(model, translator.params), (CONFIG.model, random_params(CONFIG, len(vocabulary)))]
    ensemble = Translator(CONFIG, vocabulary, others[1][1], others=others)
    assert ensemble.longest_sentence == 38
    with pytest.raises(UserError, match=r"line 1 has \d+ subwords.* allow 32 .*split the line"):
        ensemble.translate([fits + " rot rot"], long_lines="refuse")


@pytest.mark.parametrize(
    "search",
    [{"beam_size": 4}, {"beam_size": 1}, {"temperature": 1.0}, {"quantize": "int8"}],
    ids=str,
)
def test_a_model_that_has_diverged_is_refused_by_line(translator, search):
    broken = jax.tree.map(lambda x: x * np.nan, translator.params)
    diverged = Translator(CONFIG, translator.vocabulary, broken)
    with pytest.raises(UserError, match=r"no finite probabilities for line 12; .* earlier step"):
        diverged.translate(["", "", "rot haus", ""], first_line=10, **search)


def test_an_ensemble_with_a_model_that_has_diverged_is_refused(translator):
    broken = jax.tree.map(lambda x: x * np.nan, translator.params)
    others = [(CONFIG.model, broken)] * 2
    ensemble = Translator(CONFIG, translator.vocabulary, translator.params, others=others)
    with pytest.raises(UserError, match="no finite probabilities for line 1"):
        ensemble.translate(["rot haus"])
