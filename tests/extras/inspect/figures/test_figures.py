"""The pictures show what the paper's formulas say, and what the model has."""

import math
import os
import re
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.figure import Figure

from t2t_jax import Translator, UserError, attention_maps
from t2t_jax.__main__ import main
from t2t_jax.batch import one_a_row
from t2t_jax.config import Config, network_config
from t2t_jax.config.cost import num_parameters
from t2t_jax.extras.inspect.figures import attention, figures, formulas, write_figures
from t2t_jax.extras.inspect.figures.architecture import architecture
from t2t_jax.extras.inspect.figures.long_context import long_context, operations
from t2t_jax.modules.models import make_model
from t2t_jax.modules.network import init_parameters
from t2t_jax.system.drawing import encode_figure
from tests.extras.interchange.models import OPTIONS, portable, translator_of
from tests.tiny import tiny_fields

SMALL = Config(model=network_config(**tiny_fields(16, (2, 3))))


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


@pytest.fixture(scope="module")
def translator() -> Translator:
    return translator_of(portable(OPTIONS["paper"]))


def test_the_boxes_of_a_decoder_alone_are_one_column():
    config = SMALL.replace({"model.architecture": "decoder_only"})
    shown = texts(architecture(config, 40))
    assert "source and target tokens" in shown
    assert [text for text in shown if text.endswith(" x")] == ["3 x"]
    assert not any("cross" in text for text in shown)


@pytest.mark.parametrize("norm_order", ["post", "pre"])
def test_the_boxes_of_the_architecture_have_all_parameters(norm_order):
    config = SMALL.replace({"model.norm_order": norm_order, "model.share_embeddings": False})
    vocab_size = 40
    total = 0
    depth = 1
    encoder, decoder = 2, 3
    depths = iter([encoder, decoder])
    for text in texts(architecture(config, vocab_size)):
        if text == "source tokens":
            depth = encoder
        if text == "target tokens":
            depth = decoder
        if rows := re.fullmatch(r"\[(\d+), (\d+)\]", text):
            total += int(rows[1]) * int(rows[2])
        elif number := re.fullmatch(r"(?:.*: )?([\d,]+)", text):
            total += int(number[1].replace(",", "")) * depth
        elif layers := re.fullmatch(r"(\d) x", text):
            assert int(layers[1]) == next(depths)
    if norm_order == "pre":  # the last norms are in no layer
        total -= 2 * 16 * (encoder - 1 + decoder - 1)
    assert total == num_parameters(config.model, vocab_size)


