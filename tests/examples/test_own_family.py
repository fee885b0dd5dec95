"""A family in a file of a user: against NumPy, its own full pass, and its count of parameters."""

import jax
import numpy as np
import pytest

import t2t_jax
from t2t_jax import Config, UserError
from t2t_jax.config.cost import num_parameters
from tests.decoding.random_models import CONFIG, random_translator
from tests.examples.loading import assert_loss_falls, load_example, quick_config
from tests.modules.conftest import make_batch
from tests.modules.numpy_transformer import self_attention_layers, sinusoids


@pytest.fixture(scope="module", autouse=True)
def own_family(forgotten_parts):
    return load_example("own_family")


@pytest.fixture(scope="module")
def translator(vocabulary):
    config = CONFIG.replace({"model.architecture": "prefix", "model.num_decoder_layers": 2})
    return random_translator(config, vocabulary)


@pytest.fixture(scope="module")
def logits(translator):
    network = t2t_jax.build(translator.config, len(translator.vocabulary))
    return jax.jit(lambda batch: network.apply({"params": translator.params}, batch))


def _by_formulas(translator, source, target):
    """The logits of one pair in NumPy, `[t, vocab]`."""
    params = jax.tree.map(np.float64, translator.params)
    config, embedding = translator.config.model, params["embedding"]["embedding"]
    inputs = [*source, 2, *target[:-1]]  # <s> is 2
    is_target = np.arange(len(inputs)) >= len(source)
    positions = np.concatenate([np.arange(len(source)), np.arange(len(target))])
    x = embedding[inputs] * 4 + params["types"][is_target.astype(int)]  # sqrt(16)
    x += sinusoids(len(inputs), config.d_model)[positions]
    allowed = np.tri(len(inputs), dtype=bool) | ~is_target
    bias = np.zeros((config.num_heads, *allowed.shape))
    x = self_attention_layers(params["decoder"], config, x, 2, 1, allowed, bias)
    return x[len(source) :] @ embedding.T


_PAIRS = [([5, 6, 7, 1], [8, 9, 1]), ([10, 1], [11, 12, 13, 1])]


def test_packed_pairs_have_the_logits_of_the_formulas(translator, logits):
    sources, targets = zip(*_PAIRS, strict=True)
    packed = logits(make_batch([sources], [targets]))[0]
    expected = [_by_formulas(translator, *pair) for pair in _PAIRS]
    np.testing.assert_allclose(packed[:7], np.concatenate(expected), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("beam_size", [1, 3])
def test_a_search_gives_the_log_probabilities_of_the_full_pass(beam_size, translator, logits):
    lines = ["rot haus", "ein tür und nicht sehen", "blau"]
    nbest = translator.nbest(lines, beam_size, beam_size=beam_size)
    for source, hypotheses in zip(translator.encode(lines), nbest, strict=True):
        assert len(hypotheses) == beam_size
        for hypothesis in hypotheses:
            target = list(hypothesis.tokens)
            steps = jax.nn.log_softmax(logits(t2t_jax.Batch.of([source], [target])))[0]
            log_prob = steps[np.arange(len(target)), target].sum()
            assert hypothesis.log_prob == pytest.approx(float(log_prob), rel=1e-4)


def test_the_count_of_parameters_is_right(translator):
    size = sum(x.size for x in jax.tree.leaves(translator.params))
    assert num_parameters(translator.config.model, len(translator.vocabulary)) == size


def test_attention_maps_are_parts_of_one_row(translator):
    maps = t2t_jax.attention_maps(translator, "rot haus", "blau baum")
    np.testing.assert_allclose(maps.encoder.sum(-1), 1, rtol=1e-5)
    np.testing.assert_allclose(maps.cross.sum(-1) + maps.decoder.sum(-1), 1, rtol=1e-5)


def test_distances_within_a_row_are_refused():
    with pytest.raises(UserError, match="no attention_window and no position bias"):
        Config().replace({"model.architecture": "prefix", "model.position": "alibi"})


def test_training_lowers_the_loss(own_family, tmp_path, monkeypatch):
    quick_config(own_family, monkeypatch)
    own_family.main(str(tmp_path / "run"), num_train_steps=10)
    assert_loss_falls(tmp_path / "run")
