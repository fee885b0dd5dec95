"""What heads are worth: masks by hand, derivatives by finite differences, an order by hand."""

import json
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t_jax import UserError, attention_maps
from t2t_jax.__main__ import main
from t2t_jax.batch import PAD_ID, Batch, one_a_row, padded
from t2t_jax.commands.entry import entry_command
from t2t_jax.data.corpus import open_corpus
from t2t_jax.extras.inspect import heads
from t2t_jax.extras.inspect.head_kinds import Subwords, count_heads
from t2t_jax.extras.inspect.heads import Head, all_heads, mask_heads, measure_heads, pruning_order
from t2t_jax.modules.gates import HeadGates, apply_gates, open_gates
from t2t_jax.tasks.measures.bleu import corpus_scores
from tests.extras.interchange.models import (
    OPTIONS,
    ensemble_of,
    portable,
    real_pairs,
    translator_of,
)

_SENTENCES = 18  # more than one batch, and padding in the last one
_LONGEST = 64


@pytest.fixture(scope="module")
def translator():
    return translator_of(portable(OPTIONS["paper"]))


@pytest.fixture(scope="module")
def report(translator):
    return measure_heads(translator, num_sentences=_SENTENCES, loss_only=True)


def _pair(translator, source, target):
    vocabulary = translator.vocabulary
    rows = vocabulary.encode([source]), vocabulary.encode_targets([target])
    sides = (one_a_row(jnp.asarray(padded(row, 1, _LONGEST))) for row in rows)
    return Batch(*sides)


@partial(jax.jit, static_argnums=0)
def _nll(model, params, batch):
    return jnp.where(batch.targets.tokens == PAD_ID, 0, model.losses(params, batch, 0.0)[1]).sum()


def _mean_loss(translator, params, pairs):
    """The mean negative log-likelihood of a token, sentence by sentence."""
    batches = [_pair(translator, *pair) for pair in pairs]
    total = sum(float(_nll(translator.model, params, batch)) for batch in batches)
    return total / sum(int((batch.targets.tokens != PAD_ID).sum()) for batch in batches)


def _without_rows(params, stack, attention, layer, rows):
    """The parameters with some rows of a W^O set to zero."""
    params = jax.tree.map(np.array, params)
    params[stack]["layers"][attention]["output"]["kernel"][layer, rows] = 0
    return jax.tree.map(jnp.asarray, params)


@pytest.mark.parametrize(
    ("head", "place"),
    [
        (Head("encoder", 1, 3), ("encoder", "self_attention", 1, slice(12, 16))),
        (Head("decoder", 2, 0), ("decoder", "self_attention", 2, slice(0, 4))),
        (Head("cross", 0, 2), ("decoder", "cross_attention", 0, slice(8, 12))),
    ],
)
def test_a_masked_head_adds_nothing(translator, head, place):
    gates = mask_heads(open_gates(translator.config.model), [head])
    expected = _without_rows(translator.params, *place)
    jax.tree.map(np.testing.assert_array_equal, apply_gates(translator.params, gates), expected)


def test_a_gate_is_a_factor_on_what_the_head_adds(translator):
    [[source], [target]] = ([lines[0]] for lines in real_pairs())
    batch = _pair(translator, source, target)
    rng = np.random.default_rng(0)
    shape = translator.config.model.num_encoder_layers, translator.config.model.num_heads
    random = open_gates(translator.config.model)._replace(encoder=jnp.asarray(rng.random(shape)))

    def loss(gates):
        return float(_nll(translator.model, apply_gates(translator.params, gates), batch))

    # One after the other, gates are multiplied.
    again = apply_gates(apply_gates(translator.params, random), random)
    squared = jax.tree.map(lambda x: x**2, random)
    once = float(_nll(translator.model, again, batch))
    assert once == pytest.approx(loss(squared), rel=1e-5)
    assert once != pytest.approx(loss(open_gates(translator.config.model)), rel=1e-5)


def test_the_change_of_the_loss_is_that_of_a_model_without_the_head(translator, report):
    pairs = list(zip(*_lines(translator), strict=True))
    whole = _mean_loss(translator, translator.params, pairs)
    assert report.loss == pytest.approx(whole, rel=1e-5)
    params = _without_rows(translator.params, "decoder", "cross_attention", 2, slice(4, 8))
    [found] = [h for h in report.heads if (h.attention, h.layer, h.head) == ("cross", 2, 1)]
    change = _mean_loss(translator, params, pairs) - whole
    assert found.loss_change == pytest.approx(change, abs=1e-5)


def _lines(translator):
    return tuple(side[:_SENTENCES] for side in open_corpus(translator.config.data).lines("dev"))


def test_importance_is_the_mean_size_of_the_derivative(translator, report):
    head, step = Head("decoder", 0, 1), 0.05
    whole = open_gates(translator.config.model)
    sizes = []
    for source, target in zip(*_lines(translator), strict=True):
        losses = []
        for sign in (-1, 1):
            gates = whole._replace(decoder=whole.decoder.at[head.layer, head.head].add(sign * step))
            params = apply_gates(translator.params, gates)
            losses.append(_mean_loss(translator, params, [(source, target)]))
        sizes.append(abs(losses[1] - losses[0]) / (2 * step))
    [found] = [h for h in report.heads if (h.attention, h.layer, h.head) == head]
    assert found.importance == pytest.approx(np.mean(sizes), rel=0.02)


