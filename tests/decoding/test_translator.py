import dataclasses
import random
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t_jax.batch import EOS_ID, Batch, Sequence
from t2t_jax.config import Config, DataConfig, DecodingConfig, ModelConfig, network_config
from t2t_jax.config.families import FAMILIES
from t2t_jax.config.registry import load_named
from t2t_jax.data.vocabularies.learning import train_vocabulary
from t2t_jax.data.vocabularies.shared import SharedVocabulary
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.decoding import row_group
from t2t_jax.decoding import translator as translator_module
from t2t_jax.decoding.hypotheses import length_penalty
from t2t_jax.decoding.translator import Translator
from t2t_jax.errors import UserError
from t2t_jax.modules.ensemble import Ensemble
from t2t_jax.modules.matrices import Parameters
from t2t_jax.modules.network import init_parameters
from tests.selection import thorough_after

WORDS = ["ein", "zwei", "rot", "blau", "haus", "baum", "gehen", "sehen", "große", "kleine", "tür"]
WORDS += ["fenster", "und", "oder", "nicht"]
CONFIG = Config(
    model=network_config(
        d_model=16, num_heads=2, d_ff=32, num_encoder_layers=1, num_decoder_layers=1
    ),
    data=DataConfig(max_length=32),
    decoding=DecodingConfig(max_extra_length=6, tokens_per_batch=128),
)
VOCAB_SIZE = 100
ROOM = 32  # source and target positions of the reference forward pass


def sentences(count: int, longest: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(1, longest))) for _ in range(count)]


_TRANSLATORS = thorough_after(2, ["translator", "decoder_alone", "ensemble"])


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    """Large enough that most words are one subword."""
    lines = sentences(300, 12)
    return train_vocabulary([(lines, lines)], VOCAB_SIZE)


def random_params(model: ModelConfig, seed: int = 0) -> Parameters:
    """Random weights, large enough that no two tokens are nearly as probable."""
    network = load_named(FAMILIES[model.architecture].network)(model, VOCAB_SIZE, 2)
    params = nn.unbox(jax.jit(partial(init_parameters, network))(jax.random.key(seed)))
    params["embedding"]["embedding"] *= 4
    return params


def random_translator(vocabulary: Vocabulary, config: Config = CONFIG) -> Translator:
    return Translator(config, vocabulary, random_params(config.model), steps=[7])


@pytest.fixture(scope="module")
def translator(vocabulary: Vocabulary) -> Translator:
    return random_translator(vocabulary)


WIDER = dataclasses.replace(
    CONFIG.model,
    d_model=24,
    num_decoder_layers=2,
    norm="rms",
    norm_order="pre",
    feed_forward="swiglu",
    position="relative_bias",
    num_kv_heads=1,
    attention_window=3,
)


@pytest.fixture(scope="module")
def ensemble(translator: Translator) -> Translator:
    """The translator, together with a model that is larger and of another kind."""
    others = [(WIDER, random_params(WIDER, 2))]
    return Translator(CONFIG, translator.vocabulary, translator.params, others=others)


@pytest.fixture(scope="module")
def decoder_alone(vocabulary: Vocabulary) -> Translator:
    """A decoder alone, whose outputs go on from their sources."""
    changes = {"architecture": "decoder_only", "position": "rotary"}
    return random_translator(
        vocabulary, CONFIG.replace({f"model.{name}": value for name, value in changes.items()})
    )


@partial(jax.jit, static_argnums=0)
def full_forward(config, params, source, target):
    """Log-probabilities [t, v] from the training pass over one source, with 0 for padding."""
    model = load_named(FAMILIES[config.architecture].network)(config, VOCAB_SIZE, 2)
    segments = (source > 0).astype(jnp.int32), jnp.ones_like(target)
    batch = Batch(
        *(
            Sequence(ids[None], segment[None], (jnp.arange(len(ids)) * segment)[None])
            for ids, segment in zip((source, target), segments, strict=True)
        )
    )
    logits = model.apply({"params": params}, batch, deterministic=True)
    return jax.nn.log_softmax(logits[0])


