"""A model without some heads computes what it computes with their gates at 0."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import t2t_jax
from t2t_jax import Config, Translator, UserError
from t2t_jax.__main__ import main
from t2t_jax.batch import Batch, one_a_row, padded
from t2t_jax.config.cost import num_parameters
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.extras.inspect.heads import Head, mask_heads
from t2t_jax.extras.inspect.pruning import heads_to_prune, remove_heads
from t2t_jax.extras.interchange.formats import read_model, write_model
from t2t_jax.extras.interchange.run import write_run
from t2t_jax.modules.gates import HeadGates, apply_gates, open_gates
from tests.extras.interchange.models import (
    OPTIONS,
    assert_same_arrays,
    portable,
    real_pairs,
    subwords,
    translator_of,
)
from tests.selection import thorough_after

HEADS = [
    *(Head("encoder", layer, head) for layer, head in [(0, 1), (0, 3), (1, 0), (1, 2)]),
    *(Head("decoder", layer, head) for layer, head in [(0, 0), (1, 1), (2, 3)]),
    *(Head("cross", layer, head) for layer in range(3) for head in range(4) if head != layer),
]


def _logits(translator: Translator, params) -> jax.Array:
    sources, targets = real_pairs()
    vocabulary: Vocabulary = translator.vocabulary
    rows = vocabulary.encode(sources[:4]), vocabulary.encode_targets(targets[:4])
    sides = (one_a_row(jnp.asarray(padded(row, 4, max(map(len, row))))) for row in rows)
    return jax.jit(translator.model.logits)(params, Batch(*sides))


@pytest.mark.parametrize(
    "name", thorough_after(1, ["paper", "attention-bias", "additive", "query-key-norm"])
)
def test_a_pruned_model_is_the_masked_one(name):
    model = portable(OPTIONS[name])
    whole, pruned = translator_of(model), translator_of(remove_heads(model, HEADS))
    network = pruned.config.model
    assert (network.encoder_heads, network.decoder_heads, network.cross_heads) == (2, 3, 1)
    masked = apply_gates(whole.params, mask_heads(open_gates(whole.config.model), HEADS))
    np.testing.assert_allclose(
        _logits(pruned, pruned.params), _logits(whole, masked), atol=2e-6, rtol=1e-5
    )
    sizes = [sum(x.size for x in jax.tree.leaves(each.params)) for each in (whole, pruned)]
    assert sizes[1] < sizes[0]
    assert sizes[1] == num_parameters(network, len(pruned.vocabulary))


@pytest.mark.thorough
@pytest.mark.parametrize("beam_size", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_a_pruned_model_translates_as_the_masked_one(beam_size):
    model = portable(OPTIONS["paper"])
    whole, pruned = translator_of(model), translator_of(remove_heads(model, HEADS))
    gates = mask_heads(open_gates(whole.config.model), HEADS)
    masked = Translator(whole.config, whole.vocabulary, apply_gates(whole.params, gates))
    lines = real_pairs()[0][:6]
    found, expected = (each.nbest(lines, 1, beam_size=beam_size) for each in (pruned, masked))
    for [one], [other] in zip(found, expected, strict=True):
        assert one.tokens == other.tokens
        assert one.log_prob == pytest.approx(other.log_prob, rel=1e-5)


@pytest.mark.thorough
def test_a_pruned_run_loads_goes_out_and_in_again_and_trains_on(tmp_path):
    model = remove_heads(portable(OPTIONS["paper"]), HEADS)
    write_run(model, tmp_path / "pruned", {"format": "pruned"})
    translator = t2t_jax.load(tmp_path / "pruned")
    lines = real_pairs()[0][:3]
    before = translator.translate(lines, beam_size=1)
    write_model(model, "safetensors", tmp_path / "out")
    again = read_model("safetensors", tmp_path / "out")
    assert_same_arrays(again.arrays, model.arrays)
    assert translator_of(again).translate(lines, beam_size=1) == before
    changes = {
        "training.init_from": str(tmp_path / "pruned"),
        "training.num_train_steps": 2,
        "data.source_tokens_per_step": 128,
        "data.target_tokens_per_step": 128,
        "evaluation.num_sentences": 3,
    }
    config: Config = translator.config.replace(changes)
    assert t2t_jax.train(config, tmp_path / "trained").exit_code == 0
    assert t2t_jax.load(tmp_path / "trained").config.model == model.config.model


def test_formats_with_one_number_of_heads_have_zeros(tmp_path):
    import ctranslate2

    model = remove_heads(portable(OPTIONS["paper"]), HEADS)
    write_model(model, "ctranslate2", tmp_path / "out")
    engine = ctranslate2.Translator(str(tmp_path / "out"), intra_threads=1)
    sources, targets = (side[:4] for side in real_pairs())
    pieces = [subwords(model, side) for side in (sources, targets)]
    ours = t2t_jax.score(translator_of(model), sources, targets)
    for found, own in zip(engine.score_batch(*pieces), ours, strict=True):
        np.testing.assert_allclose(found.log_probs, own.token_log_probs, rtol=1e-4, atol=1e-4)


def test_attentions_lose_their_least_important_heads_layer_by_layer():
    importance = HeadGates(
        encoder=np.array([[0.1, 0.5, 0.6], [0.7, 0.3, 0.9]]),  # 0.2, then 0.6
        decoder=np.array([[0.8, 0.3, 0.4]]),  # 0.3, then 0.4
        cross=np.array([[5.0, 6.0, 7.0]]),
    )
    encoder = [Head("encoder", 0, 0), Head("encoder", 1, 1)]
    decoder = [Head("decoder", 0, 1), Head("decoder", 0, 2)]
    assert heads_to_prune(importance, 0.1) == encoder
    assert heads_to_prune(importance, 0.2) == [*encoder, *decoder[:1]]
    assert heads_to_prune(importance, 0.3) == [*encoder, *decoder]
    last = heads_to_prune(importance, 8 / 12)
    cross = [Head("cross", 0, 0), Head("cross", 0, 1)]
    assert last[4:] == [Head("encoder", 0, 1), Head("encoder", 1, 0), *cross]
    with pytest.raises(UserError, match="at most 8 of 12 heads can be removed"):
        heads_to_prune(importance, 0.7)


def test_what_cannot_be_pruned_is_refused():
    for name, message in (("multi-query", "num_kv_heads"), ("alibi", "position='alibi'")):
        with pytest.raises(UserError, match=message):
            remove_heads(portable(OPTIONS[name]), HEADS)
    with pytest.raises(UserError, match=r"cross_heads=9 is more than model\.num_heads=8"):
        Config().replace({"model.cross_heads": 9})


@pytest.mark.usefixtures("tables")
def test_heads_that_their_kind_combines_are_not_pruned():
    members = {"maps_per_head": 2, "combine": lambda self, heads, *_: heads[:, :, ::2]}
    t2t_jax.register("attention", "own")(type("Own", (t2t_jax.AttentionKind,), members))
    with pytest.raises(UserError, match="kind 'own' cannot be changed alone"):
        remove_heads(portable({"model.attention_kind": "own"}), HEADS)


@pytest.mark.thorough
def test_the_command_writes_a_pruned_run(tmp_path, capsys):
    write_run(portable(OPTIONS["paper"]), tmp_path / "run", {"format": "test"})
    out = tmp_path / "pruned"
    flags = ["--prune", "0.25", str(out), "--num-sentences", "5"]
    assert main(["heads", str(tmp_path / "run"), *flags]) == 0
    assert "of 32 heads" in " ".join(capsys.readouterr().out.split())
    network = t2t_jax.load(out).config.model
    layers = {"encoder": 2, "decoder": 3, "cross": 3}
    left = sum(n * network.attention_of(part).num_heads for part, n in layers.items())
    assert 8 <= 32 - left <= 10
