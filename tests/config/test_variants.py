"""The grid of variants that later work proposed."""

from pathlib import Path

import pytest

import t2t_jax
from t2t_jax.config import Config, differences
from t2t_jax.config.cost import num_parameters
from t2t_jax.config.file import load_grid
from t2t_jax.config.variants import variants

_ROOT = Path(t2t_jax.__file__).parents[1]
_SMALL = {"model.d_model": 96, "model.num_heads": 6, "model.d_ff": 384, "data.vocab_size": 1000}
# These have more parameters, as tables and matrices are added that no other width makes up for; a
# deep encoder has one decoder layer, and with it fewer cross-attentions.
_OF_ANOTHER_SIZE = {"learned-positions", "untied", "tied-target", "deep-encoder"}


@pytest.mark.parametrize("changes", [{}, _SMALL], ids=["the paper's", "small"])
def test_rows_have_as_many_parameters_as_the_base(changes):
    rows = variants(Config().replace(changes))
    counts = {
        name: num_parameters(config.model, config.data.vocab_size) for name, config in rows.items()
    }
    for name in rows.keys() - _OF_ANOTHER_SIZE:
        assert counts[name] == pytest.approx(counts["base"], rel=0.01), name
    assert min(counts[name] for name in _OF_ANOTHER_SIZE - {"deep-encoder"}) > counts["base"]


def test_a_base_of_one_layer_and_one_head_has_all_rows():
    one = {"model.num_encoder_layers": 1, "model.num_decoder_layers": 1, "model.num_heads": 1}
    rows = variants(Config().replace(one))
    assert list(rows) == list(variants(Config()))


def test_a_row_changes_the_network_alone_and_every_row_is_another():
    base = Config().replace(_SMALL | {"training.seed": 3})
    rows = variants(base, window=5)
    assert len(set(rows.values())) == len(rows)
    changed = {name: differences(base, config) for name, config in rows.items()}
    assert changed.pop("base") == {}
    assert all(path.startswith("model.") for paths in changed.values() for path in paths)
    assert changed["window"] == {"model.attention_window": (None, 5)}
    # d_ff 384 has 2 x 384 rows of 96 weights, and 3 x 256 as many.
    gate = {"model.feed_forward": ("relu", "swiglu"), "model.d_ff": (384, 256)}
    assert changed["swiglu"] == gate


def test_the_small_grid_has_rows_of_the_large_one_and_the_last_the_usual_changes():
    large, small = (
        load_grid(str(_ROOT / "configs" / name)) for name in ("modern.py", "modern_small.py")
    )
    assert len(small.variants) == 19
    assert list(small.variants) == [name for name in large.variants if name in small.variants]
    *_, last = large.variants.values()
    values = last.model.norm, last.model.norm_order, last.model.feed_forward, last.model.position
    assert values == ("rms", "pre", "swiglu", "rotary")
    assert last.model.num_kv_heads == 4


def test_published_multi_query_attention_widens_d_ff_as_its_paper_does():
    # Shazeer 2019: d_model 1,024, 8 heads of 128, d_ff 4,096 becomes 5,440 with one head.
    base = Config().replace({"model.d_model": 1024, "model.d_ff": 4096})
    assert variants(base)["multi-query"].model.d_ff == 5440
