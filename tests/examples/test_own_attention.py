"""Kinds of attention in a file of a user: against NumPy, full passes, and sizes by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import t2t_jax
from t2t_jax.config import AttentionConfig, Config
from t2t_jax.config.cost import num_parameters
from t2t_jax.modules.named_functions import function_problems
from tests.decoding.random_models import CONFIG, log_probs, random_translator
from tests.examples.loading import assert_loss_falls, load_example, quick_config
from tests.selection import thorough_after

LAYER = 2
KINDS = {
    "gated": "gated_attention",
    "gated heads": "gated_attention(is_elementwise=False)",
    "differential": "differential_attention",
}


@pytest.fixture(scope="module", autouse=True)
def own_attention(forgotten_parts):
    return load_example("own_attention")


@pytest.fixture(scope="module", params=["gated_attention", "differential_attention"])
def translator(request, own_attention, vocabulary):
    fields = {"attention_kind": request.param, "num_heads": 4, "num_kv_heads": 2, "d_k": 6}
    config = CONFIG.replace({f"model.{name}": value for name, value in fields.items()})
    return random_translator(config, vocabulary)


def _by_formulas(kind, params, x, num_heads, groups, d_k):
    """Causal attention of one row `[t, d_model]`, head by head."""
    maps = 2 if kind == "differential" else 1
    own = params["combination"]
    query = (x @ params["query"]["kernel"]).reshape(len(x), num_heads, maps, d_k)
    key = (x @ params["key"]["kernel"]).reshape(len(x), groups, maps, d_k)
    value = (x @ params["value"]["kernel"]).reshape(len(x), groups, -1)
    results = []
    for head in range(num_heads):
        group, weights = head * groups // num_heads, []
        for i in range(maps):
            scores = query[:, head, i] @ key[:, group, i].T / np.sqrt(d_k)
            exponentials = np.where(np.tri(len(x)), np.exp(scores), 0)
            weights.append(exponentials / exponentials.sum(1, keepdims=True))
        if maps == 1:
            gate = (x @ own["gate"]["kernel"]).reshape(len(x), num_heads, -1)[:, head]
            results.append(weights[0] @ value[:, group] / (1 + np.exp(-gate)))
            continue
        start = 0.8 - 0.6 * np.exp(-0.3 * LAYER)
        products = [np.exp(own[f"query_{n}"] @ own[f"key_{n}"]) for n in (1, 2)]
        factor = products[0] - products[1] + start
        result = (weights[0] - factor * weights[1]) @ value[:, group]
        result /= np.sqrt((result**2).mean(1, keepdims=True) + 1e-5)
        results.append((1 - start) * result * own["scale"])
    return np.concatenate(results, 1) @ params["output"]["kernel"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_computes_the_formulas_of_the_paper(kind):
    config = AttentionConfig(16, 4, 6, 5, num_kv_heads=2, attention_kind=KINDS[kind])
    module = t2t_jax.MultiHeadAttention(config)
    rng = np.random.default_rng(0)
    x, mask = jnp.float32(rng.normal(size=(1, 7, 16))), jnp.tri(7, dtype=bool)[None, None]
    shapes = jax.eval_shape(module.init, jax.random.key(0), x)["params"]
    params = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape) / 2, shapes)
    context = t2t_jax.Context(mask=mask, layer=LAYER)
    (result,) = jax.jit(lambda params: module.apply({"params": params}, x, context))(params)
    expected = _by_formulas(kind.split()[0], params, x[0], 4, 2, 6)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_the_kinds_pass_the_checks_of_training(kind):
    assert [*function_problems(CONFIG.replace({"model.attention_kind": KINDS[kind]}))] == []


@pytest.mark.parametrize(
    ("beam_size", "quantize", "tolerance"), [(1, "none", 1e-4), (3, "none", 1e-4), (3, "int8", 0.1)]
)
def test_a_search_gives_the_log_probabilities_of_the_full_pass(
    beam_size, quantize, tolerance, translator
):
    lines = ["rot haus", "ein tür und nicht sehen", "blau"]
    nbest = translator.nbest(lines, beam_size, beam_size=beam_size, quantize=quantize)
    for line, hypotheses in zip(lines, nbest, strict=True):
        assert len(hypotheses) == beam_size
        for hypothesis in hypotheses:
            tokens = list(hypothesis.tokens)
            steps = log_probs(translator, line, tokens)[np.arange(len(tokens)), tokens]
            assert hypothesis.log_prob == pytest.approx(steps.sum(), rel=tolerance)


def test_attention_maps_have_a_row_for_each_map(translator):
    maps = t2t_jax.attention_maps(translator, "rot haus", "blau baum").encoder
    assert maps.shape[1] == translator.config.model.attention.num_maps
    np.testing.assert_allclose(maps.sum(-1), 1, rtol=1e-5)


def test_sizes_are_those_by_hand(translator):
    model = translator.config.model
    size = sum(x.size for x in jax.tree.leaves(translator.params))
    assert num_parameters(model, len(translator.vocabulary)) == size
    attention, is_differential = model.attention, "differential" in model.attention_kind
    maps = 2 if is_differential else 1
    # d_model is 16; 4 heads share 2 values of width 4; queries and keys have width 6.
    widths = [4 * maps * 6, 2 * maps * 6, 2 * 4, 4 * 4]  # W^Q, W^K, W^V, W^O
    gates, others = (0, 4 * 6 + 4) if is_differential else (4 * 4, 0)
    assert attention.num_parameters == 16 * (sum(widths) + gates) + others
    assert attention.multiply_adds_per_pair == 4 * maps * (6 + 4)
    assert attention.cache_width == 2 * maps * 6 + 2 * 4
    assert attention.cache_shapes(3, 5) == ((3, 2 * maps, 6, 5), (3, 2, 5, 4))
    # Queries, keys, values and gates; the values of each map; what `combine` makes of them.
    assert attention.activations == sum(widths[:3]) + gates + 4 * maps * 4 + 4 * 4


def test_an_object_of_a_kind_is_a_value_of_a_config(own_attention):
    kind = own_attention.GatedAttention(is_elementwise=False)
    config = Config().replace({"model.attention_kind": kind})
    assert config.model.attention_kind == "gated_attention(is_elementwise=False)"
    assert Config.from_json(config.to_json()) == config
    assert config.model.attention.gates == {"gate": 8}


@pytest.mark.parametrize("kind", thorough_after(1, ["differential_attention", "gated_attention"]))
def test_training_lowers_the_loss(own_attention, tmp_path, monkeypatch, kind):
    models = own_attention.variants(quick_config(own_attention, monkeypatch).model)
    assert models["differential_attention"].pop("d_k") == 8
    assert models["differential_attention"].pop("num_heads") == 1
    monkeypatch.setattr(own_attention, "variants", lambda model: {kind: models[kind]})
    own_attention.main(str(tmp_path), num_train_steps=10)
    assert_loss_falls(tmp_path / kind)