def log_probs(translator: Translator, line: str, tokens: list[int]) -> np.ndarray:
    """Of every token at every position; of an ensemble, by the mean of the probabilities."""
    source, target = np.zeros((2, ROOM), np.int32)
    [encoded] = translator.vocabulary.encode([line])
    source[: len(encoded)] = encoded
    target[: len(tokens)] = tokens
    members = [(translator.config.model, translator.params)]
    if isinstance(translator.model, Ensemble):
        configs = (member.network.config for member in translator.model.members)
        members = list(zip(configs, translator.params.values(), strict=True))
    probabilities = [
        np.exp(np.float64(full_forward(*member, source, target))) for member in members
    ]
    return np.log(np.mean(probabilities, axis=0))


@pytest.mark.parametrize("which", _TRANSLATORS)
def test_greedy_search_takes_the_most_probable_token_of_the_full_forward_pass(request, which):
    translator = request.getfixturevalue(which)
    for line in ["rot haus", "ein kleine tür und nicht sehen", "blau"]:
        tokens: list[int] = []
        limit = len(translator.vocabulary.encode([line])[0]) + 6
        while len(tokens) < limit and EOS_ID not in tokens:
            tokens.append(int(log_probs(translator, line, tokens)[len(tokens)].argmax()))
        [[best]] = translator.nbest([line], 1, beam_size=1)
        assert list(best.tokens) == tokens
        assert [best.text] == translator.vocabulary.decode([tokens])


@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize("which", _TRANSLATORS)
def test_log_probabilities_are_those_of_the_full_forward_pass(request, which, beam_size):
    translator = request.getfixturevalue(which)
    line = "große fenster gehen oder baum"
    [hypotheses] = translator.nbest([line], beam_size, beam_size=beam_size)
    assert 1 <= len(hypotheses) <= beam_size
    for _, score, log_prob, tokens in hypotheses:
        steps = log_probs(translator, line, list(tokens))
        expected = sum(steps[place, token] for place, token in enumerate(tokens))
        assert log_prob == pytest.approx(expected, rel=1e-4)
        alpha = 0.6 if beam_size > 1 else 0.0
        penalty = float(length_penalty(jnp.array(len(tokens)), alpha))
        assert score == pytest.approx(expected / penalty, rel=1e-4)


@pytest.mark.parametrize(
    "decoding",
    [{"beam_size": 1}, {"beam_size": 4}, {"beam_size": 1, "quantize": "int8"}],
    ids=str,
)
def test_a_line_is_translated_the_same_alone_and_among_others(translator, decoding):
    lines = sentences(20, 12, seed=1)
    together = translator.translate(lines, **decoding)
    alone = [translator.translate([line], **decoding)[0] for line in lines]
    assert together == alone
    assert len(set(together)) > 10  # they are not the same whatever the source


@pytest.mark.parametrize("which", _TRANSLATORS)
def test_log_probabilities_of_integers_are_near_those_of_the_full_forward_pass(request, which):
    translator = request.getfixturevalue(which)
    lines = sentences(8, 8, seed=10)
    exact = translator.nbest(lines, 1)
    near = translator.nbest(lines, 1, quantize="int8")
    for line, [best] in zip(lines, near, strict=True):
        steps = log_probs(translator, line, list(best.tokens))
        expected = sum(steps[place, token] for place, token in enumerate(best.tokens))
        assert best.log_prob == pytest.approx(expected, rel=0.08)
    assert near != exact
    assert translator.nbest(lines, 1) == exact  # what it has made of the weights, it keeps apart


@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize("lines", thorough_after(1, [5, 1]))
def test_log_probabilities_in_bfloat16_are_near_those_of_float32(translator, beam_size, lines):
    config = translator.config.replace({"model.compute_dtype": "bfloat16"})
    narrow = Translator(config, translator.vocabulary, translator.params)
    line = "große fenster gehen oder baum"
    for hypotheses in narrow.nbest([line] * lines, beam_size, beam_size=beam_size):
        assert hypotheses
        for _, _, log_prob, tokens in hypotheses:
            steps = log_probs(translator, line, list(tokens))
            expected = sum(steps[place, token] for place, token in enumerate(tokens))
            assert 0 < abs(log_prob - expected) < 0.05 * abs(expected)


