import random
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t_jax.batch import EOS_ID, Batch, Sequence
from t2t_jax.config import Config, DataConfig, DecodingConfig, ModelConfig, network_config
from t2t_jax.data.layout import length_ladder
from t2t_jax.data.vocabularies.learning import train_vocabulary
from t2t_jax.decoding import scoring as scoring_module
from t2t_jax.decoding.scoring import ForcedScore, score
from t2t_jax.decoding.translator import Translator
from t2t_jax.errors import UserError
from t2t_jax.modules.matrices import Parameters
from t2t_jax.modules.network import init_parameters
from t2t_jax.modules.transformer import Transformer
from tests.selection import thorough_after

WORDS = ["ein", "zwei", "rot", "blau", "haus", "baum", "gehen", "sehen", "tür", "und", "nicht"]
SMALL = network_config(d_model=16, num_heads=2, d_ff=32, num_encoder_layers=1, num_decoder_layers=1)
LARGE = network_config(
    d_model=24, num_heads=2, d_ff=32, num_encoder_layers=1, num_decoder_layers=2, norm_order="pre"
)
CONFIG = Config(
    model=SMALL,
    data=DataConfig(max_length=32),
    decoding=DecodingConfig(max_extra_length=6, tokens_per_batch=128),
)
VOCAB_SIZE = 80


def sentences(count: int, longest: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(1, longest))) for _ in range(count)]


def random_params(model: ModelConfig, seed: int) -> Parameters:
    network = Transformer(model, VOCAB_SIZE, 2)
    params = nn.unbox(jax.jit(partial(init_parameters, network))(jax.random.key(seed)))
    params["embedding"]["embedding"] *= 4
    return params


@pytest.fixture(scope="module")
def translator() -> Translator:
    lines = sentences(300, 12, seed=0)
    vocabulary = train_vocabulary([(lines, lines)], VOCAB_SIZE)
    return Translator(CONFIG, vocabulary, random_params(SMALL, 0))


@pytest.fixture(scope="module")
def ensemble(translator) -> Translator:
    others = [(LARGE, random_params(LARGE, 1)), (SMALL, random_params(SMALL, 2))]
    return Translator(CONFIG, translator.vocabulary, translator.params, others=others)


@partial(jax.jit, static_argnums=0)
def forward(config: ModelConfig, params: Parameters, source: jax.Array, target: jax.Array):
    """Logits [t, v] of one pair without padding."""
    batch = Batch(
        *(
            Sequence(ids[None], jnp.ones_like(ids)[None], jnp.arange(len(ids))[None])
            for ids in (source, target)
        )
    )
    network = Transformer(config, VOCAB_SIZE, 2)
    return network.apply({"params": params}, batch, deterministic=True)[0]


def by_hand(translator: Translator, members: list, source: str, target: str) -> list[float]:
    """Log-probability of each token of the target, by the mean of the members' probabilities."""
    ids = [
        jnp.array(tokens, jnp.int32) for tokens in translator.vocabulary.encode([source, target])
    ]
    probabilities = []
    for config, params in members:
        logits = np.asarray(forward(config, params, *ids), np.float64)
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        probabilities.append(weights / weights.sum(axis=1, keepdims=True))
    mean = np.mean(probabilities, axis=0)
    return np.log(mean[np.arange(len(ids[1])), ids[1]]).tolist()


SOURCES = ["rot haus", "ein tür und nicht sehen", "", "nicht", "blau"]
TARGETS = ["blau baum", "gehen", "zwei", "", "und und und haus baum tür rot"]


def test_scores_are_those_of_one_pass_over_each_pair(translator):
    members = [(SMALL, translator.params)]
    scores = score(translator, SOURCES, TARGETS)
    for source, target, found in zip(SOURCES, TARGETS, scores, strict=True):
        expected = by_hand(translator, members, source, target)
        [tokens] = translator.vocabulary.encode([target])
        assert found.tokens == tuple(tokens)
        assert found.tokens[-1] == EOS_ID
        assert found.token_log_probs == pytest.approx(expected, rel=1e-4)
        assert found.log_prob == pytest.approx(sum(expected), rel=1e-4)


@pytest.mark.thorough
def test_scores_of_an_ensemble_are_those_of_the_mean_of_the_probabilities(ensemble):
    configs = (member.network.config for member in ensemble.model.members)
    members = list(zip(configs, ensemble.params.values(), strict=True))
    assert [config for config, _ in members] == [SMALL, LARGE, SMALL]
    scores = score(ensemble, SOURCES, TARGETS)
    for source, target, found in zip(SOURCES, TARGETS, scores, strict=True):
        expected = by_hand(ensemble, members, source, target)
        assert found.token_log_probs == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("which", thorough_after(1, ["translator", "ensemble"]))
def test_what_a_search_writes_has_the_log_probability_that_it_gave(request, which):
    translator = request.getfixturevalue(which)
    lines = sentences(400, 2, seed=1)
    # Drawn almost evenly, so that many end, and some are spelt as the vocabulary would spell them.
    written = translator.nbest(lines, 1, temperature=5.0, tokens_per_batch=8192)
    pairs = list(zip(lines, [hypothesis for [hypothesis] in written], strict=True))
    respelt = translator.encode([hypothesis.text for _, hypothesis in pairs])
    found = [
        pair for pair, tokens in zip(pairs, respelt, strict=True) if pair[1].tokens == tuple(tokens)
    ]
    assert len(found) >= 5
    scores = score(translator, [line for line, _ in found], [h.text for _, h in found])
    for (_, hypothesis), forced in zip(found, scores, strict=True):
        assert forced.tokens == hypothesis.tokens
        assert forced.log_prob == pytest.approx(hypothesis.log_prob, rel=1e-4)