def test_waves_and_products_are_those_of_section_3_5():
    d_model, length = 32, 20
    (axes,) = formulas.waves(d_model, length).axes
    for line in axes.lines:
        column = int(line.get_label().split()[1])
        wave = math.cos if column % 2 else math.sin
        rate = 10_000 ** (-(column - column % 2) / d_model)
        expected = [wave(position * rate) for position in range(length)]
        np.testing.assert_allclose(line.get_ydata(), expected, atol=1e-5)
    products = formulas.products_by_distance(d_model, length).axes[1].lines[0]
    rates = [10_000 ** (-2 * i / d_model) for i in range(d_model // 2)]
    expected = [sum(math.cos(x * rate) for rate in rates) for x in products.get_xdata()]
    np.testing.assert_allclose(products.get_ydata(), expected, atol=1e-4)


def test_the_hands_of_a_clock_are_turned_by_their_rates_times_the_position():
    (axes,) = formulas.clocks((3,)).axes
    for line, rate in zip(axes.lines, (1, 0.1, 0.01, 0.001), strict=True):
        x, y = line.get_xydata()[1]
        assert math.atan2(x, y) == pytest.approx(3 * rate, abs=1e-5)  # from the top, clockwise


def test_schedules_peak_at_the_end_of_their_warmup():
    config = SMALL.replace({"training.warmup_steps": 100, "training.num_train_steps": 400})
    lines = formulas.schedule(config.training, 16).axes[0].lines
    for line, warmup in zip(lines, (50, 100, 200, 100), strict=True):
        steps, rates = line.get_xdata(), line.get_ydata()
        assert steps[np.argmax(rates)] == warmup
        np.testing.assert_allclose(rates.max(), (16 * warmup) ** -0.5, rtol=1e-5)


def test_label_smoothing_spreads_mass_raises_entropy_and_lowers_confidence():
    targets, entropy, calibration = formulas.label_smoothing(0.3, vocab_size=10).axes
    exact, smoothed = np.reshape([bar.get_height() for bar in targets.patches], (2, 12))
    one_hot = np.eye(12)[4]
    np.testing.assert_allclose(exact, one_hot, atol=1e-6)
    np.testing.assert_allclose(smoothed, 0.7 * one_hot + 0.3 / 12, atol=1e-6)
    best = 0.7 * np.eye(10)[0] + 0.03
    lowest, highest = (line.get_ydata()[0] for line in entropy.lines[:2])
    np.testing.assert_allclose([lowest, highest], [0, -(best * np.log(best)).sum()], atol=1e-9)
    certain = [line.get_xdata()[-1] for line in calibration.lines]
    np.testing.assert_allclose(certain, [1, 0.73])


@pytest.mark.thorough
def test_scores_that_are_not_divided_saturate_the_softmax():
    largest, derivative = attention.softmax_saturation().axes
    for axes in (largest, derivative):
        divided, not_divided = (line.get_ydata() for line in axes.lines)
        assert np.ptp(divided[1:]) < 0.02  # the same whatever d_k is
        assert abs(not_divided[-1] - divided[-1]) > 0.1
    assert largest.lines[1].get_ydata()[-1] > 0.9


def test_masks_are_those_of_two_sentences():
    encoder, decoder, cross = (axes.images[0].get_array() for axes in attention.masks().axes)
    assert encoder.sum() == 4 * 4 + 6 * 6
    assert decoder.sum() == 5 * 6 / 2 + 4 * 5 / 2
    assert cross.sum() == 5 * 4 + 4 * 6


@pytest.mark.parametrize("options", [{}, {"model.feed_forward": "swiglu"}])
def test_operations_are_those_that_the_compiler_counts(options):
    config = SMALL.replace(
        {"model.num_encoder_layers": 1, "model.d_model": 64, "model.d_ff": 256, **options}
    )
    model = make_model(config, 32, None)
    params = jax.eval_shape(partial(init_parameters, model), jax.random.key(0))
    counted = []
    for length in (128, 256):
        inputs = one_a_row(jnp.ones((1, length), jnp.int32))
        encode = jax.jit(partial(model.apply, method="encode"))
        cost = encode.lower({"params": nn.unbox(params)}, inputs).compile().cost_analysis()
        counted.append(cost["flops"])
    quadratic, linear = operations(config, np.array([128, 256]))
    np.testing.assert_allclose(quadratic + linear, counted, rtol=0.1)
    assert quadratic[1] == 4 * quadratic[0]
    assert linear[1] == 2 * linear[0]


@pytest.mark.thorough
def test_the_longest_row_of_a_short_table_of_positions_is_measured():
    limits = {"data.max_length": 12, "decoding.max_source_length": 12}
    learned = {
        "model.position": "learned",
        "model.max_positions": 24,
        "model.num_encoder_layers": 1,
    }
    config = SMALL.replace({**learned, **limits, "decoding.max_extra_length": 12})
    for axes in long_context(config).axes:
        assert [line.get_xdata().tolist() for line in axes.lines][-1] == [24]


@pytest.mark.thorough
def test_lines_join_the_words_that_heads_look_at(translator):
    maps = attention_maps(translator, "$x$ <b> & $")
    figure = attention.lines_between_words(maps.source, maps.encoder[0], "title")
    assert len(figure.axes[0].lines) == (maps.encoder[0] > 0.05).sum()
    assert texts(figure) == 2 * maps.source
    content = encode_figure(figure, "svg")
    again = attention.lines_between_words(maps.source, maps.encoder[0], "title")
    assert content == encode_figure(again, "svg")  # the same picture is the same file
    assert b"<b>" not in content


@pytest.mark.thorough
def test_a_run_has_all_pictures(translator, tmp_path, monkeypatch):
    short = partial(long_context, lengths=(8, 16))
    monkeypatch.setattr("t2t_jax.extras.inspect.figures.write.long_context", short)
    found = dict(figures(translator, "Hello."))
    of_encoder = [f"attention_encoder_{layer}" for layer in (1, 2)]
    assert [*found][-5:] == [*of_encoder, *(f"attention_cross_{layer}" for layer in (1, 2, 3))]
    temporaries = found["long_context"].axes[1].lines[1].get_ydata()
    assert len(temporaries) == 2
    assert (np.asarray(temporaries) > 0).all()
    monkeypatch.setattr(
        "t2t_jax.extras.inspect.figures.write.figures", lambda *_: [("masks", attention.masks())]
    )
    written = write_figures(tmp_path / "new")
    assert [path.name for path in written] == ["masks.svg", "masks.png"]
    assert written[0].read_bytes().startswith(b"<?xml")
    assert written[1].read_bytes().startswith(b"\x89PNG")


def test_pictures_are_not_drawn_into_a_run(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match="is a run; name the directory for the figures before"):
        main(["figures", str(tmp_path)])
    assert os.listdir(tmp_path) == ["config.json"]
