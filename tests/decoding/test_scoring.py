import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t_jax import Translator, UserError
from t2t_jax.batch import EOS_ID
from t2t_jax.data.layout import bucket_lengths
from t2t_jax.decoding import scoring as scoring_module
from t2t_jax.decoding.scoring import ForcedScore, score
from tests.decoding.random_models import CONFIG, log_probs, random_params, sentences, with_fields
from tests.selection import thorough_after


def by_hand(translator, source, target):
    """Log-probability of each token of the target, by a full pass over the pair."""
    [tokens] = translator.vocabulary.encode([target])
    steps = log_probs(translator, source, tokens)
    return [steps[place, token] for place, token in enumerate(tokens)]


SOURCES = ["rot haus", "ein tür und nicht sehen", "", "nicht", "blau"]
TARGETS = ["blau baum", "gehen", "zwei", "", "und und und haus baum tür rot"]


@pytest.mark.parametrize("which", thorough_after(1, ["translator", "ensemble"]))
def test_scores_are_those_of_one_pass_over_each_pair(request, which):
    translator = request.getfixturevalue(which)
    scores = score(translator, SOURCES, TARGETS)
    for source, target, found in zip(SOURCES, TARGETS, scores, strict=True):
        expected = by_hand(translator, source, target)
        [tokens] = translator.vocabulary.encode([target])
        assert found.tokens == tuple(tokens)
        assert found.tokens[-1] == EOS_ID
        assert found.token_log_probs == pytest.approx(expected, rel=1e-4)
        assert found.log_prob == pytest.approx(sum(expected), rel=1e-4)


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


def test_a_score_depends_on_nothing_but_its_pair(translator):
    sources, targets = sentences(30, 12, seed=2), sentences(30, 12, seed=3)
    together = score(translator, sources, targets)
    alone = with_fields(translator, {"decoding.tokens_per_batch": 1})
    backwards = score(alone, sources[::-1], targets[::-1])[::-1]
    for one, other in zip(together, backwards, strict=True):
        assert one.tokens == other.tokens
        assert one.token_log_probs == pytest.approx(other.token_log_probs, rel=1e-4)
    assert len({one.log_prob for one in together}) > 20


def test_shapes_are_few_and_used_again(translator):
    sources, targets = sentences(60, 16, seed=4), sentences(60, 16, seed=5)
    of_no_other_test = {"decoding.tokens_per_batch": 192}
    translator = with_fields(translator, of_no_other_test)
    before = scoring_module._log_probs._cache_size()
    score(translator, sources, targets)
    first = scoring_module._log_probs._cache_size() - before
    lengths = map(len, translator.encode(sources + targets))
    assert 1 < first <= len(bucket_lengths(max(lengths))) + 1
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
    score(with_fields(translator, settings), ["rot haus"] * 1000, ["blau"] * 1000)
    assert max(rows * length for rows, length in shapes) == most


def test_a_blank_pair_is_certain_as_its_translation_is(translator):
    [[blank]] = translator.nbest([" "], 1)
    scores = score(translator, ["\t", "rot haus", ""], ["", "blau", "\n"])
    assert scores[0] == scores[2] == ForcedScore(0.0, (), ())
    assert (blank.log_prob, blank.tokens) == (0.0, ())
    assert scores[1] == score(translator, ["rot haus"], ["blau"])[0]


def test_nothing_and_only_blanks_need_no_model(translator, monkeypatch):
    monkeypatch.setattr(scoring_module, "_log_probs", pytest.fail)
    assert score(translator, [], []) == []
    assert score(translator, ["", " "], [" ", ""]) == [ForcedScore(0.0, (), ())] * 2


def test_unequal_numbers_of_lines_are_refused(translator):
    with pytest.raises(UserError, match="2 sources and 1 targets are not pairs"):
        score(translator, ["rot", "blau"], ["haus"])


@pytest.mark.thorough
def test_learned_positions_limit_the_length_of_either_side(translator):
    learned = CONFIG.replace({"model.position": "learned", "model.max_positions": 38})
    others = [(learned.model, random_params(learned, len(translator.vocabulary), 3))]
    ensemble = Translator(CONFIG, translator.vocabulary, translator.params, others=others)
    fits = "rot"
    while len(translator.encode([fits + " rot"])[0]) <= 38:
        fits += " rot"
    [found] = score(ensemble, [fits], [fits])
    assert found.token_log_probs == pytest.approx(by_hand(ensemble, fits, fits), rel=1e-4)
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