def with_room(translator: Translator, tokens: int) -> Translator:
    config = translator.config.replace({"decoding.tokens_per_batch": tokens})
    return Translator(config, translator.vocabulary, translator.params)


def test_a_score_depends_on_nothing_but_its_pair(translator):
    sources, targets = sentences(30, 12, seed=2), sentences(30, 12, seed=3)
    together = score(translator, sources, targets)
    alone = with_room(translator, 1)
    backwards = score(alone, sources[::-1], targets[::-1])[::-1]
    for one, other in zip(together, backwards, strict=True):
        assert one.tokens == other.tokens
        assert one.token_log_probs == pytest.approx(other.token_log_probs, rel=1e-4)
    assert len({one.log_prob for one in together}) > 20


def test_shapes_are_few_and_used_again(translator):
    sources, targets = sentences(60, 16, seed=4), sentences(60, 16, seed=5)
    translator = with_room(translator, 192)  # not used by any other test
    before = scoring_module._log_probs._cache_size()
    score(translator, sources, targets)
    first = scoring_module._log_probs._cache_size() - before
    lengths = map(len, translator.encode(sources + targets))
    assert 1 < first <= len(length_ladder(max(lengths))) + 1
    score(translator, sources[::-1], targets[::-1])
    assert scoring_module._log_probs._cache_size() - before == first


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        ({"decoding.tokens_per_batch": 10**6}, 4096),
        ({"decoding.tokens_per_batch": 10**6, "parallel.tokens_per_device": 512}, 512),
        ({"decoding.tokens_per_batch": 256, "parallel.tokens_per_device": 10**6}, 256),
    ],
)
def test_no_more_positions_are_scored_together_than_there_is_room_for(
    translator, monkeypatch, settings, most
):
    shapes = []

    def log_probs(model, params, inputs, targets):
        del model, params
        shapes.append(inputs.shape)
        return jnp.zeros(targets.shape)

    monkeypatch.setattr(scoring_module, "_log_probs", log_probs)
    config = translator.config.replace(settings)
    roomy = Translator(config, translator.vocabulary, translator.params)
    score(roomy, ["rot haus"] * 1000, ["blau"] * 1000)
    assert max(rows * length for rows, length in shapes) == most


def test_a_blank_pair_is_certain_as_its_translation_is(translator):
    [[blank]] = translator.nbest([" "], 1)
    scores = score(translator, ["\t", "rot haus", ""], ["", "blau", "\n"])
    assert scores[0] == scores[2] == ForcedScore(0.0, (), ())
    assert (blank.log_prob, blank.tokens) == (0.0, ())
    assert scores[1] == score(translator, ["rot haus"], ["blau"])[0]


def test_nothing_and_only_blanks_need_no_model(translator, monkeypatch):
    monkeypatch.setattr(scoring_module, "_log_probs", None)
    assert score(translator, [], []) == []
    assert score(translator, ["", " "], [" ", ""]) == [ForcedScore(0.0, (), ())] * 2


def test_a_line_break_within_a_line_counts_as_a_space(translator):
    broken = score(translator, ["rot\nhaus"], ["blau\nbaum"])
    assert broken == score(translator, ["rot haus"], ["blau baum"])


def test_unequal_numbers_of_lines_are_refused(translator):
    with pytest.raises(UserError, match="2 sources and 1 targets are not pairs"):
        score(translator, ["rot", "blau"], ["haus"])


def test_one_string_is_not_taken_for_lines(translator):
    with pytest.raises(TypeError, match="give a list of lines"):
        score(translator, "rot", "tür")


@pytest.mark.thorough
def test_learned_positions_limit_the_length_of_either_side(translator):
    learned = network_config(
        d_model=16,
        num_heads=2,
        d_ff=32,
        num_encoder_layers=1,
        num_decoder_layers=1,
        position="learned",
        max_positions=38,
    )
    others = [(learned, random_params(learned, 3))]
    ensemble = Translator(CONFIG, translator.vocabulary, translator.params, others=others)
    fits = "rot"
    while len(translator.encode([fits + " rot"])[0]) <= 38:
        fits += " rot"
    [found] = score(ensemble, [fits], [fits])
    members = [(SMALL, translator.params), *others]
    assert found.token_log_probs == pytest.approx(
        by_hand(translator, members, fits, fits), rel=1e-4
    )
    long = fits + " rot rot"
    with pytest.raises(UserError, match=r"source line 11 has \d+ subwords.* allow 38 "):
        score(ensemble, ["rot", long], ["rot", "rot"], first_line=10)
    with pytest.raises(UserError, match=r"target line 2 has \d+ subwords.* allow 38 .*split the"):
        score(ensemble, ["rot", "rot"], ["rot", long])


def test_a_model_that_has_diverged_is_refused_by_line(translator):
    broken = jax.tree.map(lambda x: x * np.nan, translator.params)
    diverged = Translator(CONFIG, translator.vocabulary, broken)
    with pytest.raises(UserError, match=r"no finite probabilities for line 12; .* earlier step"):
        score(diverged, ["", "", "rot"], ["", "", "haus"], first_line=10)