def test_kinds_are_those_of_the_attention_maps(translator):
    counts = {}
    for source, target in list(zip(*_lines(translator), strict=True))[:3]:
        maps = attention_maps(translator, source, target)
        source_side = Subwords(maps.source_words, maps.source)
        predicted = Subwords(maps.target_words, maps.target)
        inputs = Subwords([-1, *maps.target_words[:-1]], ["<s>", *maps.target[:-1]])
        for name, sides in (
            ("encoder", (source_side, source_side)),
            ("decoder", (inputs, inputs)),
            ("cross", (predicted, source_side)),
        ):
            found = count_heads(getattr(maps, name), *sides, name)
            counts[name] = counts[name] + found if name in counts else found
    measured = heads._Measures(translator, "dev", 3, loss_only=True).counts()
    for name, expected in counts.items():
        assert measured[name].kinds() == expected.kinds()
        np.testing.assert_allclose(measured[name].shares, expected.shares, atol=1e-4)
        np.testing.assert_allclose(measured[name].entropy, expected.entropy, rtol=1e-4)


def test_blank_lines_count_as_no_sentences(tmp_path):
    for side, text in (("en", "\nthe file\nthe\n"), ("de", "die\ndie Datei\n\n")):
        for split in ("train", "dev"):
            (tmp_path / f"{split}.{side}").write_text(text)
    fields = {"data.corpus": f"text:{tmp_path}", "model.num_encoder_layers": 1}
    measures = heads._Measures(translator_of(portable(fields)), "dev", 1, loss_only=True)
    assert (measures.lines, measures.references) == (["the file"], ["die Datei"])


def test_bleu_is_that_of_a_model_without_the_head(translator):
    sources, references = _lines(translator)
    params = _without_rows(translator.params, "encoder", "self_attention", 0, slice(0, 4))
    other = type(translator)(translator.config, translator.vocabulary, params)
    score = corpus_scores(other.translate(sources, beam_size=1), references, "de").bleu
    measures = heads._Measures(translator, "dev", _SENTENCES, loss_only=False)
    gates = mask_heads(open_gates(translator.config.model), [Head("encoder", 0, 0)])
    assert measures.bleu(gates) == score


def test_a_report_has_every_head_and_a_curve(translator, report):
    assert [(h.attention, h.layer, h.head) for h in report.heads] == all_heads(
        open_gates(translator.config.model)
    )
    assert len(report.heads) == 4 * (2 + 3 + 3)
    assert [point.heads for point in report.curve] == [0, 3, 6, 10, 13, 16, 19, 22]
    assert report.curve[0].loss == report.loss
    assert report.bleu is None
    assert report.num_sentences == _SENTENCES


def test_the_least_important_heads_go_first_and_one_of_each_attention_stays():
    encoder = np.array([[4.0, 3.0], [0.04, 0.03]])  # layers are compared by their norms
    decoder, cross = np.array([[1.0, 0.0]]), np.array([[0.1, 0.2]])
    order = pruning_order(HeadGates(encoder, decoder, cross))
    # 0 of the decoder; 0.1/0.22 of cross-attention; 3/5 and 0.03/0.05, in their order.
    assert order == [
        Head("decoder", 0, 1),
        Head("cross", 0, 0),
        *sorted([Head("encoder", 0, 1), Head("encoder", 1, 1)], key=lambda x: order.index(x)),
    ]
    nothing = HeadGates(*(np.zeros((1, 1)) for _ in range(3)))
    assert pruning_order(nothing) == []


def test_what_has_no_heads_of_its_own_is_refused(translator):
    with pytest.raises(UserError, match="an ensemble has no attention heads"):
        measure_heads(ensemble_of(translator))
    with pytest.raises(UserError, match="late"):
        measure_heads(translator, split="late")


def test_the_command_tells_draws_and_writes_json(report, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("t2t_jax.extras.inspect.heads_command.load_for", lambda *_: None)
    monkeypatch.setattr(heads, "measure_heads", lambda *_, **__: report)
    assert main(["heads", "run"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("cross") == 3 * 4
    assert "with the least important heads masked" in printed
    picture = tmp_path / "heads.svg"
    assert main(["heads", "run", "--json", "--plot", str(picture)]) == 0
    written = json.loads(capsys.readouterr().out)
    assert written["loss"] == report.loss
    assert len(written["heads"]) == len(report.heads)
    assert b"importance" in picture.read_bytes()
    for flags, message in (
        (["--plot", "heads.txt"], r"--plot heads\.txt has to end in"),
        (["--num-sentences", "0"], "--num-sentences 0 is not positive"),
    ):
        with pytest.raises(UserError, match=message):
            entry_command(["heads", "run", *flags]).run()
