"""The coordinate check, by which the rules of the parametrisations are tested too."""

import re

import numpy as np
import pytest

from t2t_jax.__main__ import main
from t2t_jax.config import Config
from t2t_jax.errors import UserError
from t2t_jax.inspect.coordinates import Coordinates, coordinates, growth, of_depth, of_width

_SMALL = {
    "model.d_model": 64,
    "model.num_heads": 2,
    "model.d_ff": 128,
    "model.base_width": 128,
    "training.peak_learning_rate": 0.005,
}
_DECODER = {"model.architecture": "decoder_only", "model.num_decoder_layers": 1}
_BOTH = {"model.num_encoder_layers": 1, "model.num_decoder_layers": 1}
_ENCODER = {
    "model.architecture": "encoder_only",
    "model.num_encoder_layers": 1,
    "model.share_embeddings": False,
    "data.task": "tagging",
}
_CASES = {
    "decoder_only": _DECODER,
    "encoder_decoder": _BOTH,
    "untied": {**_BOTH, "model.share_embeddings": False},
    "encoder_only": _ENCODER,
    "pre_norm": {**_DECODER, "model.norm_order": "pre"},
    "lion": {**_DECODER, "training.optimizer": "lion", "training.peak_learning_rate": 0.002},
    "muon": {**_DECODER, "training.optimizer": "muon"},
}


def _exponents(fields, parametrisation, widths, seeds=4):
    config = Config().replace({**_SMALL, **fields, "model.parametrisation": parametrisation})
    found = coordinates(config, "width", widths, steps=3, seeds=seeds)
    changes = {part: growth(widths, sizes).exponent for part, sizes in found.change.items()}
    return changes, growth(widths, found.start["logits"]).exponent


@pytest.mark.thorough
@pytest.mark.parametrize("case", _CASES)
def test_changes_do_not_depend_on_the_width_under_mup_and_do_in_the_standard(case):
    widths = (64, 128, 256, 512)
    changes, logits = _exponents(_CASES[case], "mup", widths)
    assert -0.6 < logits < -0.3  # by the root, but for the logits of a token that is read
    assert changes.pop("logits") < 0.1
    # Muon's singular values are only near 1, and gradients of few tokens have a low rank.
    within = 0.15 if case == "muon" else 0.1
    assert changes == pytest.approx(dict.fromkeys(changes, 0.0), abs=within)
    changes, _ = _exponents(_CASES[case], "standard", widths, seeds=1)
    assert max(changes.values()) > 0.4


@pytest.mark.thorough
def test_changes_do_not_depend_on_the_depth_when_residual_connections_are_scaled():
    base = {**_SMALL, **_DECODER, "model.norm_order": "pre", "model.base_depth": 2}
    exponents = {}
    for parametrisation in ("mup", "complete"):
        config = Config().replace({**base, "model.parametrisation": parametrisation})
        found = coordinates(config, "depth", (2, 4, 8, 16), steps=3, seeds=2)
        exponents[parametrisation] = growth((2, 4, 8, 16), found.change["logits"]).exponent
    assert abs(exponents["complete"]) < 0.15
    assert exponents["mup"] > 0.3


def test_the_command_prints_exponents_and_draws_them(tmp_path, monkeypatch, capsys):
    asked = []

    def measured(config, name, values, *, steps, seeds):
        asked.append((config.model.parametrisation, config.model.d_ff, name, values, steps, seeds))
        sizes = {"embedding": np.ones((2, 2)), "logits": np.array([[4.0, 4.0], [1.0, 1.0]])}
        return Coordinates(name, values, sizes, sizes)

    monkeypatch.setattr("t2t_jax.inspect.coordinates.coordinates", measured)
    line = ["coordinates", "base", "--model.norm-order", "pre", "--parametrisation"]
    picture = tmp_path / "new" / "widths.svg"
    assert main([*line, "mup", "--widths", "64", "256", f"--figure={picture}"]) == 0
    printed = capsys.readouterr().out
    rows = [line.split() for line in printed.splitlines()]
    assert ["logits", "4", "1", "-1.00", "±", "0.00", "shrinks", "-1.00"] in rows
    assert ["embedding", "1", "1", "+0.00", "±", "0.00", "flat", "+0.00"] in rows
    assert "<svg" in picture.read_text()
    assert main([*line, "mup", "complete", "--depths", "2", "4", "--widths", "256"]) == 0
    assert asked == [
        ("mup", 2048, "width", (64, 256), 5, 4),
        ("mup", 1024, "depth", (2, 4), 5, 4),
        ("complete", 1024, "depth", (2, 4), 5, 4),
    ]
    for flags, message in (
        (["--figure", "widths.jpg"], "--figure widths.jpg has to end in .svg or .png"),
        (["--model.norm-order=post", "--parametrisation", "mup", "complete"], "norm_order='pre'"),
    ):
        with pytest.raises(UserError, match=re.escape(message)):
            main(["coordinates", "base", *flags])
    with pytest.raises(UserError, match=r"has to end in \.svg or \.png"):
        main(["coordinates", "base", f"--figure={tmp_path / 'other' / 'widths.jpg'}"])
    assert not (tmp_path / "other").exists()


def test_a_growth_is_the_power_of_a_law_with_the_error_of_its_noise():
    widths = (64, 128, 256, 512)
    noise = np.random.default_rng(0).normal(size=(4, 50))
    sizes = np.array(widths)[:, None] ** 0.5 * np.exp(0.2 * noise)
    found = growth(widths, sizes)
    spread = np.log(widths).std() * 200**0.5
    assert found.error == pytest.approx(0.2 / spread, rel=0.15)
    assert found.exponent == pytest.approx(0.5, abs=3 * found.error)
    assert (found.verdict, growth(widths, 1 / sizes).verdict) == ("grows", "shrinks")
    assert growth(widths, np.zeros((4, 1))).verdict == "unknown"


def test_a_wider_network_has_more_heads_of_the_same_size():
    model = of_width(Config().replace({"model.num_kv_heads": 4}), 256).model
    assert (model.d_ff, model.num_heads, model.num_kv_heads) == (1024, 4, 2)
    assert (model.key_size, model.value_size) == (64, 64)
    assert [stack.num_layers for stack in of_depth(Config(), 3).model.stacks] == [3, 3]
    with pytest.raises(UserError, match=r"a width of 96 is no choice for model\.num_heads=8"):
        of_width(Config(), 96)
    with pytest.raises(UserError, match="needs two positive numbers, not '64'"):
        coordinates(Config(), "width", [64], steps=1, seeds=1)
    with pytest.raises(UserError, match="0 steps of 1 seeds measure nothing"):
        coordinates(Config(), "width", [64, 128], steps=0, seeds=1)


def test_two_sizes_have_an_exponent_without_an_error():
    found = growth((64, 256), np.array([[1.0], [2.0]]))
    assert found.exponent == pytest.approx(0.5)
    assert np.isnan(found.error)