def test_blank_lines_stay_blank_in_their_place(translator):
    lines = ["", "rot haus", "   ", "\t\r", "\u2003", "blau baum", "\n"]
    result = translator.translate(lines)
    assert result == [
        "",
        translator.translate(["rot haus"])[0],
        "",
        "",
        "",
        translator.translate(["blau baum"])[0],
        "",
    ]
    assert translator.nbest([" "], 4) == [[("", 0.0, 0.0, ())]]


def test_nothing_and_only_blanks_need_no_search(translator, monkeypatch):
    monkeypatch.setattr(row_group, "proceed", None)
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


def test_programs_are_few_and_used_again(translator):
    lines = sentences(60, 40, seed=4)
    decoding = {"beam_size": 2, "tokens_per_batch": 256}  # not used by any other test
    program = row_group.proceed
    before = program._cache_size()
    translator.translate(lines, **decoding)
    first = program._cache_size() - before
    assert 1 < first <= 4
    translator.translate(lines[::-1], **decoding)
    assert program._cache_size() - before == first


def test_translators_of_one_model_prepare_their_parameters_by_one_program(vocabulary, translator):
    translator.prepared("none")
    compiled = translator_module._prepare._cache_size()
    other = Translator(CONFIG, vocabulary, random_params(CONFIG.model, 1))
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


@pytest.mark.parametrize("which", _TRANSLATORS)
def test_sampling_the_single_best_token_is_greedy_search(request, which):
    translator = request.getfixturevalue(which)
    lines = sentences(5, 6, seed=7)
    sampled = translator.nbest(lines, 1, temperature=0.7, top_k=1)
    greedy = translator.nbest(lines, 1, beam_size=1)
    assert [h[0].tokens for h in sampled] == [h[0].tokens for h in greedy]


@pytest.mark.thorough
def test_an_ensemble_of_one_model_many_times_is_that_model(translator):
    others = [(CONFIG.model, translator.params)] * 2
    thrice = Translator(CONFIG, translator.vocabulary, translator.params, others=others)
    lines = sentences(5, 6, seed=8)
    [alone, together] = ([h[0] for h in t.nbest(lines, 1)] for t in (translator, thrice))
    assert [h.tokens for h in together] == [h.tokens for h in alone]
    assert [h.score for h in together] == pytest.approx([h.score for h in alone], rel=1e-4)


@pytest.mark.thorough
def test_an_ensemble_translates_a_line_the_same_alone_and_among_others(ensemble, translator):
    lines = sentences(6, 6, seed=9)
    together = ensemble.translate(lines)
    assert together == [ensemble.translate([line])[0] for line in lines]
    assert together != translator.translate(lines)


def test_an_unknown_override_is_refused_with_a_hint(translator):
    with pytest.raises(UserError, match=r"did you mean decoding\.beam_size"):
        translator.translate(["rot"], beamsize=3)


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


@pytest.mark.parametrize(
    ("num_best", "overrides", "message"),
    [
        (5, {"beam_size": 4}, "num_best=5 is more than beam_size=4"),
        (2, {"temperature": 1.0}, "sampling gives one"),
        (0, {}, "num_best=0 is not positive"),
    ],
)
def test_num_best_must_suit_the_search(translator, num_best, overrides, message):
    with pytest.raises(UserError, match=message):
        translator.nbest(["rot"], num_best, **overrides)


@pytest.mark.thorough
def test_learned_positions_limit_the_length_of_a_line(vocabulary):
    model = dataclasses.replace(CONFIG.model, position="learned", max_positions=38)
    translator = random_translator(vocabulary, dataclasses.replace(CONFIG, model=model))
    fits = "rot"
    while len(vocabulary.encode([fits + " rot"])[0]) <= 32:
        fits += " rot"
    assert translator.translate([fits], beam_size=1) != [""]
    with pytest.raises(UserError, match=r"line 12 has \d+ subwords.* allow 32 .*split the line"):
        translator.translate(["rot", "blau", fits + " rot rot"], first_line=10, long_lines="refuse")
    others = [(model, translator.params), (CONFIG.model, random_params(CONFIG.model))]
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


def test_it_keeps_what_it_was_made_of(translator, vocabulary):
    assert translator.config is CONFIG
    assert translator.vocabulary is vocabulary
    assert translator.steps == (7,)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(translator.params))


def test_one_string_is_not_taken_for_lines(translator):
    with pytest.raises(TypeError, match=r"give a list of lines"):
        translator.translate("rot")
